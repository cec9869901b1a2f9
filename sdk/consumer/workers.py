"""Concurrent consumption: a number of tasks, each with one handler that runs at a time.

A task goes on to the next message without a switch of tasks when its handler did not wait, which is most of the speed
of short handlers. It lets others run every TURN_S. Another task takes the next message when a handler waits, and only
then: if all tasks took turns, everything else in the event loop would wait for all of them.
"""

from collections.abc import Callable, Sequence
from typing import Any

import trio
from trio.lowlevel import enable_ki_protection

from mqcommon.message.message import MessageExt
from sdk.consumer.contents import drop_contents, keep_contents
from sdk.consumer.failures import Counters, Failures, HandlerErrors
from sdk.consumer.outcome import ConsumeResult, Later, check_result
from sdk.consumer.ready import Ready, Takable
from sdk.consumer.settings import Settings

TURN_S = 0.002
# How many messages are handled between two looks at the clock.
LOOK_EVERY = 16
# The timeout of handlers is looked at this often in each timeout.
LOOKS_PER_TIMEOUT = 20
_SUCCESS = ConsumeResult.SUCCESS


class _Worker:
    """One task. ``batch`` and the numbers say what its handler works on; ``served`` counts its calls."""

    __slots__ = ("batch", "end", "is_in_turn", "scope", "seen", "seen_at", "served", "start")

    def __init__(self) -> None:
        self.scope = trio.CancelScope()
        self.batch: Takable | None = None
        # To others that means that its handler waits.
        self.is_in_turn = False
        self.start = 0
        self.end = 0
        self.served = 0
        # The value of ``served`` at the last look, and when it was first seen.
        self.seen = -1
        self.seen_at = 0.0


def _no_handler(_: object) -> None:
    raise AssertionError("a stream has no workers")


class Workers:
    """The handlers of one consumer. `run` returns after `stop`, when all of them have finished."""

    def __init__(
        self, settings: Settings, ready: Ready, failures: Failures, counters: Counters, errors: HandlerErrors
    ) -> None:
        self._errors = errors
        self._settings = settings
        self._ready = ready
        self._failures = failures
        self._counters = counters
        self._stopping = False
        # The task that goes on with the next message; another one takes its place when its handler waits.
        self._leader: _Worker | None = None
        self._workers = [_Worker() for _ in range(settings.concurrency)]
        self._is_single = settings.handler is not None
        self._handler: Callable[[Any], Any] = settings.handler or settings.batch_handler or _no_handler
        self._most = 1 if self._is_single else settings.batch_size

    async def run(self) -> None:
        """Handle messages until `stop`."""
        async with trio.open_nursery() as watching:
            watching.start_soon(self._watch, watching)
            async with trio.open_nursery() as nursery:
                for worker in self._workers:
                    nursery.start_soon(self._run, worker)
            watching.cancel_scope.cancel()

    def stop(self) -> None:
        """No handler begins any more."""
        self._stopping = True
        self._ready.wake_all()

    @enable_ki_protection
    async def _run(self, worker: _Worker) -> None:
        ready = self._ready
        while not self._stopping:
            # Cancelled when a handler takes too long; the task goes on with the next message.
            with trio.CancelScope() as worker.scope:
                while not self._stopping:
                    if ready.batches and self._may_lead(worker):
                        # It looks whether the handler waits, when this task stops for whatever reason.
                        ready.wake()
                        worker.is_in_turn = True
                        try:
                            await self._turn(worker)
                        finally:
                            worker.is_in_turn = False
                        await trio.lowlevel.checkpoint()
                    else:
                        if self._leader is worker:
                            self._leader = None
                        await ready.wait()

    def _may_lead(self, worker: _Worker) -> bool:
        leader = self._leader
        if leader is None or leader.is_in_turn:
            self._leader = worker
        return self._leader is worker

    async def _turn(self, worker: _Worker) -> None:
        """Handle messages until there are no more, or the turn is over."""
        ready, counters, most, handler = self._ready, self._counters, self._most, self._handler
        errors = self._errors
        began = trio.current_time()
        ends_at, look = began + TURN_S, LOOK_EVERY
        # Calls are noted together until one of them waits: to read the clock for each one would cost too much.
        totals, calls, consumed = ready.batches[0].window.totals, 0, 0
        try:
            while ready.batches and not self._stopping:
                batch = ready.batches[0]
                if batch.window.totals is not totals:
                    began = totals.note_calls(calls, consumed, began, trio.current_time())
                    totals, calls, consumed = batch.window.totals, 0, 0
                start = batch.taken
                end = batch.taken = start + 1 if most == 1 else min(start + most, len(batch.done))
                if end == len(batch.done):
                    ready.batches.popleft()
                worker.batch, worker.start, worker.end = batch, start, end
                worker.served += 1
                try:
                    if batch.has_packed:
                        result = await self._call_unpacked(batch.messages[start:end])
                    else:
                        result = handler(batch.messages[start] if self._is_single else list(batch.messages[start:end]))
                    if result is not None:
                        if hasattr(result, "__await__"):
                            result = await result
                        result = check_result(result)
                except Exception as error:
                    errors.raised(batch.messages[start:end], error, "it is delivered again later")
                    result = ConsumeResult.LATER
                if worker.batch is None:
                    # The handler took too long, and the broker has its messages. This scope is cancelled: another
                    # handler that is called in it would be cancelled, too.
                    return
                worker.batch = None
                calls += 1
                look -= end - start
                if result is None or result is _SUCCESS:
                    batch.finish(start, end)
                    counters.consumed += end - start
                    consumed += end - start
                    if look > 0 and self._leader is worker:  # else the handler has waited
                        continue
                began = totals.note_calls(calls, consumed, began, trio.current_time())
                calls = consumed = 0
                if not (result is None or result is _SUCCESS):
                    await self._failures.later(batch, start, end, result.delay_level if type(result) is Later else 0)
                    began = trio.current_time()
                if look <= 0:
                    look = LOOK_EVERY
                    if began > ends_at:
                        return
        finally:
            totals.note_calls(calls, consumed, began, trio.current_time())

    async def _call_unpacked(self, messages: Sequence[MessageExt]) -> Any:
        """What the handler returns for messages whose bodies may be compressed."""
        await keep_contents(messages)
        try:
            result = self._handler(messages[0] if self._is_single else list(messages))
            return await result if hasattr(result, "__await__") else result
        finally:
            drop_contents(messages)

    @enable_ki_protection
    async def _watch(self, nursery: trio.Nursery) -> None:
        """Cancel handlers that take longer than the timeout."""
        timeout_s = self._settings.consume_timeout_ms / 1000
        while True:
            await trio.sleep(timeout_s / LOOKS_PER_TIMEOUT)
            now = trio.current_time()
            for worker in self._workers:
                if worker.batch is None or worker.seen != worker.served:
                    worker.seen, worker.seen_at = worker.served, now
                elif now - worker.seen_at >= timeout_s:
                    self._expire(worker, nursery)

    def _expire(self, worker: _Worker, nursery: trio.Nursery) -> None:
        """Send the messages back now, whenever the handler ends: it may be in a thread, which cannot be cancelled."""
        batch, start, end = worker.batch, worker.start, worker.end
        assert batch is not None
        worker.batch = None
        worker.scope.cancel()
        what_next = "it is cancelled, the message is delivered again"
        self._errors.took_too_long(batch.messages[start], self._settings.consume_timeout_ms, what_next)
        nursery.start_soon(self._failures.later, batch, start, end)
