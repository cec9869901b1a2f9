"""SimpleConsumer on brokers of ours: every message once while it is acknowledged, again when it is not."""

from collections.abc import AsyncIterator

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

import skylark.aio
import skylark.blocking
from skylark import Client, ConsumeFrom, Message, Producer, ReceivedMessage, SimpleConsumer
from skylark.mqcommon.errors import BrokerError, InvalidArgument, RouteNotFound, SendFailed, SkylarkError
from skylark.sdk.consumer import simple
from skylark.sdk.consumer.popped import Lease
from skylark.sdk.consumer.simple import AT_ONCE, AckLane, Bits
from skylark.sdk.testing import Cluster

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


async def test_a_change_that_is_stored_and_on_no_slave_gives_the_message_its_new_handle() -> None:
    with Cluster(options={"brokerRole": "SYNC_MASTER", "inSyncReplicas": 2}) as cluster:
        cluster.create_topic("orders")
        async with Producer(cluster.nameserver) as producer:
            with pytest.raises(SendFailed, match="stored, but"):
                await producer.send(Message("orders", b"0"))
        async with SimpleConsumer(cluster.nameserver, group="g", subscriptions={"orders": "*"}) as consumer:
            (message,) = await consumer.receive(wait_ms=WAIT_MS)
            handle = message.receipt_handle
            await consumer.change_invisible_time(message, 60_000)
            assert message.receipt_handle != handle
            await consumer.change_invisible_time(message, 0)
            (again,) = await consumer.receive(wait_ms=WAIT_MS)
            assert again.delivery_attempt == 2


async def test_a_receive_waits_for_a_message_of_any_broker(cluster: Cluster) -> None:
    async with SimpleConsumer(cluster.nameserver, group="g", subscriptions={"orders": "*"}) as consumer:
        assert await consumer.receive(wait_ms=20) == []
        for _ in range(4):
            async with trio.open_nursery() as nursery:

                async def one() -> None:
                    await consumer.ack(await consumer.receive(wait_ms=WAIT_MS))

                nursery.start_soon(one)
                await send(cluster, 1)


async def test_a_wait_ends_with_a_message_and_takes_none(cluster: Cluster) -> None:
    async with SimpleConsumer(cluster.nameserver, group="g", subscriptions={"orders": "*"}) as consumer:
        await consumer.wait(wait_ms=1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(consumer.wait, WAIT_MS)
            await wait_all_tasks_blocked()
            await send(cluster, 1)
        (message,) = await consumer.receive(wait_ms=0)
        assert message.delivery_attempt == 1


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
            skylark.blocking.Producer(cluster.nameserver) as producer,
            skylark.blocking.SimpleConsumer(cluster.nameserver, group="g", subscriptions={"orders": "*"}) as consumer,
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


LEASES = [Lease("T", "g", "b", queue_id, 0, 1, 2, 0, "0") for queue_id in range(50)]


class Broker:
    """Answers when it is told to."""

    def __init__(self) -> None:
        self.requests: list[Bits] = []
        self.error: SkylarkError | None = None
        self._gate = trio.Event()

    async def send(self, bits: Bits) -> None:
        self.requests.append(dict(bits))
        await self._gate.wait()
        if self.error is not None:
            raise self.error

    def answer(self) -> None:
        self._gate.set()
        self._gate = trio.Event()


async def test_what_gathers_goes_with_the_next_request() -> None:
    broker, done = Broker(), list[int]()
    lane = AckLane(broker.send)
    async with trio.open_nursery() as nursery:

        async def ack(number: int) -> None:
            await lane.ack({LEASES[number // 2]: 1 << number % 2}, nursery)
            done.append(number)

        for number in range(40):
            nursery.start_soon(ack, number)
        await wait_all_tasks_blocked()
        assert len(broker.requests) == AT_ONCE
        broker.answer()
        await wait_all_tasks_blocked()
        assert len(done) == AT_ONCE
        assert len(broker.requests) == AT_ONCE + 1, "all others in one request"
        broker.answer()
    assert sorted(done) == list(range(40))
    acked: Bits = {}
    for request in broker.requests:
        for lease, bits in request.items():
            acked[lease] = acked.get(lease, 0) | bits
    assert acked == {LEASES[number]: 3 for number in range(20)}


async def test_a_request_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simple, "MAX_ENTRIES", 10)
    broker = Broker()
    lane = AckLane(broker.send)
    async with trio.open_nursery() as nursery:
        for lease in LEASES:
            nursery.start_soon(lane.ack, {lease: 1}, nursery)
        while sum(map(len, broker.requests)) < len(LEASES):
            await wait_all_tasks_blocked()
            broker.answer()
        await wait_all_tasks_blocked()
        broker.answer()
    assert max(map(len, broker.requests)) == 10


async def test_an_error_is_raised_in_each_task_concerned() -> None:
    broker, failed = Broker(), list[SkylarkError]()
    broker.error = BrokerError(2, "busy", "b")
    lane = AckLane(broker.send)
    async with trio.open_nursery() as nursery:

        async def ack(lease: Lease) -> None:
            with pytest.raises(BrokerError) as caught:
                await lane.ack({lease: 1}, nursery)
            failed.append(caught.value)

        for lease in LEASES[:10]:
            nursery.start_soon(ack, lease)
        for _ in range(2):
            await wait_all_tasks_blocked()
            broker.answer()
    assert failed == [broker.error] * 10


async def test_who_waits_when_the_client_closes_is_told() -> None:
    broker, told = Broker(), list[str]()
    lane = AckLane(broker.send)
    async with trio.open_nursery() as users:
        async with trio.open_nursery() as client:

            async def ack(lease: Lease) -> None:
                try:
                    await lane.ack({lease: 1}, client)
                except SkylarkError as error:
                    told.append(str(error))

            for lease in LEASES[: AT_ONCE + 2]:
                users.start_soon(ack, lease)
            await wait_all_tasks_blocked()
            client.cancel_scope.cancel()
        broker.answer()
    assert told == ["the client was closed"] * 2
