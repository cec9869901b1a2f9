"""OpenTelemetry: what spans and metrics say of messages, against a broker of ours, in trio, asyncio and threads."""

import asyncio
import configparser
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import pytest
import trio
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.semconv._incubating.attributes import messaging_attributes as names
from opentelemetry.semconv._incubating.metrics import messaging_metrics as metric_names
from opentelemetry.trace import SpanKind, StatusCode

from skylark import (
    BufferFull,
    ConsumeFrom,
    ConsumeResult,
    Later,
    Producer,
    PullConsumer,
    PushConsumer,
    RetryPolicy,
    SimpleConsumer,
    TransactionProducer,
    aio,
    blocking,
)
from skylark.mqcommon.message.message import Message, MessageExt
from skylark.sdk.integrations.otel import SkylarkInstrumentor, processing, telemetry
from skylark.sdk.runtime import SendsFailed
from tests.sdk.fakes import until
from tests.sdk.values.test_typed_clients import TEA, Order
from tests.support.in_process import Servers
from tests.support.spans import Seen
from tests.support.waiting import DEADLINE_S

FIRST = ConsumeFrom.FIRST_OFFSET


def attribute(span: ReadableSpan, name: str) -> Any:
    return (span.attributes or {}).get(name)


def push(cluster: Servers, handler: Callable[..., Any] | None = None, **more: Any) -> PushConsumer:
    named = {"group": "g", "subscriptions": {"one": "*"}, "consume_from": FIRST, "handler": handler, **more}
    return PushConsumer(cluster.nameserver, **named)


async def test_a_trace_is_one_tree_through_handlers_retries_and_dead_letters(cluster: Servers, seen: Seen) -> None:
    """A web request sends, its handler fails once, then sends to another topic, where the message dies."""

    async with Producer(cluster.nameserver) as producer:

        async def first(message: MessageExt) -> None:
            await trio.lowlevel.checkpoint()
            if message.reconsume_times == 0:
                raise ConnectionError("later")
            await producer.send(Message("t", b"second"))

        def second(message: MessageExt) -> None:
            raise ValueError("never")

        with seen.tracer.start_as_current_span("web"):
            await producer.send(Message("one", b"first", tags="A", keys=["k1", "k2"]))
        policy = RetryPolicy(dead_letter_on=ValueError)
        async with (
            push(cluster, first) as one,
            push(cluster, second, group="h", subscriptions={"t": "*"}, retry=policy) as two,
        ):
            await until(lambda: one.consumed == 1 and two.failed == 1 and two.cached == 0)
    assert seen.tree() == [
        "web",
        "web > send one",
        "web > send one > process one",
        "web > send one > process one",
        "web > send one > process one > send t",
        "web > send one > process one > send t > dead_letter t",
        "web > send one > process one > send t > process t",
        "web > send one > retry one",
    ]
    (sent,) = seen.named("send one")
    failed, succeeded = seen.named("process one")
    (retried,), (dead,) = seen.named("retry one"), seen.named("dead_letter t")
    assert (sent.kind, failed.kind, retried.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER, SpanKind.CLIENT)
    assert attribute(sent, names.MESSAGING_SYSTEM) == "rocketmq"
    assert attribute(sent, names.MESSAGING_OPERATION_NAME) == attribute(sent, names.MESSAGING_OPERATION_TYPE) == "send"
    assert attribute(sent, names.MESSAGING_DESTINATION_NAME) == "one"
    assert attribute(sent, names.MESSAGING_ROCKETMQ_MESSAGE_TAG) == "A"
    assert attribute(sent, names.MESSAGING_ROCKETMQ_MESSAGE_KEYS) == ("k1", "k2")
    assert attribute(sent, names.MESSAGING_ROCKETMQ_MESSAGE_TYPE) == "normal"
    assert attribute(sent, names.MESSAGING_DESTINATION_PARTITION_ID) == "0"
    assert attribute(failed, names.MESSAGING_MESSAGE_ID) == attribute(sent, names.MESSAGING_MESSAGE_ID)
    assert attribute(failed, names.MESSAGING_CONSUMER_GROUP_NAME) == "g"
    assert (failed.status.status_code, attribute(failed, "error.type")) == (StatusCode.ERROR, "ConnectionError")
    assert failed.events[0].name == "exception"
    assert succeeded.status.status_code is StatusCode.UNSET
    assert [attribute(span, telemetry.ATTEMPT) for span in (failed, succeeded)] == [1, 2]
    assert attribute(retried, telemetry.REASON).startswith("ConnectionError: later (test_otel.py:")
    assert attribute(dead, names.MESSAGING_OPERATION_TYPE) == "settle"
    assert attribute(dead, telemetry.REASON).startswith("ValueError: never")


async def test_metrics(cluster: Servers, seen: Seen) -> None:
    got: list[bytes] = []

    def handle(message: MessageExt) -> Later | None:
        got.append(message.body)
        if message.body == b"2":
            raise KeyError
        return Later() if message.body == b"1" and message.reconsume_times == 0 else None

    async with Producer(cluster.nameserver) as producer:
        for number in range(4):
            await producer.send(Message("one", b"%d" % number))
        await producer.send_many("one", [b"4", b"5"])
        with pytest.raises(ValueError, match="message"):
            await producer.send(Message("one", b"x" * 5_000_000))
    async with push(cluster, handle, retry=RetryPolicy(dead_letter_on=KeyError)) as consumer:
        await until(lambda: consumer.consumed == 5 and consumer.failed == 2)
        assert seen.values("messaging.client.cached.messages") == {("g",): 0}
    name = metric_names.MESSAGING_CLIENT_SENT_MESSAGES
    assert seen.values(name) == {("send", "one"): 6, ("send", "one", "InvalidArgument"): 1}
    assert seen.values("messaging.client.sending.messages") == {("send", "one"): 0}
    assert seen.values(metric_names.MESSAGING_CLIENT_CONSUMED_MESSAGES) == {("process", "one", "g"): 7}
    assert seen.values(metric_names.MESSAGING_PROCESS_DURATION) == {
        ("process", "one", "g"): 5, ("process", "one", "g", "LATER"): 1, ("process", "one", "g", "KeyError"): 1,
    }  # fmt: skip
    assert seen.values(metric_names.MESSAGING_CLIENT_OPERATION_DURATION) == {
        ("send", "one"): 5, ("send", "one", "InvalidArgument"): 1, ("retry", "one", "g"): 1,
        ("dead_letter", "one", "g"): 1,
    }  # fmt: skip


async def test_baggage_and_the_users_own_properties_reach_the_handler(cluster: Servers, seen: Seen) -> None:
    got: list[tuple[object, object]] = []

    async def handle(message: MessageExt) -> None:
        await trio.lowlevel.checkpoint()
        got.append((baggage.get_baggage("shop"), message.properties.get("mine")))

    message = Message("one", b"x", properties={"mine": "yes"})
    token = context.attach(baggage.set_baggage("shop", "north"))
    try:
        async with Producer(cluster.nameserver) as producer:
            await producer.send(message)
    finally:
        context.detach(token)
    assert message.properties == {"mine": "yes"}, "the message of the user stays as it is"
    async with push(cluster, handle):
        await until(lambda: len(got) == 1)
    assert got == [("north", "yes")]
    assert trace.get_current_span().get_span_context().is_valid is False


async def test_baggage_for_which_there_is_no_room_is_left_out(cluster: Servers, seen: Seen) -> None:
    token = context.attach(baggage.set_baggage("large", "b" * 4_000))
    try:
        async with Producer(cluster.nameserver) as producer:
            sent = await producer.send(Message("one", b"x", properties={"own": "p" * 30_000}))
    finally:
        context.detach(token)
    async with PullConsumer(cluster.nameserver) as consumer:
        (found,) = (await consumer.pull(sent.queue, 0)).messages
    assert "traceparent" in found.properties and "baggage" not in found.properties


async def test_batches_and_receives_are_linked_to_their_messages(cluster: Servers, seen: Seen) -> None:
    done: list[int] = []

    async def handle(messages: list[MessageExt]) -> ConsumeResult:
        await trio.lowlevel.checkpoint()
        done.append(len(messages))
        return ConsumeResult.SUCCESS

    async with Producer(cluster.nameserver) as producer:
        await producer.send(Message("one", b"1"))
        await producer.send_many("one", [b"2", Message("one", b"3")])
    async with push(cluster, None, batch_handler=handle):
        await until(lambda: sum(done) == 3)
    async with PullConsumer(cluster.nameserver, group="puller") as consumer:
        (mq,) = await consumer.message_queues("one")
        found = (await consumer.pull(mq, 0)).messages
        assert not (await consumer.pull(mq, 3)).messages
        with processing(found[0], "puller") as span:
            assert trace.get_current_span() is span
    async with SimpleConsumer(
        cluster.nameserver, group="simple", subscriptions={"one": "*"}, consume_from=FIRST
    ) as simple:
        got = await simple.receive(wait_ms=10_000)
        await simple.ack(got)
    single, many = seen.named("send one")
    assert attribute(many, names.MESSAGING_BATCH_MESSAGE_COUNT) == 2
    sends = {single.context.span_id, many.context.span_id}
    assert {link.context.span_id for span in seen.named("process one") for link in span.links} == sends
    received = seen.named("receive one")
    assert [attribute(span, names.MESSAGING_CONSUMER_GROUP_NAME) for span in received] == ["puller", "simple"]
    assert [link.context.span_id in sends for link in received[0].links] == [True] * 3
    (acknowledged,) = seen.named("ack one")
    assert attribute(acknowledged, names.MESSAGING_OPERATION_TYPE) == "settle" and acknowledged.links
    worked = next(span for span in seen.named("process one") if attribute(span, telemetry.GROUP) == "puller")
    assert worked.parent is not None and worked.parent.span_id == single.context.span_id


@pytest.mark.parametrize("kind", ["value", "orderly"])
async def test_handlers_of_values_and_orderly_ones_have_spans(cluster: Servers, seen: Seen, kind: str) -> None:
    got: list[tuple[Order, bool]] = []

    async def handle(order: Order, message: MessageExt) -> None:
        await trio.lowlevel.checkpoint()
        got.append((order, trace.get_current_span().get_span_context().is_valid))

    async with Producer(cluster.nameserver, value=Order) as producer:
        await producer.send_value("one", TEA)
    async with push(cluster, handle, orderly=kind == "orderly"):
        await until(lambda: got == [(TEA, True)])
    assert seen.tree() == ["send one", "send one > process one"]


async def test_in_asyncio(cluster: Servers, seen: Seen) -> None:
    async def main() -> None:
        handled = asyncio.Event()

        async def handle(message: MessageExt) -> None:
            await asyncio.sleep(0)
            with seen.tracer.start_as_current_span("work"):
                handled.set()

        async with (
            aio.Producer(cluster.nameserver) as producer,
            aio.TransactionProducer(cluster.nameserver, group="tx") as halves,
        ):
            with seen.tracer.start_as_current_span("web"):
                await producer.send(Message("one", b"x"))
                await producer.send_nowait(Message("t", b"y"))
                async with halves.transaction(Message("t", b"z")):
                    pass
        async with aio.PushConsumer(
            cluster.nameserver, group="g", subscriptions={"one": "*"}, handler=handle, consume_from=FIRST
        ):
            await handled.wait()

    await trio.to_thread.run_sync(partial(asyncio.run, main()))
    assert seen.tree() == [
        "web",
        "web > create t",
        "web > send one",
        "web > send one > process one",
        "web > send one > process one > work",
        "web > send t",
    ]


async def test_in_threads(cluster: Servers, seen: Seen) -> None:
    def work() -> None:
        with (
            blocking.Producer(cluster.nameserver) as producer,
            blocking.TransactionProducer(cluster.nameserver, group="tx") as halves,
            seen.tracer.start_as_current_span("web"),
        ):
            producer.send(Message("one", b"x"))
            producer.send_many("one", [b"y"])
            with halves.transaction(Message("t", b"z")):
                pass
        with blocking.PushConsumer(
            cluster.nameserver, group="g", subscriptions={"one": "*"}, handler=handle, consume_from=FIRST
        ):
            assert both.wait(DEADLINE_S)

    def handle(message: MessageExt) -> None:
        with seen.tracer.start_as_current_span("work"):
            got.append(message.body)
        if len(got) == 2:
            both.set()

    from threading import Event

    got: list[bytes] = []
    both = Event()
    await trio.to_thread.run_sync(work)
    assert seen.tree() == [
        "web",
        "web > send one",
        "web > send one",
        "web > send one > process one",
        "web > send one > process one",
        "web > send one > process one > work",
        "web > send one > process one > work",
        "web > send t",
    ]

    async def wrong(message: MessageExt) -> None: ...

    with pytest.raises(TypeError, match="plain functions"):
        blocking.PushConsumer(cluster.nameserver, group="g", subscriptions={}, handler=wrong)  # type: ignore[arg-type]


async def test_sends_without_waiting_fail_as_before(cluster: Servers, seen: Seen) -> None:
    """An error that nobody sees is raised by `flush`, and one of the call has a span with it."""
    async with Producer(cluster.nameserver, buffer_count=1) as producer:
        first = producer.send_nowait(Message("t", b"x"))
        with pytest.raises(BufferFull):
            producer.send_nowait(Message("t", b"y"))
        await first
        producer.send_nowait(Message("nowhere-to-be-found", b"z"), timeout_ms=1)
        with pytest.raises(SendsFailed):
            await producer.flush()
    created = seen.named("create t")
    assert [attribute(span, "error.type") for span in created] == [None, "BufferFull"]


async def test_halves_delays_and_groups_have_their_type(cluster: Servers, seen: Seen) -> None:
    async with Producer(cluster.nameserver) as producer, TransactionProducer(cluster.nameserver, group="tx") as halves:
        await producer.send(Message("t", b"x", delay_level=3))
        await producer.send(Message("t", b"x", sharding_key="a"))
        async with halves.transaction(Message("t", b"z")):
            pass
    found = [attribute(span, names.MESSAGING_ROCKETMQ_MESSAGE_TYPE) for span in seen.named("send t")]
    assert found == ["delay", "fifo", "normal"]
    assert attribute(seen.named("send t")[0], names.MESSAGING_ROCKETMQ_MESSAGE_DELAY_TIME_LEVEL) == 3


async def test_rocketmqs_own_trace_has_no_spans(cluster: Servers, seen: Seen) -> None:
    async with Producer(cluster.nameserver, trace=True) as producer:
        await producer.send(Message("one", b"x"))
    assert [span.name for span in seen.spans] == ["send one"]


async def test_what_is_replaced_is_put_back(cluster: Servers) -> None:
    before = {name: vars(Producer)[name] for name in ("send", "send_many", "send_nowait")}
    made = Seen()
    instrumentor = SkylarkInstrumentor()
    instrumentor.instrument(tracer_provider=made.provider, skip_dep_check=True)
    assert all(vars(Producer)[name] is not method for name, method in before.items())
    assert Producer.send.__doc__ == before["send"].__doc__
    instrumentor.uninstrument()
    assert {name: vars(Producer)[name] for name in before} == before
    with pytest.raises(RuntimeError, match="instrument"):
        processing(None)  # type: ignore[arg-type]
    async with Producer(cluster.nameserver) as producer:
        sent = await producer.send(Message("one", b"x"))
    async with PullConsumer(cluster.nameserver) as consumer:
        (found,) = (await consumer.pull(sent.queue, 0)).messages
    assert "traceparent" not in found.properties and made.spans == []


def test_names_are_those_of_the_conventions() -> None:
    known = {value for name, value in vars(names).items() if name.startswith("MESSAGING_")}
    own = {telemetry.ATTEMPT, telemetry.RESULT, telemetry.REASON}
    ours = {
        value
        for name, value in vars(telemetry).items()
        if name.isupper() and isinstance(value, str) and value.startswith("messaging.")
    }
    assert ours - own <= known and not own & known


def test_opentelemetry_finds_it_and_the_sdk_does_not_import_it() -> None:
    setup = configparser.ConfigParser()
    setup.read("setup.cfg")
    entry = setup["options.entry_points"]["opentelemetry_instrumentor"].strip()
    module, _, name = entry.partition("=")[2].strip().partition(":")
    assert getattr(import_module(module), name) is SkylarkInstrumentor
    code = (
        "import sys, skylark, skylark.aio, skylark.blocking\n"
        "skylark.Producer, skylark.PushConsumer, skylark.Admin, skylark.aio.Producer, skylark.blocking.PushConsumer\n"
        "unwanted = 'opentelemetry', 'skylark.integrations', 'skylark.sdk.integrations', 'msgspec', 'pydantic'\n"
        "print([name for name in sys.modules if name.startswith(unwanted)])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
