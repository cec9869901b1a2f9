"""``async for message in consumer`` in asyncio."""

import asyncio

import pytest

from mqcommon.errors import InvalidArgument, SkylarkError
from sdk.aio.push import StreamMessage
from sdk.testing import Cluster, cluster_fixture
from tests.sdk.aio.test_handlers import committed, consumer_of, fill

cluster = cluster_fixture(scope="module")


def test_what_is_acknowledged_is_committed(cluster: Cluster) -> None:
    fill(cluster, "streamed", 600)

    async def use() -> list[bytes]:
        bodies: list[bytes] = []
        async with consumer_of(cluster.nameserver, "streamed") as consumer:
            async for message in consumer:
                assert message.topic == "streamed"
                bodies.append(message.body)
                await message.ack()
                await message.ack()
                assert consumer.consumed == len(bodies)
                if len(bodies) == 600:
                    return bodies
        raise AssertionError

    assert sorted(asyncio.run(use())) == sorted(b"%d" % number for number in range(600))
    assert committed(cluster, "streamed") == 600


def test_what_is_not_acknowledged_is_delivered_again(cluster: Cluster) -> None:
    fill(cluster, "left", 10, queues=1)

    async def use(count: int, acked: int) -> list[bytes]:
        async with consumer_of(cluster.nameserver, "left") as consumer:
            messages = [await anext(consumer) for _ in range(count)]
            for message in messages[:acked]:
                await message.ack()
            assert isinstance(messages[0], StreamMessage)
        with pytest.raises(SkylarkError, match="closed"):
            await anext(consumer)
        await messages[-1].ack()
        return [message.body for message in messages]

    assert asyncio.run(use(10, 4)) == [b"%d" % number for number in range(10)]
    assert committed(cluster, "left") == 4
    assert asyncio.run(use(6, 0)) == [b"%d" % number for number in range(4, 10)]


def test_a_nack_counts_as_a_failure(cluster: Cluster) -> None:
    fill(cluster, "refused", 1, queues=1)

    async def use() -> None:
        async with consumer_of(cluster.nameserver, "refused") as consumer:
            message = await anext(consumer)
            with pytest.raises(InvalidArgument, match="delay_level must be from 0 to 18"):
                await message.nack(delay_level=19)
            await message.nack(delay_level=18)
            assert (consumer.failed, consumer.consumed) == (1, 0)

    asyncio.run(use())
    assert committed(cluster, "refused") == 1


def test_a_deadline_loses_no_message(cluster: Cluster) -> None:
    cluster.create_topic("deadlines", 1)

    async def use() -> None:
        from sdk import Message
        from sdk.aio import Producer

        seen: list[bytes] = []
        async with Producer(cluster.nameserver) as producer, consumer_of(cluster.nameserver, "deadlines") as consumer:
            sending = asyncio.gather(*[producer.send(Message("deadlines", b"%d" % number)) for number in range(50)])
            while len(seen) < 50:
                try:
                    async with asyncio.timeout(0.002):
                        async for message in consumer:
                            seen.append(message.body)
                except TimeoutError:
                    continue
                # Reached only if the iteration ended by itself.
                raise AssertionError
            await sending
        assert sorted(seen) == sorted(b"%d" % number for number in range(50))

    asyncio.run(use())


def test_closing_ends_the_iteration(cluster: Cluster) -> None:
    fill(cluster, "ending", 1, queues=1)

    async def use() -> None:
        seen = asyncio.Event()

        async def read() -> str:
            async for _ in consumer:
                seen.set()
            return "ended"

        async with consumer_of(cluster.nameserver, "ending") as consumer:
            reading = asyncio.create_task(read())
            await seen.wait()
            await asyncio.sleep(0)
        assert await reading == "ended"

    asyncio.run(use())


def test_a_consumer_with_a_handler_has_no_messages_to_iterate_over(cluster: Cluster) -> None:
    async def use() -> None:
        async with consumer_of(cluster.nameserver, "streamed", handler=lambda message: None) as consumer:
            with pytest.raises(InvalidArgument, match="leave it out to iterate"):
                async for _ in consumer:
                    raise AssertionError

    asyncio.run(use())
