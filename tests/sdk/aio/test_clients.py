"""The asyncio classes against a broker, and their likeness to the trio classes."""

import asyncio
import inspect
import signal
import subprocess
import sys

import pytest

import sdk
from mqcommon.errors import RouteNotFound, SendFailed, SkylarkError, UserError
from sdk import Message, MessageQueue, PullStatus, aio
from sdk.testing import Cluster, cluster_fixture

cluster = cluster_fixture(scope="module")


async def queue_with(cluster: Cluster, topic: str, *bodies: bytes) -> MessageQueue:
    """The only queue of a new topic, with these messages."""
    await asyncio.to_thread(cluster.create_topic, topic, 1)
    async with aio.Producer(cluster.nameserver) as producer:
        (queue,) = await producer.queues(topic)
        if bodies:
            await producer.send_many(topic, bodies)
    return queue


def test_a_producer(cluster: Cluster) -> None:
    async def use() -> None:
        queue = await queue_with(cluster, "produced")
        async with aio.Producer(cluster.nameserver, group="p") as producer:
            assert (producer.group, producer.retried) == ("p", 0)
            results = await asyncio.gather(*[producer.send(Message("produced", b"%d" % n)) for n in range(500)])
            assert sorted(result.queue_offset for result in results) == list(range(500))
            chosen = await producer.send(Message("produced", b"x"), selector=lambda queues, message: queues[0])
            assert chosen.queue == queue
            with pytest.raises(TypeError, match="message must be a Message"):
                await producer.send(b"x")  # type: ignore[arg-type]

    asyncio.run(use())


def test_a_consumer(cluster: Cluster) -> None:
    async def use() -> None:
        queue = await queue_with(cluster, "consumed", b"a", b"b", b"c")
        async with aio.PullConsumer(cluster.nameserver, group="g") as consumer:
            assert await consumer.message_queues("consumed") == [queue]
            result = await consumer.pull(queue, 1)
            assert result.status is PullStatus.FOUND
            assert [message.body for message in result.messages] == [b"b", b"c"]
            await consumer.commit_offset(queue, 2)
            assert await consumer.committed_offset(queue) == 2
            async with consumer.stream(queue, 0, 3, max_count=2) as batches:
                assert [(len(batch), batches.next_offset) async for batch in batches] == [(2, 2), (1, 3)]
            assert [message.body async for message in consumer.messages(queue, 0, 2)] == [b"a", b"b"]
            async for message in consumer.messages(queue, 2):
                assert message.body == b"c"
                break
            with pytest.raises(RouteNotFound):
                await consumer.message_queues("unknown")

    asyncio.run(use())


def test_a_stream_waits_and_can_be_left(cluster: Cluster) -> None:
    async def use() -> None:
        queue = await queue_with(cluster, "streamed")
        async with aio.Client(cluster.nameserver) as client, aio.Producer(client) as producer:
            consumer = aio.PullConsumer(client, group="s")
            async with consumer:
                stream = consumer.stream(queue, 0)
                waiting = asyncio.create_task(anext(stream))
                await producer.send(Message("streamed", b"x"))
                assert [message.body for message in await waiting] == [b"x"]
                waiting = asyncio.create_task(anext(stream))
                await asyncio.sleep(0)
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting
                stream.close()
                assert [batch async for batch in stream] == [] and stream.next_offset == 1

    asyncio.run(use())


def test_several_share_a_client_and_its_thread(cluster: Cluster) -> None:
    async def use() -> None:
        await queue_with(cluster, "shared", b"a")
        async with aio.Client(cluster.nameserver) as client:
            async with aio.Producer(client, group="p") as producer, aio.Admin(client) as admin:
                assert client.client_id and "shared" in await admin.topic_list()
                assert len(await producer.queues("shared")) == 1
            with pytest.raises(SkylarkError, match="closed"):
                await producer.queues("shared")

    asyncio.run(use())


def test_a_deadline_of_asyncio_cancels_a_send(cluster: Cluster) -> None:
    async def use() -> None:
        await queue_with(cluster, "late")
        (broker,) = cluster.brokers
        async with aio.Producer(cluster.nameserver, send_timeout_ms=60_000) as producer:
            await producer.send(Message("late", b"x"))
            broker.freeze()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await producer.send(Message("late", b"x"))
            with pytest.raises(SendFailed):
                await producer.send(Message("late", b"x"), timeout_ms=50)
            broker.thaw()

    asyncio.run(use())


PROGRAM = """
import asyncio, sys, threading
from sdk.aio import PullConsumer
from sdk import MessageQueue

async def main():
    async with PullConsumer(sys.argv[1], group="ctrl-c") as consumer:
        queue = (await consumer.message_queues("interrupted"))[0]
        await consumer.commit_offset(queue, 7)
        print("ready", flush=True)
        await consumer.pull(queue, 0, wait_ms=60_000)

try:
    asyncio.run(main())
except KeyboardInterrupt:
    print("stopped", threading.active_count(), flush=True)
"""


def test_ctrl_c_cancels_calls_and_closes(cluster: Cluster) -> None:
    asyncio.run(queue_with(cluster, "interrupted"))
    command = [sys.executable, "-c", PROGRAM, cluster.nameserver]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (0, "") and out.startswith("stopped")


# --- mistakes


def test_a_bad_address_is_told_where_it_was_given() -> None:
    for cls in (aio.Admin, aio.PullConsumer, aio.Producer, aio.Client):
        with pytest.raises(UserError, match="host:port"):
            cls("nonsense")


def test_use_without_async_with_is_told() -> None:
    producer = aio.Producer("127.0.0.1:1")

    async def use() -> None:
        with pytest.raises(RuntimeError, match="open the client with 'async with' first"):
            await producer.send(Message("t", b"x"))

    asyncio.run(use())
    with pytest.raises(AttributeError, match=r"module 'sdk\.aio' has no attribute 'Consumer'"):
        _ = aio.Consumer


def test_no_loop_is_told() -> None:
    with pytest.raises(RuntimeError, match="no running event loop"):
        aio.Producer("127.0.0.1:1").__aenter__().send(None)


@pytest.mark.parametrize("name", aio.__all__)
def test_parameters_are_those_of_the_trio_class(name: str) -> None:
    def parameters(function: object) -> list[tuple[str, object, object]]:
        return [(each.name, each.kind, each.default) for each in inspect.signature(function).parameters.values()]  # type: ignore[arg-type]

    trio_class, made = getattr(sdk, name), getattr(aio, name)
    for key, value in vars(made).items():
        if inspect.isfunction(value) and (key == "__init__" or not key.startswith("_")):
            assert parameters(value) == parameters(getattr(trio_class, key)), key
