"""Middlewares: in which order they run, what they see and change, and what becomes of exceptions."""

from collections.abc import Callable
from typing import Any

import pytest
from faststream import BaseMiddleware, ExceptionMiddleware
from faststream.exceptions import SkipMessage

from skylark.sdk.integrations.faststream import RocketRouter, annotations
from tests.sdk.facades.adapter import in_asyncio
from tests.sdk.integrations.faststream.services import Done, Place, Seen, collect


def noting(name: str, noted: Seen) -> type[BaseMiddleware]:
    """A middleware that notes each of its calls."""

    class Noting(BaseMiddleware):
        async def on_receive(self) -> None:
            noted.append(f"receive {name}")

        async def consume_scope(self, call_next: Any, message: Any) -> Any:
            noted.append(f"consume {name} {await message.decode()}")
            try:
                return await call_next(message)
            except LookupError as error:
                noted.append(f"{name} sees {error.args[0]}")
                raise

        async def publish_scope(self, call_next: Any, command: Any) -> Any:
            noted.append(f"publish {name} {command.body}")
            return await call_next(command)

        async def after_processed(self, *raised: Any) -> bool | None:
            noted.append(f"end {name}")
            return await super().after_processed(*raised)

    return Noting


@in_asyncio
async def test_a_message_passes_from_the_outer_middleware_to_the_inner_and_back(place: Place) -> None:
    noted = Seen()
    broker, topic = place.broker(middlewares=[noting("outer", noted), noting("inner", noted)]), place.topic()

    @broker.subscriber(topic)
    async def handle(text: str) -> None:
        noted.append(f"handle {text}")

    async with place.running(broker):
        await broker.publish("tea", topic)
        await noted.reaches(9)
    assert noted == [
        "publish outer tea", "publish inner tea", "receive outer", "receive inner",
        "consume outer tea", "consume inner tea", "handle tea", "end inner", "end outer",
    ]  # fmt: skip


@in_asyncio
async def test_a_middleware_that_is_added_later_holds_for_all_subscribers(place: Place) -> None:
    noted, first, second = Seen(), place.topic(), place.topic()
    broker = place.broker()
    got = collect(broker, first)
    broker.add_middleware(noting("late", noted))
    got_too = collect(broker, second)
    async with place.running(broker):
        await broker.publish("a", first)
        await noted.reaches(4)
        await broker.publish("b", second)
        await noted.reaches(8)
    assert noted == [*_passes_late("a"), *_passes_late("b")]
    assert (got, got_too) == (["a"], ["b"])


def _passes_late(text: str) -> list[str]:
    return [f"publish late {text}", "receive late", f"consume late {text}", "end late"]


@in_asyncio
async def test_a_middleware_sees_what_the_handler_raises(place: Place) -> None:
    noted = Seen()
    broker, topic = place.broker(middlewares=[noting("outer", noted), noting("inner", noted)]), place.topic()

    @broker.subscriber(topic)
    async def handle(text: str) -> None:
        raise LookupError(text)

    async with place.running(broker):
        if place.is_in_memory:
            with pytest.raises(LookupError, match="tea"):
                await broker.publish("tea", topic)
        else:
            await broker.publish("tea", topic)
        await noted.reaches(10)
    assert noted[6:10] == ["inner sees tea", "outer sees tea", "end inner", "end outer"]


class Doubling(BaseMiddleware):
    """Doubles what is published."""

    async def publish_scope(self, call_next: Any, command: Any) -> Any:
        command.body *= 2
        return await call_next(command)


@in_asyncio
async def test_a_middleware_may_change_whatever_is_published(place: Place) -> None:
    """Publications, results, replies and batches."""
    broker = place.broker(middlewares=[Doubling])
    asked, replies, others = place.topic(), place.topic(), [place.topic(), place.topic()]

    @broker.subscriber(asked)
    @broker.publisher(others[0])
    @broker.publisher(others[1])
    async def handle(text: str) -> str:
        return text

    got = [collect(broker, topic) for topic in (replies, *others)]
    async with place.running(broker):
        await broker.publish("a", asked, reply_to=replies)
        for seen in got:
            await seen.reaches(1)
        await broker.publisher(replies).publish("b")
        await got[0].reaches(2)
    assert got == [["aaaa", "bb"], ["aaaa"], ["aaaa"]]


@in_asyncio
async def test_a_middleware_may_drop_bodies_of_a_batch(place: Place) -> None:
    class Dropping(BaseMiddleware):
        async def publish_scope(self, call_next: Any, command: Any) -> Any:
            command.batch_bodies = [body for body in command.batch_bodies if body != "bad"]
            return await call_next(command)

    broker, topic = place.broker(middlewares=[Dropping]), place.topic()
    got = collect(broker, topic)
    async with place.running(broker):
        assert len(await broker.publish_batch("a", "bad", "b", topic=topic, sharding_key="one")) == 2
        await got.reaches(2)
    assert got == ["a", "b"]


# --- exceptions


class Outer(Exception):
    pass


class Inner(Outer):
    pass


def _answers(text: str) -> Callable[[Exception], Any]:
    async def handle(error: Exception) -> str:
        return text

    return handle


async def _raises_again(error: Exception) -> str:
    raise error


async def _skips(error: Exception) -> str:
    raise SkipMessage


# name: (handlers of exceptions whose result is published, what the handler raises, what is published)
EXCEPTIONS: dict[str, tuple[dict[type[Exception], Any], type[Exception], str | None]] = {
    "its result is published": ({Outer: _answers("outer")}, Outer, "outer"),
    "a subclass is the same": ({Outer: _answers("outer")}, Inner, "outer"),
    "the nearest class counts": ({Outer: _answers("outer"), Inner: _answers("inner")}, Inner, "inner"),
    "each class has its own": ({KeyError: _answers("key"), ValueError: _answers("value")}, ValueError, "value"),
    "the handler skips": ({Outer: _skips}, Outer, None),
    "the handler raises": ({Outer: _raises_again}, Outer, None),
    "nobody handles it": ({Inner: _answers("inner")}, Outer, None),
    "a skip is no exception": ({Exception: _answers("any")}, SkipMessage, None),
}


@in_asyncio
async def test_an_exception_becomes_a_result(place: Place) -> None:
    """One topic for each row of the table, and for its results."""
    done, topics, got = Done(), {}, {}
    broker = place.broker(middlewares=[done])
    for name, (handlers, raised, _) in EXCEPTIONS.items():
        router = RocketRouter(middlewares=[ExceptionMiddleware(publish_handlers=handlers)])
        topics[name], answered = place.topic(), place.topic()
        router.subscriber(topics[name])(router.publisher(answered)(_raiser(raised)))
        broker.include_router(router)
        got[name] = collect(broker, answered)
    expected = {name: [] if result is None else [result] for name, (_, _, result) in EXCEPTIONS.items()}
    async with place.running(broker):
        for topic in topics.values():
            try:
                await broker.publish("tea", topic)
            except Outer:
                assert place.is_in_memory
        await done.reaches(len(EXCEPTIONS) + sum(map(len, expected.values())))
    assert got == expected


def _raiser(error: type[Exception]) -> Callable[[str], Any]:
    async def handle(text: str) -> str:
        raise error

    return handle


@pytest.mark.parametrize("at", ["decoder", "handler"])
@in_asyncio
async def test_an_exception_that_is_handled_consumes_the_message(place: Place, at: str) -> None:
    handled, middleware = Seen(), ExceptionMiddleware()

    async def decode(message: Any, original: Any) -> Any:
        if at == "decoder":
            raise Inner(at)
        return await original(message)

    @middleware.add_handler(Outer)
    async def note(error: Outer, message: annotations.RocketMessage) -> None:
        handled.append((error.args[0], message.body))

    broker, topic = place.broker(middlewares=[middleware], decoder=decode), place.topic()

    @broker.subscriber(topic)
    async def handle(text: str) -> None:
        raise Outer(at)

    async with place.running(broker):
        await broker.publish("tea", topic)
        await handled.reaches(1)
    assert handled == [(at, b"tea")]
