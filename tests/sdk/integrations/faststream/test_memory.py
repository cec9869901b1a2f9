"""`TestRocketBroker`: messages are chosen and shared as a cluster does it; mocks; what it leaves as it was."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from faststream import Context
from faststream.exceptions import SetupError, SubscriberNotFound

from skylark import MessageExt
from skylark.sdk.integrations.faststream import RocketBroker, RocketMessage, RocketResponse, RocketRouter, annotations
from skylark.sdk.integrations.faststream.testing import MemoryProducer, TestRocketBroker
from tests.sdk.facades.adapter import in_asyncio
from tests.sdk.integrations.faststream.services import LIMIT_S, Place


@pytest.fixture
def broker() -> RocketBroker:
    return RocketBroker(group="memory", logger=None)


@in_asyncio
async def test_tags_and_sql_choose_messages(broker: RocketBroker) -> None:
    seen: list[str] = []

    @broker.subscriber("orders", group="tags", tags="tea || coffee")
    async def tagged(text: str) -> None:
        seen.append(f"tagged {text}")

    @broker.subscriber("orders", group="sql", sql="amount > 5 AND TAGS IS NOT NULL")
    async def expensive(text: str) -> None:
        seen.append(f"expensive {text}")

    async with TestRocketBroker(broker):
        await broker.publish("a", "orders", tags="tea", headers={"amount": 7})
        await broker.publish("b", "orders", tags="milk", headers={"amount": 6})
        await broker.publish("c", "orders", headers={"amount": 8})
        await broker.publish("d", "orders", tags="coffee", headers={"amount": "many"})
        await broker.publish_batch("e", "f", topic="orders", tags="coffee")
    assert sorted(seen) == ["expensive a", "expensive b", "tagged a", "tagged d", "tagged e", "tagged f"]


@in_asyncio
async def test_members_of_a_group_share_messages_and_groups_do_not() -> None:
    brokers = [RocketBroker(group="memory", logger=None) for _ in range(2)]
    seen: list[str] = []
    for number, each in enumerate(brokers):

        def note(text: str, where: str) -> None:
            seen.append(f"{where} {text}")

        each.subscriber("orders")(lambda text, where=f"shared {number}": note(text, where))
        each.subscriber("orders", group=f"own-{number}")(lambda text, where=f"own {number}": note(text, where))
        each.subscriber("orders", group="all", broadcast=True)(lambda text, where=f"all {number}": note(text, where))
    async with TestRocketBroker(*brokers) as (first, _):
        await first.publish("x", "orders")
    assert sorted(seen) == ["all 0 x", "all 1 x", "own 0 x", "own 1 x", "shared 0 x"]


@in_asyncio
async def test_messages_are_those_of_a_broker(broker: RocketBroker) -> None:
    seen: list[RocketMessage] = []

    @broker.subscriber("orders")
    async def handle(message: annotations.RocketMessage, own: annotations.RocketBroker) -> None:
        assert own is broker
        seen.append(message)

    async with TestRocketBroker(broker):
        result = await broker.publish(
            {"number": 7}, "orders", tags="tea", keys=["a", "b"], sharding_key="s", headers={"shop": "north"},
            correlation_id="c", delay=timedelta(hours=1),
        )  # fmt: skip
        await handle.wait_call(3)
        handle.mock.assert_called_once_with({"number": 7})
    (message,) = seen
    raw = message.raw_message
    assert (raw.topic, raw.tags, raw.keys, raw.properties["__SHARDINGKEY"]) == ("orders", "tea", "a b", "s")
    assert message.headers == {"shop": "north", "correlation_id": "c"} and message.content_type == "application/json"
    assert result.msg_id == message.message_id == raw.msg_id and result.queue == raw.queue
    assert (result.queue_offset, result.status.name, len(result.offset_msg_id)) == (0, "SEND_OK", 32)


@in_asyncio
async def test_a_batch_comes_as_one(broker: RocketBroker) -> None:
    @broker.subscriber("orders", batch=True, tags="tea")
    async def handle(numbers: list[int]) -> int:
        return sum(numbers)

    async with TestRocketBroker(broker):
        assert len(await broker.publish_batch(1, 2, 3, topic="orders", tags="tea")) == 3
        handle.mock.assert_called_once_with([1, 2, 3])
        await broker.publish_batch(1, 2, 3, topic="orders", tags="milk")
        handle.mock.assert_called_once_with([1, 2, 3])
        assert await (await broker.request(4, "orders", tags="tea")).decode() == 4


@in_asyncio
async def test_requests_are_answered_by_the_handler_of_their_tag(broker: RocketBroker) -> None:
    @broker.subscriber("prices", tags="tea")
    async def price(number: int, shop: str = Context("message.headers.shop")) -> RocketResponse:
        return RocketResponse(number * 3, headers={"shop": shop})

    async with TestRocketBroker(broker):
        reply = await broker.request(4, "prices", tags="tea", headers={"shop": "north"})
        assert (await reply.decode(), reply.headers["shop"]) == (12, "north")
        with pytest.raises(SubscriberNotFound, match="no handler gets a request in topic prices"):
            await broker.request(4, "prices", tags="milk")


# --- mocks


def _calls(call_mock: Any) -> list[Any]:
    return [call.args[0] for call in call_mock.call_args_list]


@pytest.mark.parametrize("of_router", [False, True], ids=["broker", "router"])
@pytest.mark.parametrize("has_subscriber", [False, True])
@pytest.mark.parametrize("how", ["decorated", "by hand"])
@in_asyncio
async def test_mocks_record_what_handlers_get_and_publishers_publish(
    broker: RocketBroker, how: str, has_subscriber: bool, of_router: bool
) -> None:
    target: Any = RocketRouter() if of_router else broker
    publisher = target.publisher("bills")

    async def make(text: str) -> str:
        if how == "by hand":
            await publisher.publish(f"bill for {text}")
        return f"bill for {text}"

    handle = target.subscriber("orders")(make if how == "by hand" else publisher(make))
    take = target.subscriber("bills")(_ignore) if has_subscriber else None
    if of_router:
        broker.include_router(target)
    async with TestRocketBroker(broker):
        for text in ("tea", "ice"):
            await broker.publish(text, "orders")
        assert _calls(handle.mock) == ["tea", "ice"]
        assert _calls(publisher.mock) == ["bill for tea", "bill for ice"]
        assert take is None or _calls(take.mock) == ["bill for tea", "bill for ice"]
    with pytest.raises(SetupError, match="not under a test broker"):
        assert handle.mock


async def _ignore(text: str) -> None: ...


@in_asyncio
async def test_a_publisher_without_a_subscriber_has_one_meanwhile(broker: RocketBroker) -> None:
    publishers = [broker.publisher("bills"), broker.publisher("orders")]
    broker.subscriber("orders")(_ignore)
    async with TestRocketBroker(broker):
        assert sorted(subscriber.topic for subscriber in broker.subscribers) == ["bills", "orders"]
    assert [subscriber.topic for subscriber in broker.subscribers] == ["orders"] and len(publishers) == 2


# --- errors


def _of_the_handler(broker: RocketBroker) -> None:
    @broker.subscriber("orders")
    async def handle(text: str) -> None:
        raise LookupError(text)


def _of_the_parser(broker: RocketBroker) -> None:
    def parse(raw: MessageExt) -> RocketMessage:
        raise LookupError(raw.body.decode())

    broker.subscriber("orders", parser=parse)(_ignore)


def _of_the_decoder(broker: RocketBroker) -> None:
    def decode(message: RocketMessage) -> str:
        raise LookupError(message.body.decode())

    broker.subscriber("orders", decoder=decode)(_ignore)


@pytest.mark.parametrize("subscribe", [_of_the_handler, _of_the_parser, _of_the_decoder])
@in_asyncio
async def test_an_error_is_raised_where_the_message_is_published(
    broker: RocketBroker, subscribe: Callable[[RocketBroker], None]
) -> None:
    subscribe(broker)
    async with TestRocketBroker(broker):
        with pytest.raises(LookupError, match="tea"):
            await broker.publish("tea", "orders")


@in_asyncio
async def test_a_message_that_no_handler_takes_is_an_error(broker: RocketBroker) -> None:
    broker.subscriber("orders")(filter=lambda message: False)(_ignore)
    async with TestRocketBroker(broker):
        with pytest.raises(SubscriberNotFound):
            await broker.publish("tea", "orders")


# --- what is left


@in_asyncio
async def test_the_broker_is_as_it_was_afterwards(broker: RocketBroker) -> None:
    broker.subscriber("orders")(_ignore)
    producer, methods = broker.config.producer, (broker.start, broker.stop, broker.ping)
    async with TestRocketBroker(broker):
        assert isinstance(broker.config.producer, MemoryProducer) and await broker.ping()
        assert (broker.start, broker.stop, broker.ping) != methods
    assert broker.config.producer is producer and not broker.config.is_in_memory
    assert (broker.start, broker.stop, broker.ping) == methods and not await broker.ping()


@in_asyncio
async def test_a_running_broker_keeps_its_connection(in_cluster: Place) -> None:
    broker, topic = in_cluster.broker(), in_cluster.topic()
    async with in_cluster.running(broker):
        client = broker.client
        async with TestRocketBroker(broker):
            await broker.publish("into memory", topic)
            assert broker._connection is None
        assert broker.client is client and await broker.ping()
        assert (await broker.publish("to the cluster", topic)).queue_offset == 0


@in_asyncio
async def test_with_a_real_broker_there_are_only_mocks(in_cluster: Place) -> None:
    broker, orders, bills = in_cluster.broker(), in_cluster.topic(), in_cluster.topic()
    publisher = broker.publisher(bills)

    @broker.subscriber(orders)
    async def handle(text: str) -> None:
        await publisher.publish(f"bill for {text}")

    take = broker.subscriber(bills)(_ignore)
    async with asyncio.timeout(LIMIT_S):
        async with TestRocketBroker(broker, with_real=True):
            assert (await broker.publish("tea", orders)).queue.broker_name == "broker-a"
            await handle.wait_call(LIMIT_S)
            await take.wait_call(LIMIT_S)
            assert _calls(handle.mock) == ["tea"] and _calls(publisher.mock) == ["bill for tea"]
        await broker.stop()


@in_asyncio
async def test_a_message_has_its_own_priority_or_that_of_its_publisher(broker: RocketBroker) -> None:
    seen: list[tuple[int | None, str | None]] = []

    @broker.subscriber("orders")
    async def handle(message: annotations.RocketMessage) -> None:
        raw = message.raw_message
        seen.append((raw.priority, raw.properties.get("__SHARDINGKEY")))

    publisher = broker.publisher("orders", priority=5)
    async with TestRocketBroker(broker):
        await broker.publish("a", "orders", priority=9)
        await broker.publish_batch("b", topic="orders", priority=8)
        await publisher.publish("c")
        await publisher.publish("d", priority=0)
        # A key and a priority exclude each other: the message's own choice counts.
        await publisher.publish("e", sharding_key="k")
        await handle.wait_call(3)
    assert seen == [(9, None), (8, None), (5, None), (0, None), (None, "k")]
