"""What is published, and what handlers get of it; where results go. In memory and against a cluster."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
from faststream import Response
from faststream.response import ensure_response
from pydantic import BaseModel

from skylark.sdk.integrations.faststream import RocketBroker, RocketPublishCommand, annotations
from tests.sdk.facades.adapter import in_asyncio
from tests.sdk.integrations.faststream.services import Done, Place, Seen, collect


@dataclass
class Item:
    name: str


class Box(BaseModel):
    name: str


NOON = datetime(2026, 2, 3, 12, tzinfo=UTC)

# name: (published, annotation of the handler's argument, what the handler gets)
VALUES: dict[str, tuple[Any, Any, Any]] = {
    "text": ("tea", str, "tea"),
    "empty text": ("", str, ""),
    "bytes": (b"\xff\x00", bytes, b"\xff\x00"),
    "integer": (7, int, 7),
    "integer as float": (7, float, 7.0),
    "float": (0.5, float, 0.5),
    "boolean": (False, bool, False),
    "list": ([1, 2], list[int], [1, 2]),
    "mapping": ({"tea": 1}, dict[str, int], {"tea": 1}),
    "time": (NOON, datetime, NOON),
    "dataclass": (Item("tea"), Item, Item("tea")),
    "dataclass as mapping": (Item("tea"), dict, {"name": "tea"}),
    "mapping as dataclass": ({"name": "tea"}, Item, Item("tea")),
    "JSON as dataclass": (b'{"name": "tea"}', Item, Item("tea")),
    "model": (Box(name="tea"), Box, Box(name="tea")),
    "model as mapping": (Box(name="tea"), dict, {"name": "tea"}),
    "mapping as model": ({"name": "tea"}, Box, Box(name="tea")),
    "JSON as model": (b'{"name": "tea"}', Box, Box(name="tea")),
}


@in_asyncio
async def test_a_value_comes_as_its_handler_annotates_it(place: Place) -> None:
    """One subscriber for all rows of the table: the correlation id chooses the handler."""
    broker, topic, got = place.broker(), place.topic(), Seen()
    subscriber = broker.subscriber(topic)

    def subscribe(name: str, annotation: Any) -> None:
        @subscriber(filter=lambda message: message.correlation_id == name)
        async def handle(value: annotation) -> None:
            got.append((name, value))

    for name, (_, annotation, _) in VALUES.items():
        subscribe(name, annotation)
    async with place.running(broker):
        for name, (published, _, _) in VALUES.items():
            await broker.publish(published, topic, correlation_id=name)
        await got.reaches(len(VALUES))
    assert dict(got) == {name: expected for name, (_, _, expected) in VALUES.items()}
    assert [type(value) for value in dict(sorted(got)).values()] == [type(VALUES[name][2]) for name in sorted(VALUES)]


@in_asyncio
async def test_arguments_are_taken_from_objects_and_lists(place: Place) -> None:
    broker, got = place.broker(), Seen()
    named, placed, none = place.topic(), place.topic(), place.topic()

    @broker.subscriber(named)
    async def by_name(number: int, item: str = "water") -> None:
        got.append((number, item))

    @broker.subscriber(placed)
    async def by_place(first: int, *others: tuple[int, ...]) -> None:
        got.append((first, others))

    @broker.subscriber(none)
    async def without() -> None:
        got.append(())

    async with place.running(broker):
        await broker.publish({"number": 7.0, "item": "tea"}, named)
        await broker.publish({"number": 8}, named)
        await got.reaches(2)
        await broker.publish([1, 2.0, 3], placed)
        await got.reaches(3)
        await broker.publish("whatever", none)
        await broker.publish(None, none)
        await got.reaches(5)
    assert got == [(7, "tea"), (8, "water"), (1, (2, 3)), (), ()]


@in_asyncio
async def test_a_response_has_headers_and_a_correlation_id(place: Place) -> None:
    broker, got = place.broker(id_generator=lambda: "made here"), Seen()
    asked, answered = place.topic(), place.topic()

    @broker.subscriber(asked)
    @broker.publisher(answered)
    async def answer(number: int) -> Response:
        return Response(number, headers={"shop": "north"}, correlation_id="own" if number else None)

    @broker.subscriber(answered)
    async def note(message: annotations.RocketMessage) -> None:
        got.append((message.body, message.headers["shop"], message.correlation_id))

    async with place.running(broker):
        await broker.publish(1, asked)
        await broker.publish(0, asked)
        await broker.publish(0, asked, correlation_id="given")
        await got.reaches(3)
    assert got == [(b"1", "north", "own"), (b"0", "north", "made here"), (b"0", "north", "given")]


# --- where results go


async def _echo(text: str) -> str:
    return text


async def _list(text: str) -> list[str]:
    return [text]


def _by_hand(broker: RocketBroker, asked: str, own: str, given: str = "") -> None:
    publisher = broker.publisher(own)

    @broker.subscriber(asked)
    async def handle(text: str) -> None:
        await publisher.publish(text, given)


# How the handler of the first topic publishes to the second.
RESULTS: dict[str, Callable[[RocketBroker, str, str], Any]] = {
    "decorated below": lambda broker, asked, answered: broker.subscriber(asked)(broker.publisher(answered)(_echo)),
    "decorated above": lambda broker, asked, answered: broker.publisher(answered)(broker.subscriber(asked)(_echo)),
    "in a batch": lambda broker, asked, answered: broker.subscriber(asked)(
        broker.publisher(answered, batch=True)(_list)
    ),
    "by hand": _by_hand,
    "by hand, elsewhere": lambda broker, asked, answered: _by_hand(broker, asked, "not-used", answered),
}


@in_asyncio
async def test_a_result_is_published(place: Place) -> None:
    broker, topics, got = place.broker(), {}, {}
    for how, subscribe in RESULTS.items():
        topics[how], answered = place.topic(), place.topic()
        subscribe(broker, topics[how], answered)
        got[how] = collect(broker, answered)
    async with place.running(broker):
        for how, asked in topics.items():
            await broker.publish("tea", asked)
            await got[how].reaches(1)
    assert got == {how: ["tea"] for how in RESULTS}


@in_asyncio
async def test_a_result_has_several_publishers_and_a_publisher_several_handlers(place: Place) -> None:
    broker, first, second = place.broker(), place.topic(), place.topic()
    shared, own = place.topic(), place.topic()
    publisher = broker.publisher(shared)

    @publisher
    @broker.subscriber(first)
    @broker.publisher(own)
    async def handle(text: str) -> str:
        return f"first {text}"

    publisher(broker.subscriber(second)(_echo))
    of_both, of_one = collect(broker, shared), collect(broker, own)
    async with place.running(broker):
        await broker.publish("tea", first)
        await of_both.reaches(1)
        await broker.publish("tea", second)
        await of_both.reaches(2)
        await of_one.reaches(1)
    assert of_both == ["first tea", "tea"] and of_one == ["first tea"]


@in_asyncio
async def test_a_reply_goes_to_the_topic_that_the_message_names(place: Place) -> None:
    done = Done()
    broker, asked, silent, replies = place.broker(middlewares=[done]), place.topic(), place.topic(), place.topic()

    @broker.subscriber(asked)
    async def answer(text: str) -> str:
        return f"answer to {text}"

    @broker.subscriber(silent, no_reply=True)
    async def consume(text: str) -> str:
        return f"nobody gets {text}"

    publisher = broker.publisher(asked, reply_to=replies)
    got = collect(broker, replies)
    async with place.running(broker):
        await broker.publish("a", silent, reply_to=replies)
        await done.reaches(1)
        await broker.publish("b", asked, reply_to=replies)
        await got.reaches(1)
        await publisher.publish("c")
        await got.reaches(2)
    assert got == ["answer to b", "answer to c"]


@in_asyncio
async def test_the_publisher_of_another_broker_publishes_there(place: Place) -> None:
    one, other = place.broker(), place.broker(group="other")
    asked, answered = place.topic(), place.topic()

    one.subscriber(asked)(other.publisher(answered)(_echo))
    here, there = collect(one, answered), collect(other, answered)
    async with place.running(one, other):
        await one.publish("tea", asked)
        await here.reaches(1)
        await there.reaches(1)
    assert here == there == ["tea"]


@in_asyncio
async def test_a_publisher_may_be_made_while_the_broker_runs(place: Place) -> None:
    broker, topic = place.broker(), place.topic()
    got = collect(broker, topic)
    async with place.running(broker):
        await broker.publisher(topic).publish("tea")
        await got.reaches(1)
        await broker.publisher(topic, batch=True).publish(["milk", "ice"])
        await got.reaches(3)
    assert got[:1] == ["tea"] and sorted(got[1:]) == ["ice", "milk"]


@in_asyncio
async def test_messages_of_a_batch_come_one_by_one_or_together(place: Place) -> None:
    broker, topic, together = place.broker(), place.topic(), place.topic()
    got, batches = collect(broker, topic), Seen()

    @broker.subscriber(together, batch=True)
    async def handle(values: list[int], message: annotations.RocketMessage) -> None:
        for value, headers in zip(values, message.batch_headers, strict=True):
            batches.append((value, headers["shop"]))

    async with place.running(broker):
        sent = await broker.publish_batch("a", "b", topic=topic, sharding_key="one")
        await got.reaches(2)
        await broker.publish_batch(1, 2, topic=together, sharding_key="one", headers={"shop": "north"})
        await batches.reaches(2)
    assert got == ["a", "b"] and [result.queue_offset for result in sent] == [0, 1]
    assert batches == [(1, "north"), (2, "north")]


# --- commands


@pytest.mark.parametrize(
    ("returned", "bodies"),
    [(None, ()), ([], ()), ("ab", ("ab",)), ("", ("",)), (b"", (b"",)), ([1, 2], (1, 2)), ((0, None), (0, None))],
)
def test_a_batch_is_a_body_for_each_element_of_what_is_returned(returned: Any, bodies: tuple[Any, ...]) -> None:
    command = RocketPublishCommand.from_cmd(ensure_response(returned).as_publish_command(), batch=True)
    assert command.batch_bodies == bodies


def test_a_command_is_made_of_any_response() -> None:
    plain = RocketPublishCommand.from_cmd(ensure_response([1, 2]).as_publish_command())
    assert (plain.body, plain.headers) == ([1, 2], {})
    whole = RocketPublishCommand.from_cmd(Response(1, headers={"a": 2}, correlation_id="c").as_publish_command())
    assert (whole.body, whole.headers, whole.correlation_id) == (1, {"a": 2}, "c")


@pytest.mark.parametrize(("bodies", "first", "others"), [((1, 2, 3), 1, (2, 3)), ((1,), 1, ()), ((), None, ())])
def test_a_middleware_may_replace_the_bodies_of_a_command(bodies: Any, first: Any, others: Any) -> None:
    command = RocketPublishCommand.from_cmd(ensure_response(["old", "older"]).as_publish_command(), batch=True)
    command.batch_bodies = bodies
    assert (command.batch_bodies, command.body, command.extra_bodies) == (bodies, first, others)
