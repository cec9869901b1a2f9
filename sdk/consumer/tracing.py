"""The trace of a consumer: which messages its handler got, when, how long each call took and how it ended.

The trace wraps the handler, so that a consumer without a trace has no extra cost. A handler in another thread or loop
records its calls there, and the records cross to the trio thread.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import wraps
from itertools import count
from math import inf
from typing import Any

from skylark.mqcommon.message.message import MessageExt
from skylark.sdk.client import ClientHandle
from skylark.sdk.consumer.outcome import ConsumeResult
from skylark.sdk.consumer.settings import PushSettings
from skylark.sdk.consumer.workers import ForeignHandlers, waking
from skylark.sdk.loop_thread import Inbox
from skylark.sdk.traces.entries import DEFAULT_REGION, Consumed, ConsumedMessage, Consuming, Entry
from skylark.sdk.traces.records import EXCEPTION, FAILED, SUCCESS, TIME_OUT
from skylark.sdk.traces.traces import Traces

_SUCCESSES = (None, ConsumeResult.SUCCESS)


class Call:
    """One call of a handler."""

    __slots__ = ("began_ns", "request_id", "taken")

    def __init__(self, taken: Sequence[ConsumedMessage], request_id: str) -> None:
        self.taken = taken
        self.request_id = request_id
        self.began_ns = time.monotonic_ns()


class Tracing:
    """Records what one consumer does in ``traces``. Handlers that take longer than ``timeout_ms`` have timed out."""

    def __init__(self, traces: Traces, client_id: Callable[[], str], timeout_ms: float = inf) -> None:
        self._traces = traces
        self._client_id = client_id
        self._timeout_ms = timeout_ms
        self._numbers = count(1)
        self._put: Callable[[Entry], None] = traces.note
        self._prefix = ""
        # Whether handlers run in threads, or in another loop.
        self._is_foreign = False

    async def open(self, client: ClientHandle) -> None:
        """Start to record. Closes ``client`` when that fails."""
        # A prefix of request ids that no other consumer has.
        self._prefix = f"{self._client_id()}-{time.time_ns():x}-"
        if self._is_foreign:
            self._put = Inbox(waking(), self._take).put
        await self._traces.open(client)

    async def close(self) -> None:
        """Send the records."""
        await self._traces.close()

    @property
    def dropped(self) -> int:
        """How many records were dropped."""
        return self._traces.dropped

    def read(self, messages: Sequence[MessageExt]) -> None:
        """Record that the caller gets these messages, as consumed: whether it consumes them is not known."""
        if (call := self.began(messages)) is not None:
            self.ended(call, SUCCESS)

    def began(self, messages: Sequence[MessageExt]) -> Call | None:
        """Record that a handler gets these messages; returns the call for `ended`, None when they are not traced."""
        if messages[0].topic == self._traces.topic:
            return None
        taken = [_taken(message) for message in messages if message.properties.get("TRACE_ON") != "false"]
        if not taken:
            return None
        call = Call(taken, f"{self._prefix}{next(self._numbers):x}")
        self._put(Consuming(taken, self._traces.group, call.request_id, time.time_ns() // 1_000_000))
        return call

    def handed_out(self, message: MessageExt) -> Callable[[bool], None] | None:
        """Record that the caller gets this message; returns a function to call with whether it was consumed.

        Returns None when the message is not traced.
        """
        call = self.began([message])
        return None if call is None else lambda is_consumed: self.ended(call, SUCCESS if is_consumed else FAILED)

    def ended(self, call: Call, code: int) -> None:
        """Record that the handler has ended, with RocketMQ's ``code`` for how it ended."""
        took_ms = (time.monotonic_ns() - call.began_ns) // 1_000_000
        if took_ms >= self._timeout_ms:
            code = TIME_OUT
        ended_ms = time.time_ns() // 1_000_000
        self._put(Consumed(call.taken, self._traces.group, call.request_id, ended_ms, took_ms, code))

    def traced(self, settings: PushSettings) -> PushSettings:
        """``settings`` with a handler that records its calls."""
        handler = settings.handler or settings.batch_handler
        if isinstance(handler, ForeignHandlers):
            self._is_foreign = True
            # A client that is made again, as in the child of a fork, passes the same handler: it may be wrapped with
            # the parent's trace, which is not sent in this process.
            handler.handler = self._wrapped(handler.plain)
            return settings
        if settings.handler is not None:
            return replace(settings, handler=self._wrapped(settings.handler))
        return replace(settings, batch_handler=settings.batch_handler and self._wrapped(settings.batch_handler))

    def _wrapped(self, handler: Callable[[Any], Any]) -> Callable[[Any], Any]:
        @wraps(handler)
        def traced(what: MessageExt | list[MessageExt]) -> Any:
            call = self.began(what if isinstance(what, list) else [what])
            if call is None:
                return handler(what)
            try:
                result = handler(what)
            except BaseException:
                self.ended(call, EXCEPTION)
                raise
            if hasattr(result, "__await__"):
                return self._awaited(call, result)
            self.ended(call, _code_of(result))
            return result

        return traced

    async def _awaited(self, call: Call, waiting: Any) -> object:
        try:
            result: object = await waiting
        except BaseException:
            self.ended(call, EXCEPTION)
            raise
        self.ended(call, _code_of(result))
        return result

    def _take(self, entries: deque[Entry]) -> None:
        while entries:
            self._traces.note(entries.popleft())


def _code_of(result: object) -> int:
    return SUCCESS if result in _SUCCESSES else FAILED


def _taken(message: MessageExt) -> ConsumedMessage:
    properties = message.properties
    region = properties.get("MSG_REGION") or DEFAULT_REGION
    return ConsumedMessage(message.msg_id, properties.get("KEYS", ""), message.reconsume_times, region)
