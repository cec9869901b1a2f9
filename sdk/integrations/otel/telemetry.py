"""`Telemetry`: a tracer and the instruments, and the names of spans, attributes and metrics.

The names follow OpenTelemetry's semantic conventions for messaging. They are written here, because the conventions'
package keeps them in modules that may change at any time.
"""

from collections.abc import Iterable, Sequence
from threading import Lock
from time import perf_counter
from weakref import WeakSet

from opentelemetry import metrics, trace
from opentelemetry.context import Context
from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation
from opentelemetry.trace import Link, Span, SpanKind, StatusCode, TracerProvider

from skylark.mqcommon.message.message import MessageExt
from skylark.mqcommon.version import VERSION
from skylark.sdk.consumer.push import PushConsumer
from skylark.sdk.integrations.otel.carried import Carried

SCHEMA_URL = "https://opentelemetry.io/schemas/1.30.0"
SYSTEM, SYSTEM_VALUE = "messaging.system", "rocketmq"
OPERATION, OPERATION_TYPE = "messaging.operation.name", "messaging.operation.type"
TOPIC, QUEUE = "messaging.destination.name", "messaging.destination.partition.id"
GROUP, MESSAGE_ID = "messaging.consumer.group.name", "messaging.message.id"
COUNT, ERROR = "messaging.batch.message_count", "error.type"
TAG, KEYS = "messaging.rocketmq.message.tag", "messaging.rocketmq.message.keys"
TYPE, DELAY_LEVEL = "messaging.rocketmq.message.type", "messaging.rocketmq.message.delay_time_level"
#: Skylark's own: the number of the delivery, the handler's result, and the reason why a message goes back.
ATTEMPT = "messaging.rocketmq.message.delivery_attempt"
RESULT = "messaging.rocketmq.consume.result"
REASON = "messaging.rocketmq.failure.reason"
# A span links to at most this many of its messages' contexts.
MAX_LINKS = 128

Attributes = dict[str, str | int | Sequence[str]]
# Error of an operation ("" for success) → count.
Errors = dict[str, int]


class Labels:
    """The attributes and the counts of one operation on one topic (and by one group).

    Counts are plain numbers that OpenTelemetry observes when it exports: a call of one of its counters would cost more
    than the rest of the SDK's work on a message.
    """

    __slots__ = ("attributes", "consumed", "lock", "of_plain_sends", "of_spans", "sending", "sent", "span_name")

    def __init__(self, operation: str, kind: str, topic: str, group: str) -> None:
        self.attributes: Attributes = {SYSTEM: SYSTEM_VALUE, OPERATION: operation, TOPIC: topic}
        if group:
            self.attributes[GROUP] = group
        self.span_name = f"{operation} {topic}"
        self.of_spans: Attributes = {**self.attributes, OPERATION_TYPE: kind}
        # For messages without properties, as most are.
        self.of_plain_sends = {**self.of_spans, TYPE: "normal"}
        # Producers and handlers in several threads share these labels.
        self.lock = Lock()
        self.sending = self.consumed = 0
        self.sent: Errors = {}

    def with_error(self, error: str) -> Attributes:
        """The attributes with this error; without an error attribute if ``error`` is empty."""
        return self.attributes | {ERROR: error} if error else self.attributes


class Telemetry:
    """The tracer and the instruments of one instrumentation. ``None``: the providers of the process."""

    def __init__(self, tracer_provider: TracerProvider | None, meter_provider: MeterProvider | None) -> None:
        self.tracer = trace.get_tracer("skylark.integrations.otel", VERSION, tracer_provider, SCHEMA_URL)
        meter = metrics.get_meter("skylark.integrations.otel", VERSION, meter_provider, SCHEMA_URL)
        self._durations = meter.create_histogram(
            "messaging.client.operation.duration", "s", "Duration of an operation of a producer or consumer."
        )
        self._process_durations = meter.create_histogram(
            "messaging.process.duration", "s", "Duration of a call of a handler."
        )
        meter.create_observable_counter(
            "messaging.client.sent.messages", [self._sent], "{message}", "Messages that a producer tried to send."
        )
        meter.create_observable_counter(
            "messaging.client.consumed.messages",
            [self._consumed],
            "{message}",
            "Messages that were given to the application.",
        )
        meter.create_observable_up_down_counter(
            "messaging.client.sending.messages", [self._sending], "{message}", "Messages whose send has not ended."
        )
        meter.create_observable_gauge(
            "messaging.client.cached.messages",
            [self._cached],
            "{message}",
            "Messages in the memory of push consumers: pulled, and not consumed yet.",
        )
        #: Contexts in messages.
        self.carried = Carried()
        #: Push consumers whose messages in memory are observed.
        self.consumers: WeakSet[PushConsumer] = WeakSet()
        # One entry for each operation, topic and group: as few as there are topics and groups.
        self._labels: dict[tuple[str, str, str], Labels] = {}

    # --- metrics

    def labels(self, operation: str, kind: str, topic: str, group: str = "") -> Labels:
        """The labels of this operation, for its metrics and all its spans."""
        found = self._labels.get((operation, topic, group))
        if found is None:
            # setdefault: when two threads come here first, both count in the labels of the thread that wins.
            found = self._labels.setdefault((operation, topic, group), Labels(operation, kind, topic, group))
        return found

    def sent(self, labels: Labels, count: int, began: float, error: BaseException | None) -> None:
        """Count a send of ``count`` messages that has ended; it began at ``began`` (perf_counter)."""
        name = "" if error is None else type(error).__qualname__
        with labels.lock:
            labels.sending -= count
            labels.sent[name] = labels.sent.get(name, 0) + count
        self._durations.record(perf_counter() - began, labels.with_error(name))

    def operated(self, labels: Labels, began: float, error: BaseException | None) -> None:
        """Record the duration of another operation, which began at ``began`` (perf_counter) and has ended."""
        name = "" if error is None else type(error).__qualname__
        self._durations.record(perf_counter() - began, labels.with_error(name))

    def processed(self, labels: Labels, began: float, failed: str) -> None:
        """Record the duration of a handler's call since ``began``; ``failed`` is the kind of failure, or empty."""
        self._process_durations.record(perf_counter() - began, labels.with_error(failed))

    # In the thread of an exporter: only numbers are read, which other threads may change meanwhile.

    def _sent(self, options: CallbackOptions) -> Iterable[Observation]:
        for labels in list(self._labels.values()):
            for name, count in list(labels.sent.items()):
                yield Observation(count, labels.with_error(name))

    def _sending(self, options: CallbackOptions) -> Iterable[Observation]:
        return [Observation(each.sending, each.attributes) for each in list(self._labels.values()) if each.sent]

    def _consumed(self, options: CallbackOptions) -> Iterable[Observation]:
        return [Observation(each.consumed, each.attributes) for each in list(self._labels.values()) if each.consumed]

    def _cached(self, options: CallbackOptions) -> Iterable[Observation]:
        for consumer in list(self.consumers):
            yield Observation(consumer.cached, {SYSTEM: SYSTEM_VALUE, GROUP: consumer.group})

    # --- spans

    def span(
        self,
        labels: Labels,
        kind: SpanKind,
        more: Attributes,
        *,
        context: Context | None = None,
        links: Sequence[Link] = (),
        start_ns: int | None = None,
    ) -> Span:
        """A span that has begun, named as the conventions say."""
        return self.tracer.start_span(
            labels.span_name, context, kind, attributes={**labels.of_spans, **more}, links=links, start_time=start_ns
        )

    def links_to(self, messages: Sequence[MessageExt]) -> list[Link]:
        """Links to the contexts of messages."""
        found = []
        for message in messages[:MAX_LINKS]:
            # Within an empty context: otherwise a message without a context would be linked to the caller's span.
            context = self.carried.read(message.properties, Context())
            origin = trace.get_current_span(context).get_span_context()
            if origin.is_valid:
                found.append(Link(origin, {MESSAGE_ID: message.msg_id}))
        return found


def end_span(span: Span, error: BaseException | None) -> None:
    """End a span, with the error if there was one."""
    if error is not None and span.is_recording():
        span.set_attribute(ERROR, type(error).__qualname__)
        span.set_status(StatusCode.ERROR, str(error))
        span.record_exception(error)
    span.end()


class Operation:
    """An operation with a span, from ``with`` to its end. ``failure``: what went wrong without an exception."""

    __slots__ = ("_began", "_labels", "_span", "_telemetry", "failure")

    def __init__(self, telemetry: Telemetry, span: Span, labels: Labels) -> None:
        self._telemetry = telemetry
        self._span = span
        self._labels = labels
        self.failure = ""
        self._began = perf_counter()

    def __enter__(self) -> "Operation":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self.failure:
            self._span.set_status(StatusCode.ERROR, self.failure)
        self._telemetry.operated(self._labels, self._began, error)
        end_span(self._span, error)


def described(message: MessageExt) -> Attributes:
    """The attributes of a span for one stored message."""
    found: Attributes = {
        MESSAGE_ID: message.msg_id,
        QUEUE: str(message.queue_id),
        ATTEMPT: message.reconsume_times + 1,
    }
    return found | tags_and_keys(message.tags, message.keys)


def tags_and_keys(tags: str | None, keys: str | None) -> Attributes:
    """The attributes for a message's tag and keys."""
    found: Attributes = {}
    if tags:
        found[TAG] = tags
    if keys:
        found[KEYS] = keys.split(" ")
    return found
