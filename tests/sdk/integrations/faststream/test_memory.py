"""`TestRocketBroker`, beyond FastStream's own test cases: messages are chosen and shared as a cluster does it."""

from datetime import timedelta

import pytest
from faststream import Context
from faststream.exceptions import SubscriberNotFound

from sdk.integrations.faststream import RocketBroker, RocketMessage, RocketResponse, annotations
from sdk.integrations.faststream.testing import TestRocketBroker
from tests.sdk.facades.adapter import in_asyncio


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


@in_asyncio
async def test_the_broker_is_as_it_was_afterwards(broker: RocketBroker) -> None:
    @broker.subscriber("orders")
    async def handle(text: str) -> None: ...

    producer = broker.config.producer
    async with TestRocketBroker(broker):
        assert broker.config.producer is not producer
    assert broker.config.producer is producer and not broker.config.is_in_memory
