"""The blocking classes in children of fork: what was open in the parent opens again there, by itself."""

import multiprocessing
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection

import pytest
import trio

from mqcommon.errors import SkylarkError
from mqcommon.message.message import Message
from sdk import blocking
from tests.sdk.blocking.test_clients import cluster
from tests.sdk.fakes import queue
from tests.sdk.producer.test_producer import bodies, two_brokers
from tests.support.forks import in_child


def skylark_threads() -> int:
    return sum(thread.name == "skylark-sdk" for thread in threading.enumerate())


async def test_a_producer_goes_on_in_the_child_and_in_the_parent() -> None:
    def use(names: str) -> None:
        with blocking.Producer(names) as producer:
            producer.send(Message("t", b"parent 1"))

            def child() -> str:
                result = producer.send(Message("t", b"child 1"))
                producer.send_many("t", [b"child 2"])
                producer.close()
                return result.msg_id

            other = in_child(child)
            mine = producer.send(Message("t", b"parent 2")).msg_id
            assert mine[:20] != other[:20], "each process has its own unique keys"

    async with two_brokers() as (names, a, b):
        await trio.to_thread.run_sync(use, names)
        assert sorted(bodies(a, b)) == [b"child 1", b"child 2", b"parent 1", b"parent 2"]


async def test_a_process_of_multiprocessing_may_use_the_parents_producer() -> None:
    def child(producer: blocking.Producer, answer: Connection) -> None:
        answer.send(producer.send(Message("t", b"child")).queue.topic)

    def use(names: str) -> None:
        context = multiprocessing.get_context("fork")
        with blocking.Producer(names) as producer:
            producer.send(Message("t", b"parent"))
            mine, theirs = context.Pipe()
            process = context.Process(target=child, args=(producer, theirs))
            process.start()
            assert mine.poll(30) and mine.recv() == "t"
            process.join()
            assert process.exitcode == 0
            producer.send(Message("t", b"parent"))

    async with two_brokers() as (names, a, b):
        await trio.to_thread.run_sync(use, names)
        assert sorted(bodies(a, b)) == [b"child", b"parent", b"parent"]


async def test_a_fork_while_other_threads_send() -> None:
    """Whatever locks are held in that moment, and whoever waits: the child has none of it."""

    def use(names: str) -> None:
        enough = threading.Event()
        with blocking.Producer(names) as producer, ThreadPoolExecutor(4) as pool:

            def send_on() -> None:
                while not enough.is_set():
                    producer.send(Message("t", b"parent"))

            sending = [pool.submit(send_on) for _ in range(4)]
            for _ in range(5):
                assert in_child(lambda: producer.send(Message("t", b"child")).queue.topic) == "t"
            enough.set()
            for each in sending:
                each.result()

    async with two_brokers() as (names, a, b):
        await trio.to_thread.run_sync(use, names)
        assert bodies(a, b).count(b"child") == 5


async def test_threads_of_the_child_share_one_client() -> None:
    def use(names: str) -> None:
        with blocking.Producer(names) as producer:

            def child() -> str:
                barrier = threading.Barrier(8)

                def send() -> None:
                    barrier.wait()
                    producer.send(Message("t", b"child"))

                threads = [threading.Thread(target=send) for _ in range(8)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
                return str(skylark_threads())

            assert in_child(child) == "1"

    async with two_brokers() as (names, a, b):
        await trio.to_thread.run_sync(use, names)
        assert bodies(a, b) == [b"child"] * 8


async def test_a_grandchild_opens_its_own() -> None:
    def use(names: str) -> None:
        with blocking.Producer(names) as producer:

            def child() -> str:
                producer.send(Message("t", b"child"))
                return in_child(lambda: producer.send(Message("t", b"grandchild")).queue.topic)

            assert in_child(child) == "t"

    async with two_brokers() as (names, a, b):
        await trio.to_thread.run_sync(use, names)
        assert sorted(bodies(a, b)) == [b"child", b"grandchild"]


async def test_what_was_closed_or_never_opened_stays_so_in_the_child() -> None:
    def error_of(call: Callable[[], object]) -> str:
        with pytest.raises((RuntimeError, SkylarkError)) as caught:
            call()
        return str(caught.value)

    def use(names: str) -> None:
        closed, unopened = blocking.Producer(names), blocking.Producer(names)
        with closed:

            def left() -> str:
                closed.close()
                return error_of(lambda: closed.queues("t"))

            assert in_child(left) == "the client was closed"
            assert closed.queues("t"), "what a child closes is open in the parent"
        assert in_child(lambda: error_of(lambda: closed.queues("t"))) == "the client was closed"
        assert "open the client" in in_child(lambda: error_of(lambda: unopened.queues("t")))

        def opened() -> str:
            with unopened:
                return str(len(unopened.queues("t")))

        assert in_child(opened) == "4"
        assert in_child(lambda: str(len(closed.open().queues("t")))) == "4", "a child may open what its parent closed"

    async with two_brokers() as (names, _a, _b):
        await trio.to_thread.run_sync(use, names)


async def test_a_consumer_and_an_admin_go_on_and_a_stream_of_the_parent_raises() -> None:
    def use(names: str, addr: str) -> None:
        with blocking.PullConsumer(names, group="g") as consumer, blocking.Admin(names) as admin:
            stream = consumer.messages(queue(), 0, 3)
            assert next(stream).body == b"a"

            def child() -> str:
                assert consumer.max_offset(queue()) == 3
                assert [message.body for message in consumer.messages(queue(), 1, 3)] == [b"b", b"c"]
                assert admin.broker_addr_of("broker-a") == addr
                batches = consumer.stream(queue(), 0, 3, max_count=1)
                assert len(next(batches)) == 1
                for begun in (opened_before, stream):
                    with pytest.raises(RuntimeError, match="before a fork"):
                        list(begun)
                return "fine"

            opened_before = consumer.stream(queue(), 0, 3, max_count=1)
            next(opened_before)
            assert in_child(child) == "fine"
            assert [message.body for message in stream] == [b"b", b"c"]
            assert len(list(opened_before)) == 2

    async with cluster() as (namesrv, broker):
        broker.put("t", 0, b"a", b"b", b"c")
        await trio.to_thread.run_sync(use, namesrv.addr, broker.addr)
        # The child's groups are its own: the parent's heartbeats are not ended by it.
        clients = {(request.ext or {})["clientID"] for request in broker.asked(35)}
        assert all(f"@{os.getpid()}#" in client for client in clients)


async def test_what_shares_a_client_shares_one_in_the_child_too() -> None:
    def use(names: str, addr: str) -> None:
        with blocking.Client(names) as client, blocking.Producer(client) as producer, blocking.Admin(client) as admin:
            producer.send(Message("t", b"parent"))

            def child() -> str:
                producer.send(Message("t", b"child"))
                assert admin.broker_addr_of("broker-a") == addr
                with blocking.Admin(client) as another:
                    assert another.broker_addr_of("broker-a") == addr
                assert skylark_threads() == 1
                return client.client_id

            assert in_child(child) != client.client_id
            producer.send(Message("t", b"parent"))

        def after_the_end() -> str:
            with pytest.raises(SkylarkError, match="closed"):
                producer.send(Message("t", b"child"))
            return "fine"

        assert in_child(after_the_end) == "fine"

    async with two_brokers() as (names, a, b):
        await trio.to_thread.run_sync(use, names, a.addr)
        assert sorted(bodies(a, b)) == [b"child", b"parent", b"parent"]


PROGRAM = """
import os, sys
from sdk import Message
from sdk.blocking import Producer

with Producer(sys.argv[1]) as producer:
    producer.send(Message("t", b"parent"))
    if os.fork() == 0:
        producer.send(Message("t", b"child"))
    else:
        os.wait()
        producer.send(Message("t", b"parent"))
"""


async def test_a_program_whose_child_ends_as_programs_do() -> None:
    """Nothing of the parent's is finalized in the child with noise, or with harm to the parent."""
    async with two_brokers() as (names, a, b):
        with trio.fail_after(60):
            done = await trio.run_process([sys.executable, "-X", "dev", "-c", PROGRAM, names], capture_stderr=True)
        assert sorted(bodies(a, b)) == [b"child", b"parent", b"parent"]
        noise = [line for line in done.stderr.decode().splitlines() if "Warning" not in line]
        assert not [line for line in noise if "rror" in line or "Exception" in line], done.stderr.decode()
