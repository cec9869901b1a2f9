"""Spans of sends. The context travels in the properties of the sent message, which is a copy of the user's message."""

import copy
from collections.abc import Callable, Iterable, Sized
from time import perf_counter
from typing import Any

from opentelemetry.trace import Span, SpanKind

from skylark.mqcommon.message.message import MAX_PROPERTIES_BYTES, Message
from skylark.mqcommon.message.properties import DELAY, SHARDING_KEY, encode_properties
from skylark.mqcommon.names import TRACE_TOPIC
from skylark.sdk.integrations.otel.carried import TRACEPARENT
from skylark.sdk.integrations.otel.telemetry import (
    COUNT,
    DELAY_LEVEL,
    MESSAGE_ID,
    QUEUE,
    TYPE,
    Attributes,
    Labels,
    Operation,
    Telemetry,
    end_span,
    tags_and_keys,
)
from skylark.sdk.producer.result import SendResult


class Sending:
    """The sends of ``count`` messages with one span, from ``with`` to its end. ``result``: the sends' result."""

    __slots__ = ("_began", "_count", "_labels", "_span", "_telemetry", "result")

    def __init__(self, telemetry: Telemetry, span: Span, labels: Labels, count: int) -> None:
        self._telemetry = telemetry
        self._span = span
        self._labels = labels
        self._count = count
        self.result: Any = None
        with labels.lock:
            labels.sending += count
        self._began = perf_counter()

    def __enter__(self) -> "Sending":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._telemetry.sent(self._labels, self._count, self._began, error)
        result, span = self.result, self._span
        if isinstance(result, SendResult) and span.is_recording():
            span.set_attributes({MESSAGE_ID: result.msg_id, QUEUE: str(result.queue.queue_id)})
        end_span(span, error)


class ProducingSpans:
    """Makes the replacements for methods of producers."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry

    def sending(self, original: Callable[..., Any], *, waits: bool) -> Callable[..., Any]:
        """Wrap ``original``, which sends its first argument, a message, and returns when the send has ended.

        ``waits``: it is a coroutine function.
        """

        async def send(producer: Any, message: Any, *args: Any, **how: Any) -> Any:
            if not _is_ours(message):
                return await original(producer, message, *args, **how)
            labels = self._telemetry.labels("send", "send", message.topic)
            span, carrying = self._begin(labels, message, how)
            with Sending(self._telemetry, span, labels, 1) as sending:
                sending.result = await original(producer, carrying, *args, **how)
                return sending.result

        def send_blocking(producer: Any, message: Any, *args: Any, **how: Any) -> Any:
            if not _is_ours(message):
                return original(producer, message, *args, **how)
            labels = self._telemetry.labels("send", "send", message.topic)
            span, carrying = self._begin(labels, message, how)
            with Sending(self._telemetry, span, labels, 1) as sending:
                sending.result = original(producer, carrying, *args, **how)
                return sending.result

        return send if waits else send_blocking

    def queueing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap ``original``, a `send_nowait`.

        The span ends when the message is queued, since the program may never await the ticket.
        """
        telemetry = self._telemetry

        def send_nowait(producer: Any, message: Any, *args: Any, **how: Any) -> Any:
            if not _is_ours(message):
                return original(producer, message, *args, **how)
            labels = telemetry.labels("create", "create", message.topic)
            span, carrying = self._begin(labels, message, how)
            with Operation(telemetry, span, labels):
                return original(producer, carrying, *args, **how)

        return send_nowait

    def sending_many(self, original: Callable[..., Any], *, waits: bool) -> Callable[..., Any]:
        """Wrap ``original``, a `send_many`: one span for all messages, each of which carries the span's context.

        ``waits``: it is a coroutine function.
        """

        def begin(topic: str, messages: Any) -> tuple[Sending, Any]:
            count = len(messages) if isinstance(messages, Sized) else 0
            labels = self._telemetry.labels("send", "send", topic)
            span = self._telemetry.span(labels, SpanKind.PRODUCER, {COUNT: count} if count else {})
            carrier = self._telemetry.carried.write(span)
            # A list stays a list, as its length is used; a generator stays a generator, as it may not fit into memory.
            if carrier and isinstance(messages, Iterable) and not isinstance(messages, str | bytes | Message):
                carrying = (_carrying_one(topic, one, carrier) for one in messages)
                messages = list(carrying) if isinstance(messages, list | tuple) else carrying
            return Sending(self._telemetry, span, labels, count), messages

        async def send_many(producer: Any, topic: str, messages: Any) -> Any:
            sending, carrying = begin(topic, messages)
            with sending:
                return await original(producer, topic, carrying)

        def send_many_blocking(producer: Any, topic: str, messages: Any) -> Any:
            sending, carrying = begin(topic, messages)
            with sending:
                return original(producer, topic, carrying)

        return send_many if waits else send_many_blocking

    def _begin(self, labels: Labels, message: Message, how: dict[str, Any]) -> tuple[Span, Message]:
        """A span, and the message to send."""
        # The usual send has no properties to check, and shares one set of attributes: most of the remaining cost is
        # OpenTelemetry's own span.
        properties = message.properties
        if not properties and not how:
            span = self._telemetry.tracer.start_span(
                labels.span_name, None, SpanKind.PRODUCER, attributes=labels.of_plain_sends
            )
            return span, _carrying(message, self._telemetry.carried.write(span))
        more: Attributes = {TYPE: _type_of(properties or {}, how), **tags_and_keys(message.tags, message.keys)}
        if properties and (level := properties.get(DELAY, "")).isdigit():
            more[DELAY_LEVEL] = int(level)
        span = self._telemetry.span(labels, SpanKind.PRODUCER, more)
        # A message with a context keeps it: the user has put it there.
        if properties and TRACEPARENT in properties:
            return span, message
        return span, _carrying(message, self._telemetry.carried.write(span))


def _is_ours(message: object) -> bool:
    """Whether ``message`` is a message, and not a message of RocketMQ's own trace."""
    return isinstance(message, Message) and message.topic != TRACE_TOPIC


def _type_of(properties: dict[str, str], how: dict[str, Any]) -> str:
    if DELAY in properties or how.get("delay") is not None or how.get("deliver_at") is not None:
        return "delay"
    return "fifo" if SHARDING_KEY in properties else "normal"


def _carrying(message: Message, carrier: dict[str, str]) -> Message:
    """A copy with these properties, as far as there is room: the user may send the original again."""
    if not carrier:
        return message
    if type(message) is Message and message.properties is None and len(carrier) == 1:
        # For most messages: takes a tenth of the time of `copy`.
        plain = Message.__new__(Message)
        plain.topic, plain.body, plain.flag, plain.properties = message.topic, message.body, message.flag, carrier
        return plain
    properties = {**(message.properties or {}), **carrier}
    if len(properties) > len(carrier) or len(carrier) > 1:
        while len(encode_properties(properties).encode()) > MAX_PROPERTIES_BYTES and carrier:
            name = list(carrier)[-1]  # baggage before tracestate before traceparent
            carrier = {one: text for one, text in carrier.items() if one != name}
            properties.pop(name)
    sent = copy.copy(message)
    sent.properties = properties
    return sent


def _carrying_one(topic: str, message: Any, carrier: dict[str, str]) -> Any:
    if isinstance(message, bytes):
        return Message(topic, message, properties=carrier)
    return _carrying(message, carrier) if isinstance(message, Message) else message
