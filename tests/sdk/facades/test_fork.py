"""The blocking classes in children of fork: what was open in the parent opens again there, by itself."""

import multiprocessing
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any

import pytest

from skylark import MessageExt, MessageQueue, blocking
from skylark.mqcommon.errors import SkylarkError
from skylark.mqcommon.message.message import Message
from skylark.sdk.testing import Cluster
from tests.sdk.facades.adapter import Facades
from tests.sdk.facades.test_portals import skylark_threads
from tests.sdk.facades.test_threads import WAIT_S, handler_threads
from tests.support.forks import in_child

Fill = Callable[..., MessageQueue]
Stored = Callable[[], list[bytes]]


@pytest.fixture
def api() -> Facades:
    return Facades("blocking")


@pytest.fixture
def stored(cluster: Cluster, topic: str, fill: Fill) -> Stored:
    """Makes the topic, and returns the bodies of its messages, sorted."""
    queue = fill()

    def found() -> list[bytes]:
        with blocking.PullConsumer(cluster.nameserver) as consumer:
            return sorted(message.body for message in consumer.messages(queue, 0, consumer.max_offset(queue)))

    return found


def test_a_producer_goes_on_in_the_child_and_in_the_parent(cluster: Cluster, topic: str, stored: Stored) -> None:
    with blocking.Producer(cluster.nameserver) as producer:
        producer.send(Message(topic, b"parent 1"))

        def child() -> str:
            result = producer.send(Message(topic, b"child 1"))
            producer.send_many(topic, [b"child 2"])
            producer.close()
            return result.msg_id

        other = in_child(child)
        mine = producer.send(Message(topic, b"parent 2")).msg_id
        assert mine[:20] != other[:20], "each process has its own unique keys"
    assert stored() == [b"child 1", b"child 2", b"parent 1", b"parent 2"]


def test_a_process_of_multiprocessing_may_use_the_parents_producer(
    cluster: Cluster, topic: str, stored: Stored
) -> None:
    def child(producer: blocking.Producer, answer: Connection) -> None:
        answer.send(producer.send(Message(topic, b"child")).queue.topic)

    context = multiprocessing.get_context("fork")
    with blocking.Producer(cluster.nameserver) as producer:
        producer.send(Message(topic, b"parent"))
        mine, theirs = context.Pipe()
        process = context.Process(target=child, args=(producer, theirs))
        process.start()
        assert mine.poll(30) and mine.recv() == topic
        process.join()
        assert process.exitcode == 0
        producer.send(Message(topic, b"parent"))
    assert stored() == [b"child", b"parent", b"parent"]


def test_a_fork_while_other_threads_send(cluster: Cluster, topic: str, stored: Stored) -> None:
    """Whatever locks are held in that moment, and whoever waits: the child has none of it."""
    enough = threading.Event()
    with blocking.Producer(cluster.nameserver) as producer, ThreadPoolExecutor(4) as pool:

        def send_on() -> None:
            while not enough.is_set():
                producer.send(Message(topic, b"parent"))

        sending = [pool.submit(send_on) for _ in range(4)]
        for _ in range(5):
            assert in_child(lambda: producer.send(Message(topic, b"child")).queue.topic) == topic
        enough.set()
        for each in sending:
            each.result()
    assert stored().count(b"child") == 5


def test_threads_of_the_child_share_one_client(cluster: Cluster, topic: str, stored: Stored) -> None:
    with blocking.Producer(cluster.nameserver) as producer:

        def child() -> str:
            barrier = threading.Barrier(8)

            def send() -> None:
                barrier.wait()
                producer.send(Message(topic, b"child"))

            threads = [threading.Thread(target=send) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            return str(len(skylark_threads()))

        assert in_child(child) == "1"
    assert stored() == [b"child"] * 8


def test_a_grandchild_opens_its_own(cluster: Cluster, topic: str, stored: Stored) -> None:
    with blocking.Producer(cluster.nameserver) as producer:

        def child() -> str:
            producer.send(Message(topic, b"child"))
            return in_child(lambda: producer.send(Message(topic, b"grandchild")).queue.topic)

        assert in_child(child) == topic
    assert stored() == [b"child", b"grandchild"]


def test_what_was_closed_or_never_opened_stays_so_in_the_child(cluster: Cluster, topic: str, fill: Fill) -> None:
    fill(queues=4)

    def error_of(call: Callable[[], object]) -> str:
        with pytest.raises((RuntimeError, SkylarkError)) as caught:
            call()
        return str(caught.value)

    closed, unopened = blocking.Producer(cluster.nameserver), blocking.Producer(cluster.nameserver)
    with closed:

        def left() -> str:
            closed.close()
            return error_of(lambda: closed.queues(topic))

        assert in_child(left) == "the client was closed"
        assert closed.queues(topic), "what a child closes is open in the parent"
    assert in_child(lambda: error_of(lambda: closed.queues(topic))) == "the client was closed"
    assert "open the client" in in_child(lambda: error_of(lambda: unopened.queues(topic)))

    def opened() -> str:
        with unopened:
            return str(len(unopened.queues(topic)))

    assert in_child(opened) == "4"
    assert in_child(lambda: str(len(closed.open().queues(topic)))) == "4", "a child may open what its parent closed"


def test_a_consumer_and_an_admin_go_on_and_a_stream_of_the_parent_raises(cluster: Cluster, fill: Fill) -> None:
    queue, name = fill(3), cluster.brokers[0].name
    with (
        blocking.PullConsumer(cluster.nameserver, group="g") as consumer,
        blocking.Admin(cluster.nameserver) as admin,
    ):
        stream = consumer.messages(queue, 0, 3)
        assert next(stream).body == b"0"
        addr = admin.broker_addr_of(name)

        def child() -> str:
            assert consumer.max_offset(queue) == 3
            assert [message.body for message in consumer.messages(queue, 1, 3)] == [b"1", b"2"]
            assert admin.broker_addr_of(name) == addr
            batches = consumer.stream(queue, 0, 3, max_count=1)
            assert len(next(batches)) == 1
            for begun in (opened_before, stream):
                with pytest.raises(RuntimeError, match="before a fork"):
                    list(begun)
            consumer.close()
            return "fine"

        opened_before = consumer.stream(queue, 0, 3, max_count=1)
        next(opened_before)
        assert in_child(child) == "fine"
        assert [message.body for message in stream] == [b"1", b"2"]
        assert len(list(opened_before)) == 2
        # The child's group member is its own: the parent's member does not end with it.
        members = admin.consumer_connection("g").connection_set
        assert any(f"@{os.getpid()}#" in member.client_id for member in members)


def test_what_shares_a_client_shares_one_in_the_child_too(cluster: Cluster, topic: str, stored: Stored) -> None:
    name = cluster.brokers[0].name
    with (
        blocking.Client(cluster.nameserver) as client,
        blocking.Producer(client) as producer,
        blocking.Admin(client) as admin,
    ):
        addr = admin.broker_addr_of(name)
        producer.send(Message(topic, b"parent"))

        def child() -> str:
            producer.send(Message(topic, b"child"))
            assert admin.broker_addr_of(name) == addr
            with blocking.Admin(client) as another:
                assert another.broker_addr_of(name) == addr
            assert len(skylark_threads()) == 1
            return client.client_id

        assert in_child(child) != client.client_id
        producer.send(Message(topic, b"parent"))

    def after_the_end() -> str:
        with pytest.raises(SkylarkError, match="closed"):
            producer.send(Message(topic, b"child"))
        return "fine"

    assert in_child(after_the_end) == "fine"
    assert stored() == [b"child", b"parent", b"parent"]


PROGRAM = """
import os, sys
from skylark import Message
from skylark.sdk.blocking import Producer

with Producer(sys.argv[1]) as producer:
    producer.send(Message(sys.argv[2], b"parent"))
    if os.fork() == 0:
        producer.send(Message(sys.argv[2], b"child"))
    else:
        os.wait()
        producer.send(Message(sys.argv[2], b"parent"))
"""


def test_a_program_whose_child_ends_as_programs_do(cluster: Cluster, topic: str, stored: Stored) -> None:
    """Nothing of the parent's is finalized in the child with noise, or with harm to the parent."""
    command = [sys.executable, "-X", "dev", "-c", PROGRAM, cluster.nameserver, topic]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stderr
    assert stored() == [b"child", b"parent", b"parent"]
    noise = [line for line in said.splitlines() if "Warning" not in line]
    assert not [line for line in noise if "rror" in line or "Exception" in line], said


def test_a_child_sends_by_itself_and_leaves_its_parents_tickets(cluster: Cluster, topic: str, stored: Stored) -> None:
    with blocking.Producer(cluster.nameserver) as producer:
        parents = producer.send_nowait(Message(topic, b"parent"))

        def child() -> str:
            producer.send_nowait(Message(topic, b"child")).result(30)
            if not parents.done():
                with pytest.raises(RuntimeError, match="before a fork"):
                    parents.result(30)
            producer.close()
            return "done"

        assert in_child(child) == "done"
        parents.result(30)
    assert stored() == [b"child", b"parent"]


def test_a_child_of_a_fork_does_not_return_its_parents_messages(fill: Fill, consumer_of: Callable[..., Any]) -> None:
    fill(2)
    with consumer_of()._inner as consumer:
        message = next(consumer)

        def child() -> str:
            with pytest.raises(RuntimeError, match="before a fork"):
                message.ack()
            # Its own consumer, a new member of the group; what the parent has taken stays with the parent.
            assert consumer.cached == 0
            return "apart"

        assert in_child(child) == "apart"
        # After the rebalancing for the child the parent may get the queue, and the first message, anew.
        assert next(consumer).body in (b"0", b"1")


def test_a_child_of_a_fork_starts_with_no_threads(fill: Fill, consumer_of: Callable[..., Any]) -> None:
    fill(5)
    seen, all_seen = list[bytes](), threading.Event()

    def handle(message: MessageExt) -> None:
        seen.append(message.body)
        if len(seen) == 5:
            all_seen.set()

    with consumer_of(handler=handle)._inner as consumer:
        assert all_seen.wait(WAIT_S)
        # The first call of the child opens a consumer of its own, as for all blocking classes.
        assert in_child(lambda: f"{consumer.consumed} {len(handler_threads())}") == "0 0"
