"""`SkylarkInstrumentor`: replaces methods of the SDK's classes by methods with spans and metrics, and restores them.

A program without instrumentation pays nothing: the SDK does not know this module. Clients that were made before keep
their handlers.
"""

from collections.abc import Awaitable, Callable, Collection
from contextlib import AbstractContextManager
from functools import partial, wraps
from inspect import iscoroutinefunction
from typing import Any

from opentelemetry import context as contexts
from opentelemetry.instrumentation.instrumentor import BaseInstrumentor  # type: ignore[attr-defined]
from opentelemetry.trace import Span

from skylark.mqcommon.message.message import MessageExt
from skylark.sdk import aio, blocking
from skylark.sdk.aio.portal import Portal
from skylark.sdk.blocking.loop import ClientLoop
from skylark.sdk.consumer.failures import Returns
from skylark.sdk.consumer.pull import PullConsumer
from skylark.sdk.consumer.push import PushConsumer
from skylark.sdk.consumer.simple import SimpleConsumer
from skylark.sdk.integrations.otel.consuming import ConsumingSpans
from skylark.sdk.integrations.otel.producing import ProducingSpans
from skylark.sdk.integrations.otel.telemetry import Telemetry
from skylark.sdk.producer.producer import Producer


class SkylarkInstrumentor(BaseInstrumentor):  # type: ignore[misc]  # that module is not typed
    """``SkylarkInstrumentor().instrument()``; it takes a ``tracer_provider`` and a ``meter_provider``."""

    def instrumentation_dependencies(self) -> Collection[str]:
        return ("skylark-mq >= 0.1",)

    def _instrument(self, **options: Any) -> None:
        self._replaced: list[tuple[type, str, Any]] = []
        telemetry = Telemetry(options.get("tracer_provider"), options.get("meter_provider"))
        producing, consuming = ProducingSpans(telemetry), ConsumingSpans(telemetry)
        for producer in (Producer, aio.Producer, blocking.Producer):
            for name in ("send", "send_oneway"):
                self._replace_call(producer, name, producing.sending)
            self._replace_call(producer, "send_many", producing.sending_many)
            self._replace(producer, "send_nowait", producing.queueing)
        for push in (PushConsumer, aio.PushConsumer, blocking.PushConsumer):
            takes_coroutines = push is not blocking.PushConsumer
            self._replace(push, "__init__", partial(consuming.constructor, takes_coroutines=takes_coroutines))
        for pull in (PullConsumer, aio.PullConsumer, blocking.PullConsumer):
            for name in ("pull", "poll"):
                self._replace_call(pull, name, consuming.receiving)
        for simple in (SimpleConsumer, aio.SimpleConsumer, blocking.SimpleConsumer):
            self._replace_call(simple, "receive", consuming.receiving)
            self._replace_call(simple, "ack", consuming.acknowledging)
        self._replace(Returns, "send_back", consuming.returning)
        for crossing in (Portal, ClientLoop):
            self._replace(crossing, "call", _with_context)
        self._consuming = consuming

    def _uninstrument(self, **options: Any) -> None:
        while self._replaced:
            owner, name, original = self._replaced.pop()
            setattr(owner, name, original)

    def _replace_call(self, owner: type, name: str, make: Callable[..., Any]) -> None:
        """Replace a method that waits or blocks, whichever the class has."""
        self._replace(owner, name, partial(make, waits=iscoroutinefunction(vars(owner)[name])))

    def _replace(self, owner: type, name: str, make: Callable[[Any], Any]) -> None:
        original = vars(owner)[name]
        setattr(owner, name, wraps(original)(make(original)))
        self._replaced.append((owner, name, original))

    def processing(self, message: MessageExt, group: str = "") -> AbstractContextManager[Span]:
        """See the function."""
        return self._consuming.processing(message, group)


def processing(message: MessageExt, group: str = "") -> AbstractContextManager[Span]:
    """``with processing(message): ...``: the block is the work on a message of a stream or of a pull.

    The block's span is the child of the span that sent the message. RuntimeError before
    `SkylarkInstrumentor.instrument`.
    """
    instrumentor = SkylarkInstrumentor()
    if not instrumentor.is_instrumented_by_opentelemetry:
        raise RuntimeError("call SkylarkInstrumentor().instrument() first")
    return instrumentor.processing(message, group)


def _with_context(original: Callable[..., Any]) -> Callable[..., Any]:
    """A call of a facade takes the caller's context along into the client's loop, where transactions send."""

    def call(crossing: Any, work: Callable[[Any], Awaitable[Any]]) -> Any:
        context = contexts.get_current()
        if not context:
            return original(crossing, work)

        async def in_context(client: Any) -> Any:
            token = contexts.attach(context)
            try:
                return await work(client)
            finally:
                contexts.detach(token)

        return original(crossing, in_context)

    return call
