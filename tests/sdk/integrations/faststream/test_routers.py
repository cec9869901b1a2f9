"""Routers: prefixes, what they hand on to their subscribers and publishers, and where they may be included."""

import asyncio
from collections.abc import Iterable
from itertools import product
from typing import Annotated, Any

import pytest
from faststream import AckPolicy, BaseMiddleware, Context
from faststream.message.message import AckStatus
from faststream.specification.asyncapi import AsyncAPI

from skylark.sdk.integrations.faststream import RocketBroker, RocketRoute, RocketRouter, RoutePublisher, annotations
from skylark.sdk.integrations.faststream.testing import TestRocketBroker
from tests.sdk.facades.adapter import in_asyncio
from tests.sdk.integrations.faststream.services import INNER, LIMIT_S, OUTER, Done, Place, Seen, collect

# --- prefixes


# The prefixes of a router, of its inclusion, and of a router in it.
PREFIXES = [
    (OUTER + INNER, "", ""),
    ("", OUTER + INNER, ""),
    (INNER, OUTER, ""),
    (OUTER, "", INNER),
    ("", OUTER, INNER),
]


@in_asyncio
async def test_prefixes_come_before_the_topics_of_subscribers_and_publishers(place: Place) -> None:
    broker, asked, got = place.broker(), [], []
    for of_router, of_inclusion, of_inner in PREFIXES:
        outer, inner = RocketRouter(prefix=of_router), RocketRouter(prefix=of_inner)
        outer.include_routers(inner)
        broker.include_router(outer, prefix=of_inclusion)
        topics = [place.topic() for _ in range(3)]
        asked.append(topics[0])
        got += [collect(broker, topics[1]), _answer(inner, *(topic.removeprefix(OUTER + INNER) for topic in topics))]
    async with place.running(broker):
        for topic in asked:
            await broker.publish("tea", topic)
        for seen in got:
            await seen.reaches(1)
    assert got == [["decorated"], ["by hand"]] * len(PREFIXES)


def _answer(router: RocketRouter, asked: str, decorated: str, by_hand: str) -> Seen:
    publisher = router.publisher(by_hand)

    @router.subscriber(asked)
    @router.publisher(decorated)
    async def handle(text: str) -> str:
        await publisher.publish("by hand")
        return "decorated"

    return collect(router, by_hand)


@in_asyncio
async def test_routers_and_their_handlers_may_be_arguments(place: Place) -> None:
    asked, answered = place.topic(), place.topic()

    async def handle(text: str) -> str:
        return f"answer to {text}"

    publishers = [RoutePublisher(answered.removeprefix(OUTER + INNER))]
    route = RocketRoute(handle, asked.removeprefix(OUTER + INNER), publishers=publishers)
    inner = RocketRouter(prefix=INNER, handlers=[route])
    broker = place.broker(routers=[RocketRouter(prefix=OUTER, routers=[inner])])
    got = collect(broker, answered)
    async with place.running(broker):
        await broker.publish("tea", asked)
        await got.reaches(1)
    assert got == ["answer to tea"]


def test_prefixes_add_up_along_the_way_to_the_broker() -> None:
    broker, outer, plain, inner = RocketBroker(), RocketRouter(prefix="a-"), RocketRouter(), RocketRouter(prefix="c-")
    topics = [(each.subscriber("t"), each.publisher("t")) for each in (outer, plain, inner)]
    plain.include_router(inner, prefix="b-")
    outer.include_router(plain)
    broker.include_router(outer)
    assert [subscriber.topic for subscriber, _ in topics] == ["a-t", "a-t", "a-b-c-t"]
    assert [publisher.topic for _, publisher in topics] == ["a-t", "a-t", "a-b-c-t"]


# --- what they hand on


def _middleware(name: str, noted: Seen) -> type[BaseMiddleware]:
    class Noting(BaseMiddleware):
        async def consume_scope(self, call_next: Any, message: Any) -> Any:
            noted.append(f"consume {name}")
            return await call_next(message)

        async def publish_scope(self, call_next: Any, command: Any) -> Any:
            noted.append(f"publish {name}")
            return await call_next(command)

    return Noting


@in_asyncio
async def test_middlewares_run_from_the_broker_inwards(place: Place) -> None:
    noted, topic = Seen(), place.topic()
    broker, outer, inner = (
        made(middlewares=[_middleware(name, noted)])
        for made, name in ((place.broker, "broker"), (RocketRouter, "outer"), (RocketRouter, "inner"))
    )
    publisher, got = inner.publisher(topic), collect(inner, topic)
    outer.include_router(inner, middlewares=[_middleware("inclusion", noted)])
    broker.include_router(outer)
    async with place.running(broker):
        await publisher.publish("tea")
        await got.reaches(1)
    order = ("broker", "outer", "inclusion", "inner")
    assert noted == [f"{what} {name}" for what in ("publish", "consume") for name in order]


NACK, ACK, MANUAL = AckPolicy.NACK_ON_ERROR, AckPolicy.ACK, AckPolicy.MANUAL


@in_asyncio
async def test_the_policy_nearest_to_a_subscriber_counts() -> None:
    """Routers are usually filled before a broker includes them."""
    for of_broker, of_router, own in product((None, ACK), (None, MANUAL), (None, AckPolicy.ACK_FIRST)):
        broker, router = RocketBroker(group="own", **_policy(of_broker)), RocketRouter(**_policy(of_router))
        subscriber = router.subscriber("orders", **_policy(own))
        subscriber(_ignore)
        broker.include_router(router)
        async with TestRocketBroker(broker):
            assert subscriber.ack_policy is (own or of_router or of_broker or NACK)


async def _ignore(text: str) -> None: ...


def _policy(policy: AckPolicy | None) -> dict[str, Any]:
    return {} if policy is None else {"ack_policy": policy}


@in_asyncio
async def test_what_a_router_handles_is_acknowledged_by_hand_when_its_broker_says_so(place: Place) -> None:
    done, messages = Done(), []
    broker, router, topic = place.broker(ack_policy=MANUAL, middlewares=[done]), RocketRouter(), place.topic()

    @router.subscriber(topic)
    async def handle(message: annotations.RocketMessage) -> None:
        messages.append(message)

    broker.include_router(router)
    async with place.running(broker):
        await broker.publish("tea", topic)
        await done.reaches(1)
        assert [message.committed for message in messages] == [None]
        await messages[0].ack()


@in_asyncio
async def test_what_a_router_pulls_is_acknowledged_first_when_its_broker_says_so(in_cluster: Place) -> None:
    broker, router, topic = in_cluster.broker(ack_policy=AckPolicy.ACK_FIRST), RocketRouter(), in_cluster.topic()
    subscriber = router.subscriber(topic)
    broker.include_router(router)
    async with asyncio.timeout(LIMIT_S), broker:
        await broker.publish("tea", topic)
        message = await subscriber.get_one(timeout=LIMIT_S)
        assert message is not None and message.committed is AckStatus.ACKED
        await subscriber.stop()


def test_a_router_has_the_producer_and_the_time_to_stop_of_its_broker() -> None:
    broker, outer, inner = RocketBroker(graceful_timeout=7), RocketRouter(), RocketRouter()
    publishers = [each.publisher("t") for each in (outer, inner)]
    assert publishers[0]._outer_config.producer is not publishers[1]._outer_config.producer
    outer.include_router(inner)
    broker.include_router(outer)
    assert {publisher._outer_config.producer for publisher in publishers} == {broker.config.producer}
    assert inner.subscriber("t")._outer_config.graceful_timeout == 7


# --- where they may be included


def test_a_router_is_part_of_one_broker() -> None:
    router, first, second = RocketRouter(), RocketBroker(), RocketBroker()
    subscriber = router.subscriber("t")
    first.include_router(router)
    first.include_router(router)
    assert router.parent is first and list(first.subscribers) == [subscriber]
    second.include_router(router)
    assert router.parent is second and list(second.subscribers) == [subscriber]
    assert list(first.subscribers) == [] and router not in first.routers


@in_asyncio
async def test_the_handlers_of_a_router_work_in_each_broker_that_includes_it() -> None:
    router, seen = RocketRouter(), []

    @router.subscriber("orders")
    async def handle(text: str, broker: Annotated[Any, Context()]) -> None:
        seen.append((text, broker))

    brokers = [RocketBroker(group=f"own-{number}", logger=None) for number in range(2)]
    for broker in brokers:
        broker.include_router(router)
        async with TestRocketBroker(broker):
            await broker.publish("tea", "orders")
    assert seen == [("tea", broker) for broker in brokers]


# --- what is shown of them


def _channels(broker: RocketBroker) -> Iterable[str]:
    return list(AsyncAPI(broker, schema_version="3.0.0").to_specification().to_jsonable()["channels"])


# What a router, its inclusion, and a subscriber or publisher say of their being in the schema; and whether it is.
IN_SCHEMA = [
    (None, None, True, True),
    (None, None, False, False),
    (False, None, True, False),
    (True, None, True, True),
    (None, False, True, False),
    (True, False, True, False),
    (False, False, True, False),
    (None, True, True, True),
]


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize(("of_router", "of_inclusion", "own", "is_shown"), IN_SCHEMA)
def test_a_router_may_be_left_out_of_the_schema(
    of_router: bool | None, of_inclusion: bool | None, own: bool, is_shown: bool, nested: bool
) -> None:
    broker, router, inner = RocketBroker(), RocketRouter(include_in_schema=of_router), RocketRouter()
    if nested:
        router.include_router(inner)
    target = inner if nested else router

    @target.subscriber("orders", include_in_schema=own)
    @target.publisher("bills", include_in_schema=own)
    async def handle(text: str) -> str:
        return text

    broker.include_router(router, include_in_schema=of_inclusion)
    assert sorted(_channels(broker)) == (["bills:Publisher", "orders:Handle"] if is_shown else [])
