"""SimpleConsumer on brokers of ours: every message once while it is acknowledged, again when it is not."""

from collections.abc import AsyncIterator

import pytest
import trio

import sdk.aio
import sdk.blocking
from mqcommon.errors import BrokerError, InvalidArgument, RouteNotFound
from sdk import Client, ConsumeFrom, Message, Producer, ReceivedMessage, SimpleConsumer
from sdk.testing import Cluster

WAIT_MS = 20_000


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    with Cluster(brokers=2) as cluster:
        cluster.create_topic("orders")
        yield cluster


async def send(cluster: Cluster, count: int, tags: str | None = None, **options: str) -> set[bytes]:
    bodies = {b"%d" % number for number in range(count)}
    async with Producer(cluster.nameserver, **options) as producer, trio.open_nursery() as nursery:
        for body in sorted(bodies):
            nursery.start_soon(producer.send, Message("orders", body, tags=tags))
    return bodies


async def drain(consumer: SimpleConsumer, count: int) -> list[ReceivedMessage]:
    found: list[ReceivedMessage] = []
    while len(found) < count:
        found += await consumer.receive(wait_ms=WAIT_MS)
    return found


async def test_each_message_once_from_all_brokers(cluster: Cluster) -> None:
    sent = await send(cluster, 200)
    async with (
        Client(cluster.nameserver) as client,
        SimpleConsumer(client, group="g", subscriptions={"orders": "*"}) as consumer,
    ):
        found = await drain(consumer, 200)
        assert sorted(message.body for message in found) == sorted(sent)
        assert {message.broker_name for message in found} == {"broker-a", "broker-b"}
        assert {message.delivery_attempt for message in found} == {1}
        await consumer.ack(found)
        assert await consumer.receive(wait_ms=0) == []


async def test_tasks_that_acknowledge_one_by_one_share_requests(cluster: Cluster) -> None:
    await send(cluster, 200)
    async with SimpleConsumer(
        cluster.nameserver, group="g", subscriptions={"orders": "*"}, invisible_ms=10_000
    ) as consumer:
        found = await drain(consumer, 200)
        async with trio.open_nursery() as nursery:
            for message in found:
                nursery.start_soon(consumer.ack, message)
        await consumer.ack(found[0])  # once more does no harm
        for message in found:
            with pytest.raises(BrokerError, match="not in flight"):
                await consumer.change_invisible_time(message, 1)


async def test_what_is_given_back_comes_again_with_its_own_topic(cluster: Cluster) -> None:
    await send(cluster, 1)
    async with SimpleConsumer(cluster.nameserver, group="g", subscriptions={"orders": "*"}) as consumer:
        (message,) = await consumer.receive(wait_ms=WAIT_MS)
        handle = message.receipt_handle
        await consumer.change_invisible_time(message, 60_000)
        assert message.receipt_handle != handle
        await consumer.change_invisible_time(message, 0)
        (again,) = await consumer.receive(wait_ms=WAIT_MS)
        assert (again.topic, again.body, again.delivery_attempt) == ("orders", b"0", 2)
        await consumer.ack(again)
        assert await consumer.receive(wait_ms=0) == []


async def test_a_receive_waits_for_a_message_of_any_broker(cluster: Cluster) -> None:
    async with SimpleConsumer(cluster.nameserver, group="g", subscriptions={"orders": "*"}) as consumer:
        assert await consumer.receive(wait_ms=20) == []
        for _ in range(4):
            async with trio.open_nursery() as nursery:

                async def one() -> None:
                    await consumer.ack(await consumer.receive(wait_ms=WAIT_MS))

                nursery.start_soon(one)
                await send(cluster, 1)


async def test_namespaces_and_tags(cluster: Cluster) -> None:
    cluster.create_topic("prod%orders")
    await send(cluster, 3, tags="tea", namespace="prod")
    await send(cluster, 3, tags="coffee", namespace="prod")
    async with SimpleConsumer(
        cluster.nameserver, group="g", subscriptions={"orders": "tea || milk"}, namespace="prod",
        consume_from=ConsumeFrom.FIRST_OFFSET,
    ) as consumer:  # fmt: skip
        found = await drain(consumer, 3)
        assert {(message.topic, message.tags) for message in found} == {("orders", "tea")}
        await consumer.ack(found)
        assert await consumer.receive(wait_ms=0) == []


async def test_a_killed_consumer_and_a_killed_broker(cluster: Cluster) -> None:
    sent = await send(cluster, 60)
    lost: list[ReceivedMessage] = []
    with trio.CancelScope() as scope:
        async with SimpleConsumer(
            cluster.nameserver, group="g", subscriptions={"orders": "*"}, invisible_ms=1_000
        ) as killed:
            while len(lost) < 60:
                lost += await killed.receive(wait_ms=WAIT_MS)
            await killed.ack(lost[:20])
            scope.cancel()
    done = {message.body for message in lost[:20]}
    cluster.brokers[0].kill()
    cluster.brokers[0].start()
    async with SimpleConsumer(cluster.nameserver, group="g", subscriptions={"orders": "*"}) as consumer:
        back = await drain(consumer, 40)
        assert sorted(message.body for message in back) == sorted(sent - done)
        await consumer.ack(back)


async def test_mistakes_are_told(cluster: Cluster) -> None:
    with pytest.raises(InvalidArgument, match="names no topic"):
        SimpleConsumer(cluster.nameserver, group="g", subscriptions={})
    with pytest.raises(InvalidArgument, match="LAST_OFFSET or FIRST_OFFSET"):
        SimpleConsumer(cluster.nameserver, group="g", subscriptions={"orders": "*"}, consume_from=ConsumeFrom.TIMESTAMP)
    with pytest.raises(InvalidArgument, match="separated by"):
        SimpleConsumer(cluster.nameserver, group="g", subscriptions={"orders": "||"})
    async with SimpleConsumer(cluster.nameserver, group="g", subscriptions={"orders": "*"}) as consumer:
        with pytest.raises(InvalidArgument, match="33"):
            await consumer.receive(33)
        with pytest.raises(TypeError, match="a message that `receive` returned"):
            await consumer.ack("x")  # type: ignore[arg-type]
    async with SimpleConsumer(
        cluster.nameserver, group="g", subscriptions={"unknown": "*"}, timeout_ms=100
    ) as consumer:
        with pytest.raises(RouteNotFound):
            await consumer.receive()


def test_blocking() -> None:
    with Cluster() as cluster:
        cluster.create_topic("orders")
        with (
            sdk.blocking.Producer(cluster.nameserver) as producer,
            sdk.blocking.SimpleConsumer(cluster.nameserver, group="g", subscriptions={"orders": "*"}) as consumer,
        ):
            producer.send(Message("orders", b"one"))
            (message,) = consumer.receive(wait_ms=WAIT_MS)
            consumer.change_invisible_time(message, 60_000)
            consumer.ack([message])
            assert consumer.receive(1, wait_ms=0) == []


async def test_a_call_may_hide_its_messages_for_another_time(cluster: Cluster) -> None:
    await send(cluster, 2)
    async with SimpleConsumer(
        cluster.nameserver, group="g", subscriptions={"orders": "*"}, invisible_ms=10_000
    ) as consumer:
        found = await consumer.receive(1, WAIT_MS, invisible_ms=77_000)
        found += await consumer.receive(1, WAIT_MS)
        assert [message.lease.invisible_time for message in found] == [77_000, 10_000]
        await consumer.ack(found)
        with pytest.raises(InvalidArgument, match="invisible_ms"):
            await consumer.receive(invisible_ms=-1)
