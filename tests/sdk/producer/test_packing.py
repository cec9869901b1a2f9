"""Producers that compress, and consumers that read what they sent, against a broker of ours in this process."""

import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

from mqcommon.errors import InvalidArgument
from mqcommon.message.compression import COMPRESSIONS
from mqcommon.message.message import Message, MessageExt
from sdk import ConsumeFrom, Producer, PullConsumer, PushConsumer, aio, blocking
from sdk.producer.packing import THREAD_BYTES
from tests.sdk.consumer.push_cluster import push_cluster
from tests.support.in_process import Servers

TOPIC = "one"
PACKAGES = {"zlib": "zlib", "lz4": "lz4.frame", "zstd": "zstandard"}


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Servers]:
    async with push_cluster(tmp_path) as made:
        yield made


async def stored(cluster: Servers) -> list[MessageExt]:
    async with PullConsumer(cluster.nameserver) as consumer:
        (mq,) = await consumer.message_queues(TOPIC)
        end = await consumer.max_offset(mq)
        async with consumer.stream(mq, 0, end) as batches:
            return [message async for batch in batches for message in batch]


@pytest.mark.parametrize("name", ["zlib", "lz4", "zstd"])
async def test_large_bodies_are_compressed_and_read_by_all_consumers(cluster: Servers, name: str) -> None:
    pytest.importorskip(PACKAGES[name])
    bodies = [b"small", b"x" * 4_096, b"y" * 4_097, b"z" * (THREAD_BYTES + 1)]
    async with Producer(cluster.nameserver, compression=name) as producer:
        async with trio.open_nursery() as nursery:
            for body in bodies:
                nursery.start_soon(producer.send, Message(TOPIC, body, tags="t", properties={"a": "b"}))
        await producer.send_oneway(Message(TOPIC, b"o" * 5_000))
        got: list[bytes] = []
        enough = trio.Event()

        async def handle(message: MessageExt) -> None:
            got.append(message.body)
            if len(got) == 5:
                enough.set()

        async with PushConsumer(cluster.nameserver, group="g", subscriptions={TOPIC: "*"}, handler=handle,
                                consume_from=ConsumeFrom.FIRST_OFFSET):  # fmt: skip
            with trio.fail_after(20):
                await enough.wait()
    assert sorted(got) == sorted([*bodies, b"o" * 5_000])
    messages = {len(message.body): message for message in await stored(cluster)}
    flags = {size: message.sys_flag for size, message in messages.items()}
    packed = COMPRESSIONS[name]
    assert flags == {5: 0, 4_096: 0, 4_097: packed, 5_000: packed, THREAD_BYTES + 1: packed}
    assert messages[4_097].store_size < 500
    assert (messages[4_097].tags, messages[4_097].properties["a"]) == ("t", "b")

    def blocking_side() -> list[bytes]:
        with blocking.PullConsumer(cluster.nameserver) as consumer:
            (mq,) = consumer.message_queues(TOPIC)
            return sorted(message.body for message in consumer.pull(mq, 0).messages)

    assert await trio.to_thread.run_sync(blocking_side) == sorted(got)


async def test_what_does_not_get_smaller_is_sent_as_it_is(cluster: Servers) -> None:
    body = random.Random(1).randbytes(10_000)
    async with Producer(cluster.nameserver, compression="zlib", compress_over_bytes=100) as producer:
        await producer.send(Message(TOPIC, body))
        await producer.send(Message(TOPIC, b"x" * 101))
    found = await stored(cluster)
    assert [(message.sys_flag, len(message.body)) for message in found] == [(0, 10_000), (0x301, 101)]


async def test_without_compression_nothing_is_compressed(cluster: Servers) -> None:
    async with Producer(cluster.nameserver) as producer:
        await producer.send(Message(TOPIC, b"x" * 100_000))
    assert [message.sys_flag for message in await stored(cluster)] == [0]


async def test_a_selector_sees_the_message_as_it_was_given(cluster: Servers) -> None:
    async with Producer(cluster.nameserver, compression="zlib") as producer:
        message, seen = Message(TOPIC, b"x" * 5_000), []
        await producer.send(message, selector=lambda queues, given: (seen.append(given), queues[0])[1])
        assert seen == [message]


@pytest.mark.parametrize("cls", [Producer, blocking.Producer, aio.Producer])
def test_mistakes_are_raised_where_they_are_made(cls: type) -> None:
    with pytest.raises(InvalidArgument, match="compression must be one of"):
        cls("127.0.0.1:1", compression="gzip")
    with pytest.raises(TypeError, match="compression must be"):
        cls("127.0.0.1:1", compression=5)
    with pytest.raises(InvalidArgument, match="compress_over_bytes"):
        cls("127.0.0.1:1", compression="zlib", compress_over_bytes=-1)
