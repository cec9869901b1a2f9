"""Dependencies and context of handlers."""

from collections.abc import Iterator
from typing import Annotated, Any

import pytest
from faststream import Context, ContextRepo, Depends, FastStream
from pydantic import BaseModel

from skylark.sdk.integrations.faststream import RocketRouter, annotations
from tests.sdk.facades.adapter import in_asyncio
from tests.sdk.integrations.faststream.services import Done, Place, Seen


class Box(BaseModel):
    size: int


def number() -> str:
    return "100"


@pytest.mark.parametrize(
    ("options", "expected"), [({}, (Box(size=1), 100)), ({"serializer": None}, ({"size": 1}, "100"))]
)
@in_asyncio
async def test_values_and_dependencies_are_converted_unless_there_is_no_serializer(
    place: Place, options: dict[str, Any], expected: tuple[Any, Any]
) -> None:
    broker, topic, got = place.broker(**options), place.topic(), Seen()

    @broker.subscriber(topic)
    async def handle(box: Box, from_number: int = Depends(number)) -> None:
        got.append((box, from_number))

    async with place.running(broker):
        await broker.publish({"size": 1}, topic)
        await got.reaches(1)
    assert got == [expected]


@in_asyncio
async def test_without_types_a_handler_gets_the_value_alone(place: Place) -> None:
    broker, topic, got = place.broker(apply_types=False), place.topic(), Seen()

    @broker.subscriber(topic)
    async def handle(box: Box) -> None:
        got.append(box)

    async with place.running(broker):
        await broker.publish({"size": 1}, topic)
        await got.reaches(1)
    assert got == [{"size": 1}]


@in_asyncio
async def test_dependencies_of_all_levels_run_before_the_handler_and_end_after_it(place: Place) -> None:
    noted = Seen()

    def of(name: str) -> Any:
        def depend() -> Iterator[str]:
            noted.append(f"begin {name}")
            yield name
            noted.append(f"end {name}")

        return Depends(depend)

    done = Done()
    broker, router = (
        place.broker(dependencies=[of("broker")], middlewares=[done]),
        RocketRouter(dependencies=[of("router")]),
    )
    topic = place.topic()

    @router.subscriber(topic, dependencies=[of("subscriber")])
    async def handle(text: str, own: str = of("handler")) -> None:
        noted.append(f"{text} with {own}")

    broker.include_router(router)
    async with place.running(broker):
        await broker.publish("tea", topic)
        await done.reaches(1)
    assert noted.index("tea with handler") == 4
    assert sorted(noted[:4]) == sorted(f"begin {name}" for name in ("broker", "router", "subscriber", "handler"))
    assert sorted(noted[5:]) == sorted(f"end {name}" for name in ("broker", "router", "subscriber", "handler"))


@in_asyncio
async def test_a_dependency_takes_arguments_of_the_message(place: Place) -> None:
    broker, topic, got = place.broker(), place.topic(), Seen()

    def total(price: int, count: int = 1) -> int:
        return price * count

    @broker.subscriber(topic)
    async def handle(item: str, cost: Annotated[int, Depends(total)]) -> None:
        got.append((item, cost))

    async with place.running(broker):
        await broker.publish({"item": "tea", "price": 3, "count": 4}, topic)
        await got.reaches(1)
    assert got == [("tea", 12)]


@in_asyncio
async def test_the_context_has_the_broker_the_message_and_its_parts(place: Place) -> None:
    broker, topic, got = place.broker(), place.topic(), Seen()

    @broker.subscriber(topic)
    async def handle(
        text: str,
        own: annotations.RocketBroker,
        message: annotations.RocketMessage,
        context: annotations.ContextRepo,
        by_name: Annotated[Any, Context("broker")],
        shop: str = Context("message.headers.shop"),
        missing: str = Context("message.headers.city", default="nowhere"),
    ) -> None:
        got.append((own is by_name is broker, message.body, context.resolve("message") is message, shop, missing))

    async with place.running(broker):
        await broker.publish("tea", topic, headers={"shop": "north"})
        await got.reaches(1)
    assert got == [(True, b"tea", True, "north", "nowhere")]


@in_asyncio
async def test_brokers_of_an_application_share_its_context_and_keep_their_own(place: Place) -> None:
    brokers = [place.broker(context=ContextRepo({"shop": shop})) for shop in ("north", "south")]
    topics, got = [place.topic() for _ in brokers], Seen()
    for broker, topic in zip(brokers, topics, strict=True):

        @broker.subscriber(topic)
        async def handle(currency: str = Context(), shop: str = Context()) -> None:
            got.append((currency, shop))

    async with place.running(*brokers, app=FastStream(*brokers, context=ContextRepo({"currency": "EUR"}))):
        for count, (broker, topic) in enumerate(zip(brokers, topics, strict=True), 1):
            await broker.publish("tea", topic)
            await got.reaches(count)
    assert got == [("EUR", "north"), ("EUR", "south")]
