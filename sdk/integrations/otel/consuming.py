"""Spans of handlers, of receives, and of settlements of messages.

A handler's span is the child of the span that sent its message, so that a trace is one tree through the broker, also
when the message is delivered again. A span of several messages is linked to their contexts.
"""

import inspect
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Any

from opentelemetry import context as contexts
from opentelemetry.trace import Span, SpanKind, StatusCode, set_span_in_context

from skylark.mqcommon.message.message import MessageExt
from skylark.sdk.consumer.outcome import ConsumeResult, Later, check_handler
from skylark.sdk.consumer.workers import ForeignHandlers
from skylark.sdk.integrations.otel.telemetry import (
    COUNT,
    ERROR,
    REASON,
    RESULT,
    Attributes,
    Operation,
    Telemetry,
    described,
    end_span,
)
from skylark.sdk.values.handlers import reading_values

_SUCCESSES = (None, ConsumeResult.SUCCESS)


class HandlerCall:
    """One call of a handler, and its span."""

    __slots__ = ("_labels", "_telemetry", "_token", "began", "context", "span")

    def __init__(self, telemetry: Telemetry, messages: Sequence[MessageExt], group: str, *, is_batch: bool) -> None:
        topic = messages[0].topic
        self._telemetry = telemetry
        self._labels = labels = telemetry.labels("process", "process", topic, group)
        with labels.lock:
            labels.consumed += len(messages)
        # A span has one parent. A batch has messages of several traces, so its span is in the consumer's trace, and is
        # linked to the messages' contexts.
        if is_batch:
            parent = contexts.get_current()
            more: Attributes = {COUNT: len(messages)}
            links = telemetry.links_to(messages)
        else:
            parent, links, more = telemetry.carried.read(messages[0].properties), [], {}
        self.span: Span = telemetry.span(labels, SpanKind.CONSUMER, more, context=parent, links=links)
        if not is_batch and self.span.is_recording():
            self.span.set_attributes(described(messages[0]))
        self.context = set_span_in_context(self.span, parent)
        self.began = perf_counter()
        self._token: Any = None

    def enter(self) -> None:
        """Make the call's span current in this task."""
        self._token = contexts.attach(self.context)

    def leave(self) -> None:
        """Restore the span that was current before `enter`."""
        contexts.detach(self._token)

    def ended(self, result: object) -> None:
        """End the call's span: the handler has returned ``result``."""
        failed = ""
        if result not in _SUCCESSES:
            failed = result.value if isinstance(result, ConsumeResult) else "LATER"
            # The SDK treats any other value as a mistake, and has the message delivered again.
            if not isinstance(result, ConsumeResult | Later):
                failed = "TypeError"
            self.span.set_attribute(RESULT, failed)
            # To suspend a queue is the handler's choice, not its failure.
            if result is not ConsumeResult.SUSPEND:
                self.span.set_attribute(ERROR, failed)
                self.span.set_status(
                    StatusCode.ERROR, getattr(result, "reason", "") or f"the handler returned {failed}"
                )
        self.span.end()
        self._telemetry.processed(self._labels, self.began, failed)

    def raised(self, error: BaseException) -> None:
        """End the call's span: the handler has raised ``error``."""
        end_span(self.span, error)
        self._telemetry.processed(self._labels, self.began, type(error).__qualname__)


class ConsumingSpans:
    """Makes the replacements for handlers and for methods of consumers."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry

    def constructor(self, original: Callable[..., None], *, takes_coroutines: bool) -> Callable[..., None]:
        """Wrap ``original``, the ``__init__`` of a push consumer, so that its handlers make spans.

        ``takes_coroutines``: handlers may be coroutine functions.
        """

        def init(consumer: Any, *args: Any, **named: Any) -> None:
            group = str(named.get("group", ""))
            for name in ("handler", "batch_handler"):
                handler = named.get(name)
                # A facade's handlers have their spans in its threads or its loop. An invalid handler is refused by
                # ``original``.
                if not callable(handler) or isinstance(handler, ForeignHandlers):
                    continue
                if inspect.iscoroutinefunction(handler) and not takes_coroutines:
                    continue
                named[name] = self._handler(name, handler, group)
            original(consumer, *args, **named)
            if hasattr(consumer, "_parts"):
                self._telemetry.consumers.add(consumer)

        return init

    def _handler(self, name: str, handler: Callable[..., Any], group: str) -> Callable[[Any], Any]:
        is_batch = name == "batch_handler"
        inner = handler if is_batch else reading_values(handler) or handler
        check_handler(name, inner)

        def handle(what: Any) -> Any:
            call = HandlerCall(self._telemetry, what if is_batch else [what], group, is_batch=is_batch)
            call.enter()
            try:
                result = inner(what)
            except BaseException as error:
                call.raised(error)
                raise
            finally:
                call.leave()
            # A coroutine has not begun to run: its context is attached again where it is awaited, which may be in
            # another task.
            if hasattr(result, "__await__"):
                return _awaited(call, result)
            call.ended(result)
            return result

        return handle

    @contextmanager
    def processing(self, message: MessageExt, group: str) -> Iterator[Span]:
        """Make a span of the block, which works on ``message``, received by the caller."""
        call = HandlerCall(self._telemetry, [message], group, is_batch=False)
        call.enter()
        try:
            yield call.span
        except BaseException as error:
            call.raised(error)
            raise
        else:
            call.ended(None)
        finally:
            call.leave()

    def receiving(self, original: Callable[..., Any], *, waits: bool) -> Callable[..., Any]:
        """Wrap ``original``, a method that returns messages, or a result with messages, so that it makes a span.

        ``waits``: it is a coroutine function. A call that finds no messages has no span.
        """

        async def receive(consumer: Any, *args: Any, **named: Any) -> Any:
            began_ns, began = time.time_ns(), perf_counter()
            found = await original(consumer, *args, **named)
            self._received(consumer, found, began_ns, began)
            return found

        def receive_blocking(consumer: Any, *args: Any, **named: Any) -> Any:
            began_ns, began = time.time_ns(), perf_counter()
            found = original(consumer, *args, **named)
            self._received(consumer, found, began_ns, began)
            return found

        return receive if waits else receive_blocking

    def _received(self, consumer: Any, found: Any, began_ns: int, began: float) -> None:
        messages: Sequence[MessageExt] = getattr(found, "messages", found)
        if not messages:
            return
        topic, group, telemetry = messages[0].topic, str(getattr(consumer, "group", "")), self._telemetry
        labels = telemetry.labels("receive", "receive", topic, group)
        with labels.lock:
            labels.consumed += len(messages)
        telemetry.operated(labels, began, None)
        more: Attributes = {COUNT: len(messages)}
        telemetry.span(labels, SpanKind.CLIENT, more, links=self._telemetry.links_to(messages), start_ns=began_ns).end()

    def acknowledging(self, original: Callable[..., Any], *, waits: bool) -> Callable[..., Any]:
        """Wrap ``original``, the ``ack`` of a SimpleConsumer, so that it makes a span; ``waits``: it is a coroutine."""

        def begin(consumer: Any, messages: Any) -> Operation:
            listed = [messages] if isinstance(messages, MessageExt) else list(messages)
            telemetry, topic = self._telemetry, listed[0].topic if listed else ""
            labels = telemetry.labels("ack", "settle", topic, str(consumer.group))
            span = telemetry.span(labels, SpanKind.CLIENT, {COUNT: len(listed)}, links=self._telemetry.links_to(listed))
            return Operation(telemetry, span, labels)

        async def ack(consumer: Any, messages: Any) -> Any:
            with begin(consumer, messages):
                return await original(consumer, messages)

        def ack_blocking(consumer: Any, messages: Any) -> Any:
            with begin(consumer, messages):
                return original(consumer, messages)

        return ack if waits else ack_blocking

    def returning(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap ``original``, by which a message goes back to its broker, for another delivery or as a dead letter."""
        telemetry = self._telemetry

        async def send_back(returns: Any, mq: Any, message: MessageExt, delay_level: int, reason: str) -> bool:
            is_dead = delay_level < 0 or message.reconsume_times >= returns.max_reconsume_times
            operation = "dead_letter" if is_dead else "retry"
            labels = telemetry.labels(operation, "settle", message.topic, str(returns.group))
            more: Attributes = {REASON: reason, **described(message)}
            span = telemetry.span(labels, SpanKind.CLIENT, more, context=telemetry.carried.read(message.properties))
            with Operation(telemetry, span, labels) as returned:
                is_taken: bool = await original(returns, mq, message, delay_level, reason)
                returned.failure = "" if is_taken else "no broker has taken the message back"
                return is_taken

        return send_back


async def _awaited(call: HandlerCall, waiting: Any) -> Any:
    call.enter()
    try:
        result = await waiting
    except BaseException as error:
        call.raised(error)
        raise
    else:
        call.ended(result)
        return result
    finally:
        call.leave()
