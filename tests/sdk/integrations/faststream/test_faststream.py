"""What RocketBroker has of RocketMQ: settling messages, its arguments, other clients; and the application."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from faststream import AckPolicy, Context, FastStream
from faststream.exceptions import (
    FeatureNotSupportedException,
    IncorrectState,
    NackMessage,
    RejectMessage,
    SetupError,
    StopConsume,
)
from faststream.security import BaseSecurity, SASLPlaintext, SASLScram256
from faststream.specification.asyncapi import AsyncAPI
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from skylark import ConsumeFrom, Credentials, Message, MessageExt, RetryPolicy, Tls, aio
from skylark.mqcommon.errors import InvalidArgument
from skylark.sdk.integrations.faststream import RocketBroker, RocketMessage, RocketResponse, ValueCodec, annotations
from skylark.sdk.integrations.faststream.subscriber import RocketSubscriber
from skylark.sdk.integrations.otel import SkylarkInstrumentor
from skylark.sdk.testing import Cluster
from tests.sdk.facades.adapter import in_asyncio
from tests.sdk.integrations.faststream.services import LIMIT_S, Seen, until, until_dead


@pytest.fixture
def topic(topics: Iterator[str]) -> str:
    """A topic of this test's own, with one queue."""
    return next(topics)


@pytest.fixture
def broker(cluster: Cluster) -> RocketBroker:
    return RocketBroker(cluster.nameserver, group="own", logger=None)


@asynccontextmanager
async def started(broker: RocketBroker) -> AsyncIterator[RocketBroker]:
    """The broker runs in the block, which has a limit."""
    async with asyncio.timeout(LIMIT_S), broker:
        await broker.start()
        yield broker


async def until_committed(broker: RocketBroker, subscriber: RocketSubscriber, offset: int) -> None:
    async with aio.PullConsumer(broker._connection, group=subscriber.group, heartbeat=False) as consumer:
        (queue,) = await consumer.message_queues(subscriber.topic)

        async def is_committed() -> bool:
            return await consumer.committed_offset(queue) == offset

        await until(is_committed)


# --- what becomes of a message


@in_asyncio
async def test_a_failure_is_delivered_again_and_then_is_a_dead_letter_with_the_reason(
    broker: RocketBroker, topic: str
) -> None:
    seen = Seen()

    @broker.subscriber(topic, group=topic, orderly=True, retry=RetryPolicy(attempts=3, delays_ms=[1]))
    async def handle(text: str) -> None:
        seen.append(text)
        if text == "bad":
            raise LookupError("not today")

    async with started(broker):
        await broker.publish("bad", topic)
        await broker.publish("good", topic)
        await seen.reaches(4)
        (letter,) = await until_dead(broker, topic, 1)
    assert seen == ["bad", "bad", "bad", "good"]
    assert letter.message.body == b"bad" and letter.failure.reason.startswith("LookupError: not today (test_faststream")


@pytest.mark.parametrize("orderly", [True, False])
@in_asyncio
async def test_reject_makes_a_dead_letter_at_once(broker: RocketBroker, topic: str, orderly: bool) -> None:
    seen = Seen()

    @broker.subscriber(topic, group=topic, orderly=orderly, ack_policy=AckPolicy.REJECT_ON_ERROR)
    async def handle(text: str, message: annotations.RocketMessage) -> None:
        seen.append(text)
        if text == "by policy":
            raise LookupError("never")
        if text == "by exception":
            raise RejectMessage(reason="too old")
        if text == "by hand":
            await message.reject()

    async with started(broker):
        for text in ("by policy", "by exception", "by hand", "good"):
            await broker.publish(text, topic)
        await seen.reaches(4)
        dead = await until_dead(broker, topic, 3)
    letters = {letter.message.body.decode(): letter.failure.reason for letter in dead}
    assert "Rejected: LookupError: never (test_faststream.py:" in letters.pop("by policy")
    assert "Rejected: too old" in letters.pop("by exception")
    assert "Rejected" in letters.pop("by hand") and not letters


@in_asyncio
async def test_a_retry_policy_decides_by_the_class_of_an_error(broker: RocketBroker, topic: str) -> None:
    seen = Seen()

    @broker.subscriber(topic, group=topic, retry=RetryPolicy(dead_letter_on=LookupError))
    async def handle(text: str) -> None:
        seen.append(text)
        raise KeyError(text)

    async with started(broker):
        await broker.publish("key", topic)
        await until_dead(broker, topic, 1)
    assert seen == ["key"]


@in_asyncio
async def test_nack_chooses_the_level_of_the_pause(broker: RocketBroker, topic: str) -> None:
    seen = Seen()

    @broker.subscriber(topic)
    async def handle(text: str, message: annotations.RocketMessage) -> None:
        seen.append(message.raw_message.reconsume_times)
        if len(seen) == 1:
            raise NackMessage(delay_level=1)

    async with started(broker):
        await broker.publish("again", topic)
        await seen.reaches(2)  # in a second; without the level it would be ten
    assert seen == [0, 1]


@in_asyncio
async def test_ack_consumes_whatever_the_handler_raises(broker: RocketBroker, topic: str) -> None:
    seen = Seen()

    @broker.subscriber(topic, group=topic, orderly=True, ack_policy=AckPolicy.ACK)
    async def handle(text: str) -> None:
        seen.append(text)
        raise LookupError(text)

    async with started(broker):
        await broker.publish("one", topic)
        await broker.publish("two", topic)
        await seen.reaches(2)
        assert await until_dead(broker, topic, 0) == []
    assert seen == ["one", "two"]


@in_asyncio
async def test_ack_first_commits_while_the_handler_runs(broker: RocketBroker, topic: str) -> None:
    going_on, seen = asyncio.Event(), Seen()
    handler_options = {"commit_interval_ms": 10}

    subscriber = broker.subscriber(
        topic, ack_policy=AckPolicy.ACK_FIRST, max_workers=2, consumer_options=handler_options
    )

    @subscriber
    async def handle(text: str) -> None:
        seen.append(text)
        await going_on.wait()
        raise LookupError(text)

    async with started(broker):
        for text in ("one", "two", "three"):
            await broker.publish(text, topic)
        await seen.reaches(2)
        await until_committed(broker, subscriber, 2)
        assert seen == ["one", "two"]  # no more than max_workers at once
        going_on.set()
        await seen.reaches(3)
        await until_committed(broker, subscriber, 3)


@in_asyncio
async def test_manual_waits_for_whoever_acknowledges(broker: RocketBroker, topic: str) -> None:
    handled: list[RocketMessage] = []

    @broker.subscriber(topic, ack_policy=AckPolicy.MANUAL)
    async def handle(message: annotations.RocketMessage) -> None:
        handled.append(message)

    async with started(broker):
        await broker.publish("one", topic)
        await broker.publish("two", topic)
        await until(lambda: len(handled) == 1)
        await handled[0].ack()
        await until(lambda: len(handled) == 2)
        await handled[1].ack()
    assert [message.body for message in handled] == [b"one", b"two"]


@in_asyncio
async def test_a_manual_handler_that_fails_holds_up_nobody(broker: RocketBroker, topic: str) -> None:
    seen = Seen()

    @broker.subscriber(topic, group=topic, ack_policy=AckPolicy.MANUAL, retry=RetryPolicy(attempts=1))
    async def handle(text: str, message: annotations.RocketMessage) -> None:
        seen.append(text)
        if text == "bad":
            raise LookupError("before it was settled")
        await message.ack()

    async with started(broker):
        await broker.publish("bad", topic)
        await broker.publish("good", topic)
        (letter,) = await until_dead(broker, topic, 1)
        await seen.reaches(2)
    assert letter.failure.reason.startswith("LookupError: before it was settled") and seen == ["bad", "good"]


@in_asyncio
async def test_what_cannot_be_parsed_follows_the_policy(broker: RocketBroker, topic: str) -> None:
    async def parse(message: MessageExt) -> Any:
        raise LookupError(message.body)

    @broker.subscriber(topic, group=topic, parser=parse, retry=RetryPolicy(attempts=1))
    async def handle(text: str) -> None:
        raise AssertionError("it cannot be parsed")

    async with started(broker):
        await broker.publish("odd", topic)
        (letter,) = await until_dead(broker, topic, 1)
    assert letter.failure.reason.startswith("LookupError: b'odd'")


@in_asyncio
async def test_a_batch_is_settled_as_a_whole(broker: RocketBroker, topic: str) -> None:
    seen = Seen()

    @broker.subscriber(topic, batch=True, batch_size=10, orderly=True, retry=RetryPolicy(delays_ms=[1]))
    async def handle(numbers: list[int], message: annotations.RocketMessage) -> None:
        seen.append((numbers, [headers["place"] for headers in message.batch_headers]))
        if len(seen) == 1:
            raise LookupError("once more")

    async with broker:
        await broker.publish_batch(1, 2, 3, topic=topic, sharding_key="one", headers={"place": "x"})
        async with started(broker):
            await seen.reaches(2)
    assert seen == [([1, 2, 3], ["x"] * 3)] * 2


@in_asyncio
async def test_stop_consume_leaves_the_other_messages_to_others(cluster: Cluster, topic: str) -> None:
    first, second = Seen(), Seen()
    leaver, other = (RocketBroker(cluster.nameserver, group="own", logger=None) for _ in range(2))

    @leaver.subscriber(topic, ack_policy=AckPolicy.ACK, orderly=True)
    async def leave(number: int) -> None:
        first.append(number)
        if number == 3:
            raise StopConsume

    @other.subscriber(topic, orderly=True)
    async def handle(number: int) -> None:
        second.append(number)

    async with started(leaver):
        await leaver.publish_batch(*range(50), topic=topic, sharding_key="all")
        await first.reaches(4)
        async with started(other):
            await second.reaches(46)
    assert (first, second) == (list(range(4)), list(range(4, 50)))


@in_asyncio
async def test_stopping_waits_for_handlers(broker: RocketBroker, topic: str) -> None:
    begun, going_on, seen = asyncio.Event(), asyncio.Event(), Seen()

    @broker.subscriber(topic)
    async def handle(text: str) -> None:
        begun.set()
        await going_on.wait()
        seen.append(text)

    async with started(broker):
        await broker.publish("last", topic)
        await begun.wait()
        asyncio.get_running_loop().call_soon(going_on.set)
    assert seen == ["last"]


# --- without handlers


@in_asyncio
async def test_single_messages_are_acknowledged_or_given_back(broker: RocketBroker, topic: str) -> None:
    subscriber = broker.subscriber(topic, ack_policy=AckPolicy.MANUAL)
    async with started(broker):
        await broker.publish("one", topic, tags="tea")
        message = await subscriber.get_one()
        assert message is not None and await message.decode() == "one"
        with pytest.raises(FeatureNotSupportedException, match="cannot be made a dead letter at once"):
            await message.reject()
        await message.nack()
        again = await subscriber.get_one()
        assert again is not None and again.raw_message.delivery_attempt == 2
        await again.ack()
        assert await subscriber.get_one(timeout=0.05) is None


@in_asyncio
async def test_several_tasks_ask_for_messages(broker: RocketBroker, topic: str) -> None:
    subscriber = broker.subscriber(topic, ack_policy="ack_first")
    async with started(broker):
        asking = [asyncio.create_task(subscriber.get_one(timeout=LIMIT_S)) for _ in range(3)]
        await broker.publish_batch(1, 2, 3, topic=topic)
        found = [await message.decode() for message in await asyncio.gather(*asking) if message is not None]
    assert sorted(found) == [1, 2, 3]


@in_asyncio
async def test_several_messages_at_once(broker: RocketBroker, topic: str) -> None:
    subscriber = broker.subscriber(topic, batch=True, ack_policy=AckPolicy.ACK_FIRST)
    async with started(broker):
        await broker.publish_batch(1, 2, 3, topic=topic, sharding_key="one")
        async for message in subscriber:
            assert await message.decode() == [1, 2, 3]
            break
        assert await subscriber.get_one(timeout=0.05) is None


@in_asyncio
async def test_an_iteration_ends_when_its_subscriber_stops(broker: RocketBroker, topic: str) -> None:
    subscriber, seen = broker.subscriber(topic), Seen()

    async def iterate() -> None:
        async for message in subscriber:
            seen.append(await message.decode())
            await message.ack()

    async with started(broker):
        await broker.publish("one", topic)
        iterating = asyncio.create_task(iterate())
        await seen.reaches(1)
    await iterating


# --- RocketMQ's arguments


@in_asyncio
async def test_tags_and_sql_choose_messages(broker: RocketBroker, topic: str) -> None:
    by_tag, by_sql = Seen(), Seen()

    @broker.subscriber(topic, group=f"tag-{topic}", tags="tea || coffee")
    async def tagged(text: str) -> None:
        by_tag.append(text)

    @broker.subscriber(topic, group=f"sql-{topic}", sql="amount > 5 OR TAGS = 'milk'")
    async def expensive(text: str) -> None:
        by_sql.append(text)

    async with started(broker):
        await broker.publish("a", topic, tags="tea", headers={"amount": 3})
        await broker.publish("b", topic, tags="milk", headers={"amount": 4})
        await broker.publish("c", topic, headers={"amount": 6})
        await broker.publish("d", topic, tags="coffee", headers={"amount": 7})
        await by_tag.reaches(2)
        await by_sql.reaches(3)
    assert (by_tag, by_sql) == (["a", "d"], ["b", "c", "d"])


@in_asyncio
async def test_messages_of_a_sharding_key_are_handled_in_order(cluster: Cluster, broker: RocketBroker) -> None:
    seen: dict[str, list[int]] = {"a": [], "b": [], "c": []}
    cluster.create_topic("wide", 4)

    @broker.subscriber("wide", orderly=True, max_workers=4)
    async def handle(number: int, key: str = Context("message.raw_message.properties.__SHARDINGKEY")) -> None:
        await asyncio.sleep(0)
        seen[key].append(number)

    async with started(broker):
        for number in range(20):
            for key in seen:
                await broker.publish(number, "wide", sharding_key=key)
        await until(lambda: sum(map(len, seen.values())) == 60)
    assert seen == {key: list(range(20)) for key in "abc"}


@in_asyncio
async def test_a_delay_is_kept_by_the_broker(broker: RocketBroker, topic: str) -> None:
    async with started(broker):
        later = broker.publisher(topic, delay=timedelta(hours=1))
        for result in (
            await broker.publish("later", topic, delay=timedelta(hours=1)),
            await later.publish("later"),
        ):
            assert result.recall_handle  # only messages that wait have one
        at_once = await later.publish("now", delay=timedelta(0))
        assert at_once.queue_offset == 0


@in_asyncio
async def test_what_a_handler_returns_has_its_own_arguments(broker: RocketBroker, topic: str) -> None:
    seen: list[RocketMessage] = []

    @broker.subscriber(topic, group=f"asks-{topic}", tags="ask")
    @broker.publisher(topic, tags="plain", headers={"from": "here", "kind": "default"}, sharding_key="p")
    async def answer(number: int) -> Any:
        if number == 1:
            return number
        return RocketResponse(number, tags="special", keys=["k1", "k2"], sharding_key="r", headers={"kind": "own"})

    @broker.subscriber(topic, group=f"answers-{topic}", tags="plain || special")
    async def note(message: annotations.RocketMessage) -> None:
        seen.append(message)

    async with started(broker):
        asked = await broker.publish(1, topic, tags="ask", correlation_id="one")
        await broker.publish(2, topic, tags="ask", correlation_id="two")
        await until(lambda: len(seen) == 2)
    plain, special = seen
    assert plain.headers == {"from": "here", "kind": "default", "correlation_id": "one"}
    assert special.headers == {"from": "here", "kind": "own", "correlation_id": "two"}
    raw = [message.raw_message for message in seen]
    assert [(each.tags, each.keys) for each in raw] == [("plain", None), ("special", "k1 k2")]
    assert [each.properties["__SHARDINGKEY"] for each in raw] == ["p", "r"]
    assert asked.msg_id != plain.message_id == raw[0].msg_id


@in_asyncio
async def test_a_publisher_of_batches_sends_a_message_for_each_element(broker: RocketBroker, topic: str) -> None:
    seen = Seen()

    @broker.subscriber(topic, tags="all", group=f"all-{topic}")
    @broker.publisher(topic, tags="each", batch=True)
    async def split(numbers: list[int]) -> list[int]:
        return numbers

    @broker.subscriber(topic, tags="each", group=f"each-{topic}")
    async def note(number: int) -> None:
        seen.append(number)

    async with started(broker):
        await broker.publish([1, 2, 3], topic, tags="all")
        await seen.reaches(3)
        assert await broker.publish_batch(topic=topic) == []
    assert sorted(seen) == [1, 2, 3]


@in_asyncio
async def test_a_message_of_a_batch_that_cannot_be_sent_stops_no_other(broker: RocketBroker, topic: str) -> None:
    seen = Seen()

    @broker.subscriber(topic)
    async def note(text: str) -> None:
        seen.append(text)

    async with started(broker):
        with pytest.raises(ExceptionGroup, match="2 of 4 messages could not be sent") as failed:
            await broker.publish_batch("a", "x" * (5 << 20), "y" * (5 << 20), "b", topic=topic)
        await seen.reaches(2)
    assert len(failed.value.exceptions) == 2
    assert sorted(seen) == ["a", "b"]


@in_asyncio
async def test_broadcast_reaches_every_process(cluster: Cluster, topic: str, tmp_path: Any) -> None:
    seen = Seen()
    brokers = [RocketBroker(cluster.nameserver, group="own", logger=None) for _ in range(2)]
    for number, each in enumerate(brokers):
        options = {"local_offsets_dir": str(tmp_path), "instance_name": f"i{number}"}

        @each.subscriber(topic, broadcast=True, consume_from=ConsumeFrom.FIRST_OFFSET, consumer_options=options)
        async def handle(text: str) -> None:
            seen.append(text)

    async with started(brokers[0]), started(brokers[1]):
        await brokers[0].publish("all", topic)
        await seen.reaches(2)


# --- with other clients


@dataclass
class Order:
    number: int
    item: str


@pytest.mark.parametrize("value_format", ["json", "cbor"])
@in_asyncio
async def test_values_are_those_of_the_sdk(cluster: Cluster, topic: str, value_format: str) -> None:
    codec = ValueCodec() if value_format == "cbor" else None
    broker, seen = RocketBroker(cluster.nameserver, group="own", codec=codec, logger=None), Seen()

    @broker.subscriber(topic, tags="ask")
    @broker.publisher(topic, tags="answer")
    async def handle(order: Order, shop: str = Context("message.headers.shop")) -> Order:
        seen.append(shop)
        return Order(order.number + 1, order.item)

    async def note(order: Order, message: MessageExt) -> None:
        seen.append((order, message.properties["content-type"]))

    async with (
        started(broker),
        aio.Producer(cluster.nameserver, value=Order, value_format=value_format) as producer,
        aio.PushConsumer(cluster.nameserver, group=topic, subscriptions={topic: "answer"}, handler=note),
    ):
        await producer.send_value(topic, Order(7, "tea"), tags="ask", headers={"shop": "north"})
        await seen.reaches(2)
    assert seen == ["north", (Order(8, "tea"), f"application/{value_format}")]


@in_asyncio
async def test_the_codec_of_cbor_has_batches_and_texts(cluster: Cluster, topic: str) -> None:
    broker, seen = RocketBroker(cluster.nameserver, group="own", codec=ValueCodec(), logger=None), Seen()

    @broker.subscriber(topic, batch=True)
    async def handle(values: list[Any]) -> None:
        for value in values:
            seen.append(value)

    async with started(broker):
        await broker.publish_batch({"a": 1}, "text", b"bytes", [1, 2], topic=topic, sharding_key="one")
        await seen.reaches(4)
    assert seen == [{"a": 1}, "text", b"bytes", [1, 2]]


@in_asyncio
async def test_requests_go_to_and_come_from_any_client(cluster: Cluster, broker: RocketBroker, topic: str) -> None:
    @broker.subscriber(topic, tags="faststream")
    async def double(number: int) -> Any:
        return RocketResponse(2 * number, headers={"by": "faststream"})

    async with started(broker), aio.Producer(cluster.nameserver) as producer:

        async def triple(message: MessageExt) -> None:
            await producer.reply_to(message, b"%d" % (3 * int(message.body)))

        consumer = aio.PushConsumer(cluster.nameserver, group=topic, subscriptions={topic: "sdk"}, handler=triple)
        async with consumer:
            reply = await producer.request(Message(topic, b"4", tags="faststream"), timeout_ms=30_000)
            assert reply.body == b"8" and reply.headers["by"] == "faststream"
            answer = await broker.request(5, topic, tags="sdk", timeout=30)
            assert await answer.decode() == 15


@in_asyncio
async def test_a_service_that_stops_at_once_is_no_mistake(
    broker: RocketBroker, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    @broker.subscriber(topic)
    async def handle(text: str) -> None: ...

    async with started(broker):
        pass
    assert "after its start, and no message has come" not in caplog.text


@in_asyncio
async def test_a_reply_to_a_program_that_is_gone_does_not_repeat_the_work(
    cluster: Cluster, broker: RocketBroker, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    gone, seen = asyncio.Event(), Seen()
    subscriber = broker.subscriber(topic, consumer_options={"commit_interval_ms": 10})

    @subscriber
    async def handle(text: str) -> str:
        seen.append(text)
        await gone.wait()
        return "too late"

    async with started(broker):
        async with aio.Producer(cluster.nameserver) as producer:
            asking = asyncio.create_task(producer.request(Message(topic, b"work"), timeout_ms=60_000))
            await seen.reaches(1)
            asking.cancel()
        gone.set()
        await until_committed(broker, subscriber, 1)
    assert "was not delivered" in caplog.text and seen == ["work"]


@in_asyncio
async def test_spans_of_handlers_are_children_of_what_published(cluster: Cluster, topic: str) -> None:
    tracers, spans = TracerProvider(), InMemorySpanExporter()
    tracers.add_span_processor(SimpleSpanProcessor(spans))
    instrumentor = SkylarkInstrumentor()
    instrumentor.instrument(tracer_provider=tracers)
    try:
        broker, seen = RocketBroker(cluster.nameserver, group="own", logger=None), Seen()

        @broker.subscriber(topic, tags="first", group=f"first-{topic}")
        @broker.publisher(topic, tags="second")
        async def first(text: str) -> str:
            return text

        @broker.subscriber(topic, tags="second", group=f"second-{topic}")
        async def second(text: str) -> None:
            seen.append(text)

        async with started(broker):
            await broker.publish("x", topic, tags="first")
            await seen.reaches(1)
            await until(lambda: len(spans.get_finished_spans()) == 4)
    finally:
        instrumentor.uninstrument()
    found = {span.context.span_id: span for span in spans.get_finished_spans()}
    (root,) = [span for span in found.values() if span.parent is None]
    names, parents = [root.name], [root.context.span_id]
    while children := [span for span in found.values() if span.parent and span.parent.span_id == parents[-1]]:
        names.append(children[0].name)
        parents.append(children[0].context.span_id)
    assert names == [f"{what} {topic}" for what in ("send", "process", "send", "process")]


# --- mistakes


def test_arguments_that_exclude_each_other_are_refused(broker: RocketBroker) -> None:
    with pytest.raises(SetupError, match="give tags or sql, not both"):
        broker.subscriber("t", tags="a", sql="b = 1")
    with pytest.raises(InvalidArgument, match="LIKE"):
        broker.subscriber("t", sql="b LIKE 1")
    with pytest.raises(ValueError, match="'often' is not a valid AckPolicy"):
        broker.subscriber("t", ack_policy="often")
    with pytest.raises(SetupError, match="SASLScram256 is not for RocketMQ"):
        RocketBroker(security=SASLScram256("a", "b"))
    with pytest.raises(SetupError, match=r"give use_ssl=True, and tls=Tls\(ca_file="):
        RocketBroker(security=BaseSecurity(ssl_context=ssl.create_default_context()))


@in_asyncio
async def test_a_subscriber_needs_a_group_and_a_group_one_subscriber(cluster: Cluster, topic: str) -> None:
    nameless = RocketBroker(cluster.nameserver, logger=None)
    nameless.subscriber(topic)(print)
    with pytest.raises(SetupError, match=f"give RocketBroker.*'shop-{topic}'"):
        await nameless.start()
    await nameless.stop()
    twice = RocketBroker(cluster.nameserver, group="own", logger=None)
    handlers = [twice.subscriber(topic, tags=tags)(print) for tags in ("a", "b")]
    with pytest.raises(SetupError, match=f"group own-{topic} has two subscribers"):
        await twice.start()
    await twice.stop()
    assert len(handlers) == 2


@in_asyncio
async def test_an_argument_with_the_class_of_a_message_is_told_what_to_write(broker: RocketBroker, topic: str) -> None:
    @broker.subscriber(topic)
    async def handle(message: RocketMessage) -> None: ...

    with pytest.raises(SetupError, match="annotations import RocketMessage"):
        await broker.start()
    await broker.stop()


@in_asyncio
async def test_sql_needs_a_handler(broker: RocketBroker, topic: str) -> None:
    subscriber = broker.subscriber(topic, sql="a = 1")
    async with started(broker):
        with pytest.raises(SetupError, match="sql needs a handler"):
            await subscriber.get_one()


@in_asyncio
async def test_a_broker_that_is_not_connected_says_so(broker: RocketBroker) -> None:
    assert not await broker.ping()
    with pytest.raises(IncorrectState, match="the broker is not connected"):
        await broker.publish("x", "t")
    with pytest.raises(IncorrectState, match="the broker is not connected"):
        await broker.subscriber("t").get_one()


@in_asyncio
async def test_a_broker_whose_producer_cannot_be_made_stays_disconnected(cluster: Cluster) -> None:
    broker = RocketBroker(cluster.nameserver, producer_options={"compression": "none such"}, logger=None)
    with pytest.raises(InvalidArgument, match="none such"):
        await broker.start()
    assert broker._connection is None and not await broker.ping()


@in_asyncio
async def test_ping_tells_when_no_nameserver_answers() -> None:
    with Cluster() as cluster:
        broker = RocketBroker(cluster.nameserver, logger=None)
        async with broker:
            assert await broker.ping()
            cluster.nameservers[0].stop()
            assert not await broker.ping(timeout=0.2)


def test_security_becomes_credentials_and_tls() -> None:
    arguments = RocketBroker(security=SASLPlaintext("key", "secret", use_ssl=True))._connection_kwargs
    assert arguments["credentials"] == Credentials("key", "secret") and arguments["tls"] == Tls()
    own = Tls(verify=False)
    arguments = RocketBroker(security=BaseSecurity(use_ssl=True), tls=own)._connection_kwargs
    assert arguments["credentials"] is None and arguments["tls"] == own


# --- the application


@in_asyncio
async def test_a_broker_can_be_started_again(broker: RocketBroker, topic: str) -> None:
    seen = Seen()

    @broker.subscriber(topic)
    async def handle(number: int) -> None:
        seen.append(number)

    for number in range(2):
        async with started(broker):
            await broker.publish(number, topic)
            await seen.reaches(number + 1)
    assert seen == [0, 1]


@in_asyncio
async def test_an_application_has_hooks_and_a_lifespan(broker: RocketBroker, topic: str) -> None:
    seen = Seen()

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        seen.append("begin")
        yield
        seen.append("end")

    app = FastStream(broker, lifespan=lifespan)

    @broker.subscriber(topic)
    async def handle(text: str) -> None:
        seen.append(text)
        app.exit()

    @app.after_startup
    async def publish() -> None:
        await broker.publish("hello", topic)

    async with asyncio.timeout(LIMIT_S):
        await app.run()
    assert seen == ["begin", "hello", "end"]
    assert broker._connection is None and not broker.running


@pytest.mark.parametrize("version", ["2.6.0", "3.0.0"])
def test_the_schema_names_topics_and_servers(version: Any) -> None:
    broker = RocketBroker("10.0.0.1:9876;10.0.0.2:9876", group="own", description="orders")

    @broker.subscriber("orders", title="Orders")
    @broker.publisher("bills")
    async def handle(order: Order) -> int:
        """Writes the bill."""
        return order.number

    schema = AsyncAPI(broker, schema_version=version).to_specification().to_jsonable()
    servers = list(schema["servers"].values())
    assert [server["protocol"] for server in servers] == ["rocketmq"] * 2
    assert "10.0.0.1:9876" in str(servers[0])
    channels = schema["channels"]
    assert list(channels) == ["Orders", "bills:Publisher"]
    assert "Writes the bill." in str(schema)
    if version == "3.0.0":
        assert [channel["address"] for channel in channels.values()] == ["orders", "bills"]
    assert {"number", "item"} == set(schema["components"]["schemas"]["Order"]["properties"])
