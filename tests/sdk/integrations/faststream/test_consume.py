"""Which handlers are called with a message, and what becomes of the message; messages one by one; requests."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from faststream import AckPolicy, BaseMiddleware, FastStream, Response
from faststream.exceptions import AckMessage, HandlerException, NackMessage, RejectMessage, SkipMessage, StopConsume
from faststream.message import StreamMessage
from faststream.message.message import AckStatus

from skylark import RetryPolicy
from skylark.sdk.integrations.faststream import RocketBroker, RocketMessage, RocketRouter, annotations
from skylark.sdk.integrations.faststream.subscriber import RocketSubscriber
from tests.sdk.facades.adapter import in_asyncio
from tests.sdk.integrations.faststream.services import LIMIT_S, Done, Place, Seen, collect

# --- handlers


@in_asyncio
async def test_a_handler_may_have_several_topics_and_a_broker_several_handlers(place: Place) -> None:
    broker, seen = place.broker(), Seen()
    first, second, third = place.topic(), place.topic(), place.topic()

    @broker.subscriber(first)
    @broker.subscriber(second)
    async def both(text: str, message: annotations.RocketMessage) -> None:
        seen.append(("both", message.raw_message.topic, text))

    @broker.subscriber(third)
    def in_a_thread(text: str) -> None:
        seen.append(("thread", third, text))

    expected = [("both", first, "a"), ("both", second, "b"), ("thread", third, "c"), ("both", first, "d")]
    async with place.running(broker):
        for count, (_, topic, text) in enumerate(expected, 1):
            await broker.publish(text, topic)
            await seen.reaches(count)
    assert seen == expected


@in_asyncio
async def test_the_first_handler_whose_filter_agrees_is_called(place: Place) -> None:
    broker, topic, seen = place.broker(), place.topic(), Seen()
    subscriber = broker.subscriber(topic)

    @subscriber(filter=lambda message: message.content_type == "application/json")
    async def of_json(value: dict[str, int]) -> None:
        seen.append(("json", value))

    async def is_north(message: StreamMessage[Any]) -> bool:
        return message.headers.get("shop") == "north"

    @subscriber(filter=is_north)
    async def of_the_north(value: str) -> None:
        seen.append(("north", value))

    @subscriber
    async def of_others(value: str) -> None:
        seen.append(("others", value))

    async with place.running(broker):
        await broker.publish("a", topic)
        await seen.reaches(1)
        await broker.publish({"b": 1}, topic, headers={"shop": "north"})
        await seen.reaches(2)
        await broker.publish("c", topic, headers={"shop": "north"})
        await seen.reaches(3)
    assert seen == [("others", "a"), ("json", {"b": 1}), ("north", "c")]


@pytest.mark.parametrize("in_router", [False, True])
@in_asyncio
async def test_a_subscriber_may_be_made_while_the_broker_runs(place: Place, in_router: bool) -> None:
    inner = RocketRouter()
    broker, topic, seen = place.broker(routers=[RocketRouter(routers=[inner])]), place.topic(), Seen()
    async with place.running(broker):
        subscriber: RocketSubscriber = (inner if in_router else broker).subscriber(topic)
        subscriber(seen.append)
        await subscriber.start()
        await broker.publish("a", topic)
        await seen.reaches(1)
        await subscriber.stop()
        async with subscriber:
            await broker.publish("b", topic)
            await seen.reaches(2)
    assert seen == ["a", "b"]


# --- what becomes of a message


async def _returns(message: RocketMessage) -> None: ...


async def _raises(message: RocketMessage) -> None:
    raise LookupError("not today")


async def _acks(message: RocketMessage) -> None:
    await message.ack()


async def _nacks(message: RocketMessage) -> None:
    await message.nack()


async def _rejects_and_raises(message: RocketMessage) -> None:
    await message.reject()
    raise LookupError("never")


def _raising(error: type[Exception]) -> Callable[[RocketMessage], Any]:
    async def handle(message: RocketMessage) -> None:
        raise error

    return handle


ACKED, NACKED, REJECTED = AckStatus.ACKED, AckStatus.NACKED, AckStatus.REJECTED
NACK, REJECT, ACK, FIRST, MANUAL = (
    AckPolicy.NACK_ON_ERROR, AckPolicy.REJECT_ON_ERROR, AckPolicy.ACK, AckPolicy.ACK_FIRST, AckPolicy.MANUAL,
)  # fmt: skip

# What the handler does, and how the message is settled by each of the policies NACK, REJECT, ACK, FIRST and MANUAL.
SETTLED: dict[str, tuple[Callable[[RocketMessage], Any], tuple[AckStatus | None, ...]]] = {
    "returns": (_returns, (ACKED, ACKED, ACKED, ACKED, None)),
    "raises": (_raises, (NACKED, REJECTED, ACKED, ACKED, None)),
    "acks": (_acks, (ACKED, ACKED, ACKED, ACKED, ACKED)),
    "nacks": (_nacks, (NACKED, NACKED, NACKED, ACKED, NACKED)),
    "rejects and raises": (_rejects_and_raises, (REJECTED, REJECTED, REJECTED, ACKED, REJECTED)),
    "AckMessage": (_raising(AckMessage), (ACKED, ACKED, ACKED, ACKED, None)),
    "NackMessage": (_raising(NackMessage), (NACKED, NACKED, NACKED, ACKED, None)),
    "RejectMessage": (_raising(RejectMessage), (REJECTED, REJECTED, REJECTED, ACKED, None)),
    "SkipMessage": (_raising(SkipMessage), (None, None, None, ACKED, None)),
}


@pytest.mark.parametrize("column", range(5), ids=["nack", "reject", "ack", "ack first", "manual"])
@in_asyncio
async def test_a_policy_settles_a_message_by_what_its_handler_does(place: Place, column: int) -> None:
    """One service for a column of the table: the text of a message is its row."""
    policy = (NACK, REJECT, ACK, FIRST, MANUAL)[column]
    done = Done()
    broker, topic = place.broker(ack_policy=policy, middlewares=[done], graceful_timeout=0), place.topic()
    messages: dict[str, RocketMessage] = {}

    # A handler for each message: with MANUAL those that nobody settles wait.
    @broker.subscriber(topic, max_workers=len(SETTLED))
    async def handle(name: str, message: annotations.RocketMessage) -> None:
        messages[name] = message
        await SETTLED[name][0](message)

    async with place.running(broker):
        for count, name in enumerate(SETTLED, 1):
            try:
                await broker.publish(name, topic)
            except (LookupError, HandlerException):
                assert place.is_in_memory  # where `publish` raises the handler's error
            await done.reaches(count)
    assert {name: message.committed for name, message in messages.items()} == {
        name: settled[column] for name, (_, settled) in SETTLED.items()
    }


CANCELLED = (NACK, REJECT, ACK, MANUAL)


def never_ending(broker: RocketBroker, topic: str, policy: AckPolicy) -> Seen:
    messages = Seen()

    @broker.subscriber(topic, ack_policy=policy)
    async def handle(message: annotations.RocketMessage) -> None:
        messages.append(message)
        await asyncio.Event().wait()

    return messages


@pytest.mark.parametrize("policy", CANCELLED)
@in_asyncio
async def test_a_handler_that_is_cancelled_settles_nothing(in_memory: Place, policy: AckPolicy) -> None:
    broker = in_memory.broker()
    messages = never_ending(broker, "orders", policy)
    async with in_memory.running(broker):
        publishing = asyncio.create_task(broker.publish("tea", "orders"))
        await messages.reaches(1)
        publishing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await publishing
    assert [message.committed for message in messages] == [None]


@in_asyncio
async def test_a_message_whose_handler_a_stop_cancels_is_delivered_to_the_next(in_cluster: Place) -> None:
    first, second = in_cluster.broker(graceful_timeout=0.001), in_cluster.broker()
    topics = {policy: in_cluster.topic() for policy in CANCELLED}
    begun = [never_ending(first, topic, policy) for policy, topic in topics.items()]
    again = {policy: collect(second, topic) for policy, topic in topics.items()}
    async with in_cluster.running(first):
        for topic, messages in zip(topics.values(), begun, strict=True):
            await first.publish("tea", topic)
            await messages.reaches(1)
    async with in_cluster.running(second):
        for seen in again.values():
            await seen.reaches(1)
    assert again == {policy: ["tea"] for policy in CANCELLED}


@in_asyncio
async def test_a_stop_cancels_the_handler_of_a_message_that_was_acknowledged_first(in_cluster: Place) -> None:
    broker, topic, seen = in_cluster.broker(graceful_timeout=0.001), in_cluster.topic(), Seen()

    @broker.subscriber(topic, ack_policy=FIRST)
    async def never_ends(text: str) -> None:
        seen.append(text)
        try:
            await asyncio.Event().wait()
        finally:
            seen.append("end")

    async with in_cluster.running(broker):
        await broker.publish("tea", topic)
        await seen.reaches(1)
        await broker.stop()
        await seen.reaches(2)
    assert seen == ["tea", "end"]


@pytest.mark.parametrize("orderly", [False, True])
@in_asyncio
async def test_a_handler_that_stops_its_subscriber_is_called_once(in_cluster: Place, orderly: bool) -> None:
    broker, topic, seen = in_cluster.broker(), in_cluster.topic(), Seen()
    subscriber = broker.subscriber(topic, orderly=orderly, ack_policy=ACK)

    @subscriber
    async def handle(text: str) -> None:
        seen.append(text)
        raise StopConsume

    async with in_cluster.running(broker):
        await broker.publish("a", topic)
        await seen.reaches(1)
        await subscriber.stop()  # returns when the subscriber has left
        await broker.publish("b", topic)
        assert not subscriber.running
    assert seen == ["a"]


@in_asyncio
async def test_an_exit_in_a_handler_ends_the_application(in_cluster: Place) -> None:
    broker, topic, seen = in_cluster.broker(), in_cluster.topic(), Seen()
    app = FastStream(broker)

    @broker.subscriber(topic, ack_policy=ACK)
    async def handle(text: str) -> None:
        seen.append(text)
        raise SystemExit

    @app.after_startup
    async def publish() -> None:
        await broker.publish("last", topic)

    async with asyncio.timeout(LIMIT_S):
        await app.run()
    assert seen == ["last"] and not broker.running


@in_asyncio
async def test_a_handler_is_tried_again_until_it_succeeds(in_cluster: Place) -> None:
    broker, topic, seen = in_cluster.broker(), in_cluster.topic(), Seen()

    @broker.subscriber(topic, orderly=True, retry=RetryPolicy(attempts=5, delays_ms=[1]))
    async def handle(text: str, message: annotations.RocketMessage) -> None:
        seen.append((text, message.raw_message.reconsume_times))
        if message.raw_message.reconsume_times < 2:
            raise NackMessage

    async with in_cluster.running(broker):
        await broker.publish("a", topic)
        await broker.publish("b", topic)
        await seen.reaches(6)
    assert seen == [(text, times) for text in "ab" for times in range(3)]


# --- one by one


@in_asyncio
async def test_a_subscriber_with_handlers_gives_no_message_away(place: Place) -> None:
    broker, topic = place.broker(), place.topic()
    subscriber = broker.subscriber(topic)
    subscriber(print)
    async with place.running(broker):
        with pytest.raises(AssertionError, match=r"get_one\(\) needs one without"):
            await subscriber.get_one()
        with pytest.raises(AssertionError, match="iteration needs one without"):
            await anext(subscriber.__aiter__())


@in_asyncio
async def test_messages_come_one_by_one_in_their_order(in_cluster: Place) -> None:
    broker, topic = in_cluster.broker(), in_cluster.topic()
    subscriber = broker.subscriber(topic)
    async with in_cluster.running(broker):
        assert await subscriber.get_one(timeout=0) is None
        asking = asyncio.create_task(subscriber.get_one(timeout=LIMIT_S))
        for text in ("a", "b", "c"):
            await broker.publish(text, topic)
        found = [await asking]
        async for message in subscriber:
            found.append(message)
            if len(found) == 3:
                break
        assert [await message.decode() for message in found if message] == ["a", "b", "c"]


@in_asyncio
async def test_a_message_that_is_pulled_is_parsed_at_once_and_decoded_on_demand(in_cluster: Place) -> None:
    calls: list[str] = []

    async def parse(raw: Any, original: Callable[[Any], Any]) -> RocketMessage:
        calls.append("parse")
        parsed: RocketMessage = await original(raw)
        return parsed

    async def decode(message: RocketMessage, original: Callable[[Any], Any]) -> Any:
        calls.append("decode")
        return f"decoded {await original(message)}"

    class Noting(BaseMiddleware):
        async def on_receive(self) -> None:
            calls.append("receive")

    broker, topic = in_cluster.broker(middlewares=[Noting]), in_cluster.topic()
    subscriber = broker.subscriber(topic, parser=parse, decoder=decode)
    async with in_cluster.running(broker):
        await broker.publish("a", topic)
        message = await subscriber.get_one(timeout=LIMIT_S)
        assert message is not None and calls == ["receive", "parse"]
        assert await message.decode() == "decoded a" == await message.decode()
    assert calls == ["receive", "parse", "decode"]


@in_asyncio
async def test_a_topic_is_waited_for_until_its_first_message(in_cluster: Place) -> None:
    broker, topic = in_cluster.broker(), f"{in_cluster.topic()}-later"
    subscriber = broker.subscriber(topic)
    async with in_cluster.running(broker):
        assert await subscriber.get_one(timeout=0) is None
        asking = asyncio.create_task(subscriber.get_one(timeout=LIMIT_S))
        await broker.publish("first", topic)
        message = await asking
        assert message is not None and await message.decode() == "first"


# --- requests


class Doubling(BaseMiddleware):
    """Doubles the body of what is received: requests, and replies to them."""

    async def consume_scope(self, call_next: Any, message: Any) -> Any:
        message.body *= 2
        return await call_next(message)


@pytest.mark.parametrize("doubling_in", ["nothing", "broker", "router"])
@in_asyncio
async def test_a_request_is_answered_by_the_handler(place: Place, doubling_in: str) -> None:
    broker = place.broker(middlewares=[Doubling] if doubling_in == "broker" else [])
    router, topic = RocketRouter(middlewares=[Doubling] if doubling_in == "router" else []), place.topic()
    requests = {
        "broker": partial(broker.request, topic=topic),
        "publisher": broker.publisher(topic).request,
        "router": router.publisher(topic).request,
    }

    @router.subscriber(topic)
    async def answer(text: str) -> Response:
        return Response(f"<{text}>", headers={"shop": "north"})

    broker.include_router(router)
    expected = "<x>" if doubling_in == "nothing" else "<xx>"
    async with place.running(broker):
        for who, request in requests.items():
            reply = await request("x", timeout=LIMIT_S, correlation_id=who)
            # The middlewares of a router do not apply to the broker's own requests and publishers.
            is_doubled = doubling_in == "broker" or (doubling_in == who == "router")
            assert await reply.decode() == expected * (2 if is_doubled else 1)
            assert (reply.correlation_id, reply.headers["shop"]) == (who, "north")


@in_asyncio
async def test_a_request_that_nobody_answers_in_time_fails(place: Place) -> None:
    broker, topic, answering = place.broker(), place.topic(), asyncio.Event()

    @broker.subscriber(topic)
    async def answer(text: str) -> str:
        await answering.wait()
        return text

    async with place.running(broker):
        with pytest.raises(TimeoutError):
            await broker.request("x", topic, timeout=0)
        answering.set()


def test_the_log_tells_messages_of_one_producer_apart() -> None:
    subscriber = RocketBroker(group="own", logger=None).subscriber("t")
    ids = [f"7F0000010B5E1B2C3D4E5F600000000{number}" for number in range(3)]
    messages = [StreamMessage(raw_message=None, body=b"", message_id=each) for each in ids]
    shown = [subscriber.get_log_context(message)["message_id"] for message in messages]
    assert shown == [each[-10:] for each in ids] and len(set(shown)) == 3
