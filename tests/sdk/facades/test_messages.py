"""Iterating over a PushConsumer that has no handler."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from skylark import blocking
from skylark.mqcommon.errors import InvalidArgument, SkylarkError
from skylark.sdk.testing import Cluster
from tests.sdk.facades.adapter import Facades, in_asyncio

Consumers = Callable[..., Any]
Fill = Callable[..., Any]
Committed = Callable[[], int]


@in_asyncio
async def test_what_is_acknowledged_is_committed(
    consumer_of: Consumers, topic: str, fill: Fill, committed: Committed
) -> None:
    fill(300)
    bodies: list[bytes] = []
    async with consumer_of() as consumer:
        async for message in consumer:
            assert message.topic == topic
            bodies.append(message.body)
            if len(bodies) <= 200:
                await message.ack()
                await message.ack()
                assert consumer.consumed == len(bodies)
            if len(bodies) == 300:
                break
        assert consumer.pulled == 300
    assert bodies == [b"%d" % number for number in range(300)]
    assert committed() == 200


@in_asyncio
async def test_what_is_not_acknowledged_is_delivered_again(
    api: Facades, consumer_of: Consumers, fill: Fill, committed: Committed
) -> None:
    fill(10)

    async def read(count: int, acked: int) -> list[bytes]:
        async with consumer_of() as consumer:
            messages = [await anext(consumer) for _ in range(count)]
            for message in messages[:acked]:
                await message.ack()
        with pytest.raises(SkylarkError, match="closed"):
            await anext(consumer)
        if api.is_aio:
            await messages[-1].ack()
        return [message.body for message in messages]

    assert await read(10, 4) == [b"%d" % number for number in range(10)]
    assert committed() == 4
    assert await read(6, 0) == [b"%d" % number for number in range(4, 10)]


@in_asyncio
async def test_several_share_the_messages(consumer_of: Consumers, fill: Fill, committed: Committed) -> None:
    fill(500, 2)
    seen: list[bytes] = []
    enough = asyncio.Event()

    async def read() -> str:
        async for message in consumer:
            # First, as the consumer ends when the last message is seen, and others must have acknowledged by then.
            await message.ack()
            seen.append(message.body)
            if len(seen) == 500:
                enough.set()
        return "ended"

    async with consumer_of() as consumer:
        readers = [asyncio.create_task(read()) for _ in range(3)]
        await enough.wait()
    assert await asyncio.gather(*readers) == ["ended"] * 3
    assert sorted(seen) == sorted(b"%d" % number for number in range(500))
    assert committed() == 500


@in_asyncio
async def test_readers_that_wait_together_work_side_by_side_on_what_one_pull_brings(
    cluster: Cluster, topic: str, consumer_of: Consumers, fill: Fill
) -> None:
    fill()
    together = asyncio.Barrier(3)

    async def read() -> bytes:
        message = await anext(consumer)
        async with asyncio.timeout(30):
            await together.wait()
        await message.ack()
        return message.body

    def send() -> None:
        with blocking.Producer(cluster.nameserver) as producer:
            producer.send_many(topic, [b"0", b"1", b"2"])

    async with consumer_of() as consumer:
        readers = [asyncio.create_task(read()) for _ in range(3)]
        await asyncio.to_thread(send)
        assert sorted(await asyncio.gather(*readers)) == [b"0", b"1", b"2"]


@in_asyncio
async def test_a_nack_counts_as_a_failure(consumer_of: Consumers, fill: Fill, committed: Committed) -> None:
    fill(1)
    async with consumer_of() as consumer:
        message = await anext(consumer)
        for level in (-1, 19):
            with pytest.raises(InvalidArgument, match="delay_level must be from 0 to 18"):
                await message.nack(delay_level=level)
        await message.nack(delay_level=18)
        assert (consumer.failed, consumer.consumed) == (1, 0)
    assert committed() == 1


@in_asyncio
async def test_what_is_not_acknowledged_in_time_is_given_back(consumer_of: Consumers, fill: Fill) -> None:
    fill(2)
    async with consumer_of(consume_timeout_ms=100) as consumer:
        # The second message crosses to this thread, too. Its time has not begun.
        message = await anext(consumer)
        while not consumer.failed:  # noqa: ASYNC110  what is waited for happens in the client's thread
            await asyncio.sleep(0.01)
        await message.ack()
        assert consumer.failed == 1


@in_asyncio
async def test_a_consumer_with_a_handler_has_no_messages_to_iterate_over(consumer_of: Consumers, fill: Fill) -> None:
    fill()
    async with consumer_of(handler=lambda message: None) as consumer:
        with pytest.raises(InvalidArgument, match="leave it out to iterate"):
            async for _ in consumer:
                raise AssertionError
