"""Concurrent consumption: who calls the handlers, in the trio loop (`Workers`) or outside of it (`ForeignWorkers`).

`Workers` are tasks, each with one handler that runs at a time. When its handler did not wait, a task goes on to the
next message without a task switch; short handlers owe most of their speed to that. The task lets others run every
TURN_S. Another task takes the next message only when a handler waits: if all tasks took turns, everything else in the
event loop would wait for all of them.

`ForeignWorkers` hand messages to threads (`skylark.blocking`) or to an asyncio loop (`skylark.aio`). Messages cross to
them as jobs, many at a time and more than run at once, and finished jobs cross back in the same way. So the cost of
waking another thread is shared by many messages. A job that waits there can still be taken back: when the consumer
stops, or the queue goes to another member, it is returned without a call of its handler, and its messages are left to
the next reader of the queue.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import trio
from trio.lowlevel import enable_ki_protection

from skylark.mqcommon.errors import SkylarkError
from skylark.mqcommon.message.message import MessageExt
from skylark.mqcommon.signal import Signal
from skylark.sdk.consumer.decompression import drop_contents, keep_contents
from skylark.sdk.consumer.failures import Counters, Failures, HandlerErrors
from skylark.sdk.consumer.outcome import ConsumeResult, Result, check_handler, check_result, failure_of
from skylark.sdk.consumer.process_queue import Ready, Takable
from skylark.sdk.consumer.retry_policy import Failure
from skylark.sdk.consumer.settings import PushSettings
from skylark.sdk.consumer.slow_handlers import SlowHandlers
from skylark.sdk.loop_thread import Inbox

TURN_S = 0.002
# How many messages are handled between two readings of the clock.
CLOCK_EVERY = 16


class _Worker:
    """One task. Its handler works on the messages from ``start`` to ``end`` of ``batch``; ``served`` counts calls."""

    __slots__ = ("batch", "end", "is_in_turn", "scope", "seen", "seen_at", "served", "start")

    def __init__(self) -> None:
        self.scope = trio.CancelScope()
        self.batch: Takable | None = None
        # False while the handler is suspended or the task is idle: then another worker may lead.
        self.is_in_turn = False
        self.start = 0
        self.end = 0
        self.served = 0
        # The value of ``served`` at the last check, and when this value was first seen.
        self.seen = -1
        self.seen_at = 0.0


def _no_handler(_: object) -> None:
    raise AssertionError("a stream has no workers")


class Workers:
    """The handlers of one consumer. `run` returns after `stop`, when all of them have finished."""

    def __init__(
        self, settings: PushSettings, ready: Ready, failures: Failures, counters: Counters, errors: HandlerErrors
    ) -> None:
        self._errors = errors
        self._settings = settings
        self._ready = ready
        self._failures = failures
        self._counters = counters
        self._stopping = False
        # The task that goes on with the next message; another task takes its place when its handler waits.
        self._leader: _Worker | None = None
        self._workers = [_Worker() for _ in range(settings.concurrency)]
        self._is_single = settings.handler is not None
        self._handler: Callable[[Any], Any] = settings.handler or settings.batch_handler or _no_handler
        self._most = 1 if self._is_single else settings.batch_size
        self._slow = SlowHandlers(settings)

    async def run(self) -> None:
        """Handle messages until `stop`."""
        async with trio.open_nursery() as watching:
            watching.start_soon(self._watch, watching)
            async with trio.open_nursery() as nursery:
                for worker in self._workers:
                    nursery.start_soon(self._work, worker)
            watching.cancel_scope.cancel()

    def stop(self) -> None:
        """Let no further handler begin."""
        self._stopping = True
        self._ready.wake_all()

    @enable_ki_protection
    async def _work(self, worker: _Worker) -> None:
        ready = self._ready
        while not self._stopping:
            # Cancelled when a handler takes too long; the task goes on with the next message.
            with trio.CancelScope() as worker.scope:
                while not self._stopping:
                    if ready.batches and self._may_lead(worker):
                        # The woken task runs when this task is suspended: if the handler waits, it becomes the leader.
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
        ends_at, unclocked = began + TURN_S, CLOCK_EVERY
        # Calls are counted together until one of them waits: reading the clock for each call would cost too much.
        totals, calls, consumed = ready.batches[0].window.totals, 0, 0
        failure: Failure | None = None
        try:
            while ready.batches and not self._stopping:
                batch = ready.batches[0]
                if batch.window.totals is not totals:
                    began = totals.add_calls(calls, consumed, began, trio.current_time())
                    totals, calls, consumed = batch.window.totals, 0, 0
                start = batch.taken
                end = batch.taken = start + 1 if most == 1 else min(start + most, len(batch.done))
                if end == len(batch.done):
                    ready.batches.popleft()
                # From here until ``worker.batch`` is None, `_watch` may take the messages away from the handler.
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
                    if readable := [*self._failures.readable(batch, start, end).values()]:
                        errors.raised(readable, error, self._failures.what_next(readable[0], error))
                    result, failure = ConsumeResult.LATER, Failure.raised(error)
                if worker.batch is None:
                    # The handler took too long, and the broker has its messages. This scope is cancelled: another
                    # handler that is called in it would be cancelled, too.
                    return
                worker.batch = None
                calls += 1
                unclocked -= end - start
                # The fast path: the next message at once, without reading the clock. ``unclocked`` bounds the messages
                # handled in this way; another leader means that the handler has waited, so that other tasks have run.
                if result is None or result is _SUCCESS:
                    batch.finish(start, end)
                    counters.consumed += end - start
                    consumed += end - start
                    if unclocked > 0 and self._leader is worker:  # else the handler has waited
                        continue
                began = totals.add_calls(calls, consumed, began, trio.current_time())
                calls = consumed = 0
                if not (result is None or result is _SUCCESS):
                    await self._failures.failed(batch, start, end, failure or failure_of(result))
                    failure = None
                    began = trio.current_time()
                if unclocked <= 0:
                    unclocked = CLOCK_EVERY
                    if began > ends_at:
                        return
        finally:
            totals.add_calls(calls, consumed, began, trio.current_time())

    async def _call_unpacked(self, messages: Sequence[MessageExt]) -> Any:
        """Call the handler with messages whose bodies may be compressed, and return its result."""
        await keep_contents(messages)
        try:
            result = self._handler(messages[0] if self._is_single else list(messages))
            return await result if hasattr(result, "__await__") else result
        finally:
            drop_contents(messages)

    @enable_ki_protection
    async def _watch(self, nursery: trio.Nursery) -> None:
        """Cancel handlers that take longer than the timeout, and log slow ones."""
        timeout_s = self._settings.consume_timeout_ms / 1000
        while True:
            await trio.sleep(timeout_s / CHECKS_PER_TIMEOUT)
            now = trio.current_time()
            running: list[tuple[object, float, MessageExt]] = []
            for worker in self._workers:
                if worker.batch is None or worker.seen != worker.served:
                    worker.seen, worker.seen_at = worker.served, now
                elif now - worker.seen_at >= timeout_s:
                    self._expire(worker, nursery)
                else:
                    running.append((worker, worker.seen_at, worker.batch.messages[worker.start]))
            self._slow.check(running, now)

    def _expire(self, worker: _Worker, nursery: trio.Nursery) -> None:
        """Send the messages back now, whenever the handler ends: it may be in a thread, which cannot be cancelled."""
        batch, start, end = worker.batch, worker.start, worker.end
        assert batch is not None
        worker.batch = None
        # In this order: ``batch`` is None, so the worker ignores the handler's result; the worker is cancelled; a task
        # that outlives the worker sends the messages back.
        worker.scope.cancel()
        if readable := [*self._failures.readable(batch, start, end).values()]:
            what_next = f"the handler is cancelled; {self._failures.what_next(readable[0], None)}"
            failure = self._errors.took_too_long(readable[0], self._settings.consume_timeout_ms, what_next)
            nursery.start_soon(self._failures.failed, batch, start, end, failure)


# How many messages wait on the other side beyond the messages in handlers. The other side is refilled at half of this
# limit, so that many messages cross at a time: with 512, handlers of single messages in threads reached 0.65 of the
# speed of handlers in trio, and 0.88 with 4,096.
AHEAD = 4_096
# The same when bodies are compressed, because a loop's messages are decompressed before they cross.
AHEAD_PACKED = 512
# How many messages are in a job.
MOST_CALLS = 256
# Handlers are checked for their timeout this often in each timeout.
CHECKS_PER_TIMEOUT = 20
_SUCCESS = ConsumeResult.SUCCESS


class Job:
    """Calls of a handler, one after another: ``calls`` has their arguments.

    With a handler of single messages there is a call for each message from number ``start`` up to, not including,
    ``end``; otherwise one call for all of them. The other side sets ``was_called``, ``took_s`` (how long the calls
    took), and ``result`` or ``error``. ``was_cancelled`` is for the other side.
    """

    # Most jobs keep most of these defaults, so they are class attributes until a job sets them.
    was_called = was_cancelled = False
    result: object = None
    error: BaseException | None = None
    #: What the other side needs to cancel the job.
    runner: Any = None
    seen_at = took_s = 0.0

    def __init__(
        self,
        batch: Takable | None,
        start: int,
        end: int,
        calls: Sequence[Any],
        ended: "Callable[[Job], object]",
        overdue: set[int],
    ) -> None:
        self.batch = batch
        self.start = start
        self.end = end
        self.calls = calls
        # Called on the other side in the end, whatever the outcome.
        self.ended = ended
        # The first messages of calls that took too long, whose results are ignored. Shared by all parts of a job, as a
        # call may time out before it is known with which part of the job it ends.
        self._overdue = overdue

    @property
    def is_wanted(self) -> bool:
        """Whether this member still owns the job's messages, or a caller waits for the result of this one call."""
        return not (self.is_overdue if self.batch is None else self.batch.window.is_closed)

    @property
    def is_overdue(self) -> bool:
        """Whether this job, of one call, has taken too long, so that its result is ignored."""
        return self.start in self._overdue

    def give_up(self) -> None:
        """Ignore the result of this job, of one call: it has taken too long."""
        self._overdue.add(self.start)

    def part(self, start: int, end: int) -> "Job":
        """A separate job for some of the calls."""
        if end - start == len(self.calls):
            return self
        return Job(self.batch, self.start + start, self.start + end, self.calls[start:end], self.ended, self._overdue)

    def in_time(self) -> "list[Job]":
        """The parts of this job, which has ended, whose calls did not take too long."""
        if not self._overdue or self._overdue.isdisjoint(range(self.start, self.end)):
            return [self]
        if len(self.calls) == 1:
            return []
        parts = [
            self.part(number, number + 1)
            for number in range(len(self.calls))
            if self.start + number not in self._overdue
        ]
        for part in parts:
            part.was_called, part.took_s = self.was_called, self.took_s / len(self.calls)
        return parts


class ForeignHandlers(ABC):
    """One handler, and the threads or the loop that call it. All methods are called in trio's thread; none blocks.

    An instance is itself an async handler: orderly consumption calls it so, one message at a time.
    """

    #: Whether handlers would hold up an event loop if they decompressed large bodies.
    is_loop = False

    def __init__(self, handler: Callable[[Any], object]) -> None:
        check_handler("handler", handler)
        #: A handler of messages, without a trace.
        self.plain = handler
        #: The function to call: ``plain``, or ``plain`` wrapped with a trace.
        self.handler = handler
        #: How many calls run at once.
        self.concurrency = 1
        self._token: trio.lowlevel.TrioToken | None = None

    def start(self) -> None:
        """Call handlers from now on. May be called again."""
        token = trio.lowlevel.current_trio_token()
        if self._token is not token:  # the first time, or the first time in the child of a fork
            self._token = token
            self._start()

    @abstractmethod
    def _start(self) -> None: ...

    @abstractmethod
    def begin(self, jobs: Sequence[Job]) -> None:
        """Call the handler for these jobs, in their order, as soon as a call may run."""

    @abstractmethod
    def running(self) -> Sequence[Job]:
        """Jobs of one call that have been running for a while. A running call keeps its job."""

    def look_at_loop(self) -> None:  # noqa: B027  not abstract: threads have no loop to look at
        """Log the event loop of the handlers if it is blocked now."""

    @abstractmethod
    def cancel(self, job: Job) -> None:
        """Cancel the running job, of one call, if that is possible."""

    @abstractmethod
    def stop(self) -> None:
        """Return jobs whose handler was not called yet, and make no further calls."""

    async def __call__(self, what: Any) -> Any:
        """Call the handler for one message, or a list of them, and wait for its result."""
        self.start()
        ended = trio.Event()
        inbox: Inbox[Job] = Inbox(waking(), lambda jobs: ended.set())
        job = Job(None, 0, 1, [what], inbox.put, set())
        self.begin([job])
        try:
            await ended.wait()
        # The handler may run in a thread, which cannot be cancelled: cancel the job, and do not wait for it.
        except trio.Cancelled:
            job.give_up()
            self.cancel(job)
            raise
        if not job.was_called:
            raise SkylarkError("the consumer stops; the handler was not called")
        if job.error is None:
            return job.result
        # A cancellation or an exit on the other side (asyncio.CancelledError, SystemExit) must not end this loop.
        if not isinstance(job.error, Exception):
            raise RuntimeError(f"the handler raised {job.error!r}") from job.error
        raise job.error


def waking() -> Callable[[Callable[[], None]], None]:
    """A thread-safe function that makes this loop call a function soon; after the loop's end it does nothing."""
    token = trio.lowlevel.current_trio_token()

    def wake(work: Callable[[], None]) -> None:
        with suppress(trio.RunFinishedError):
            token.run_sync_soon(work)

    return wake


class ForeignWorkers:
    """As `Workers`, for handlers outside trio: `run` returns after `stop`, when all handlers have finished."""

    def __init__(
        self,
        settings: PushSettings,
        ready: Ready,
        failures: Failures,
        counters: Counters,
        errors: HandlerErrors,
        handlers: ForeignHandlers,
    ) -> None:
        self._errors = errors
        self._settings = settings
        self._ready = ready
        self._failures = failures
        self._counters = counters
        self._handlers = handlers
        self._is_single = settings.handler is not None
        self._most = 1 if self._is_single else settings.batch_size
        self._at_once = settings.concurrency * self._most
        self._slow = SlowHandlers(settings)
        # How many messages are on the other side, or on their way back to a broker.
        self._away = 0
        # Jobs to send back, and how many tasks send: at most as many as handlers run, as with `Workers`. Thousands of
        # requests at a time would time out at the broker, be sent again, and be stored twice.
        self._to_return: deque[tuple[Job, Failure]] = deque()
        self._returning = 0
        self._changed = Signal()
        self._stopping = False
        self._nursery: trio.Nursery | None = None
        self._inbox: Inbox[Job] | None = None

    async def run(self) -> None:
        """Hand out messages until `stop`."""
        try:
            await self._run()
        finally:
            # A handler whose result is ignored may still end later.
            self._nursery = None

    async def _run(self) -> None:
        async with trio.open_nursery() as watching:
            watching.start_soon(self._watch_ready)
            watching.start_soon(self._watch)
            async with trio.open_nursery() as self._nursery:
                self._inbox = Inbox(waking(), self._take_back)
                self._handlers.start()
                batches = self._ready.batches
                while not self._stopping:
                    # Refilled at half of the limit, so that many messages cross with one wake-up of the other thread.
                    if batches and self._away <= self._limit(batches[0]) // 2:
                        jobs = self._next_jobs()
                        if self._handlers.is_loop:
                            await self._keep_contents(jobs)
                        self._handlers.begin(jobs)
                        await trio.lowlevel.checkpoint()
                    else:
                        await self._changed.wait()
                self._handlers.stop()
                # Every job that has crossed comes back: called, failed or not begun. Only then the offsets to commit
                # are known.
                while self._away:
                    await self._changed.wait()
            watching.cancel_scope.cancel()

    def stop(self) -> None:
        """Let no further handler begin."""
        self._stopping = True
        self._changed.set()

    @enable_ki_protection
    async def _watch_ready(self) -> None:
        while True:
            await self._ready.wait()
            self._changed.set()

    def _limit(self, batch: Takable) -> int:
        """How many messages may be on the other side before messages of ``batch`` cross."""
        ahead = AHEAD_PACKED if batch.has_packed and self._handlers.is_loop else AHEAD
        return self._at_once + max(ahead, 2 * self._most)

    def _next_jobs(self) -> list[Job]:
        """Jobs for the messages that are ready, as many as there is room for."""
        assert self._inbox is not None
        batches, ended = self._ready.batches, self._inbox.put
        most = MOST_CALLS if self._is_single else self._most
        taken: list[Job] = []
        while batches and self._away < self._limit(batches[0]):
            batch = batches[0]
            start, total = batch.taken, len(batch.done)
            end = batch.taken = min(total, start + most)
            if end == total:
                batches.popleft()
            messages = list(batch.messages[start:end])
            taken.append(Job(batch, start, end, messages if self._is_single else [messages], ended, set()))
            self._away += end - start
        return taken

    async def _keep_contents(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            if job.batch is not None and job.batch.has_packed:
                await keep_contents(self._messages(job))

    def _take_back(self, jobs: deque[Job]) -> None:
        """Jobs have ended. Consecutive successful messages finish in their batch with one call."""
        if self._nursery is None:
            jobs.clear()
            return
        ended: list[Job] = []
        while jobs:
            ended += jobs.popleft().in_time()
        batch: Takable | None = None
        start = end = 0
        for job in ended:
            if job.batch is not None and job.batch.has_packed:
                drop_contents(self._messages(job))
            # The job had not begun when the consumer stopped or the queue was lost: its messages stay in the window,
            # and the next owner of the queue reads them.
            if not job.was_called:
                self._away -= job.end - job.start
                if job.batch is not None:
                    job.batch.leave(job.start, job.end)
                continue
            if job.batch is not None:
                job.batch.window.totals.add_calls(len(job.calls), 0, 0.0, job.took_s)
            if job.error is None and (job.result is None or job.result is _SUCCESS):
                self._away -= job.end - job.start
                # Consecutive successful jobs become one range, with one call of `finish` for all of them.
                if batch is not job.batch or end != job.start:
                    self._consumed(batch, start, end)
                    batch, start = job.batch, job.start
                end = job.end
            else:
                self._failed(job)
        self._consumed(batch, start, end)
        self._changed.set()

    def _consumed(self, batch: Takable | None, start: int, end: int) -> None:
        if batch is not None:
            self._counters.consumed += end - start
            batch.window.totals.consumed += end - start
            batch.finish(start, end)
            if self._errors.is_failing:
                self._errors.succeeded()

    def _failed(self, job: Job) -> None:
        error, result = job.error, None
        if error is None:
            try:
                result = check_result(job.result)
            except TypeError as wrong:
                error = wrong
        if error is None:
            self._return(job, failure_of(result))
        else:
            if readable := self._readable(job):
                self._errors.raised(readable, error, self._failures.what_next(readable[0], error))
            self._return(job, Failure.raised(error))

    def _readable(self, job: Job) -> Sequence[MessageExt]:
        """The messages of a job that has a batch and has failed; damaged messages are settled."""
        assert job.batch is not None
        return [*self._failures.readable(job.batch, job.start, job.end).values()]

    def _messages(self, job: Job) -> Sequence[MessageExt]:
        messages: Sequence[MessageExt] = job.calls if self._is_single else job.calls[0]
        return messages

    def _return(self, job: Job, failure: Failure) -> None:
        assert self._nursery is not None
        self._to_return.append((job, failure))
        if self._returning < self._settings.concurrency:
            self._returning += 1
            self._nursery.start_soon(self._send_back)

    @enable_ki_protection
    async def _send_back(self) -> None:
        while self._to_return:
            job, failure = self._to_return.popleft()
            assert job.batch is not None
            await self._failures.failed(job.batch, job.start, job.end, failure)
            # Only now: no more messages cross while too many of them wait here.
            self._away -= job.end - job.start
            self._changed.set()
        self._returning -= 1

    @enable_ki_protection
    async def _watch(self) -> None:
        """Cancel handlers that take longer than the timeout, and send their messages back now."""
        timeout_s = self._settings.consume_timeout_ms / 1000
        while True:
            await trio.sleep(timeout_s / CHECKS_PER_TIMEOUT)
            now = trio.current_time()
            self._handlers.look_at_loop()
            running: list[tuple[object, float, MessageExt]] = []
            for job in self._handlers.running():
                if job.batch is None or job.is_overdue:
                    continue
                if not job.seen_at:
                    job.seen_at = now
                elif now - job.seen_at < timeout_s:
                    running.append((job, job.seen_at, self._messages(job)[0]))
                else:
                    # The messages are sent back now. When the handler ends after all, `_take_back` ignores the job.
                    job.give_up()
                    self._handlers.cancel(job)
                    failure, timeout_ms = Failure(""), self._settings.consume_timeout_ms
                    if readable := self._readable(job):
                        what_next = self._failures.what_next(readable[0], None)
                        failure = self._errors.took_too_long(readable[0], timeout_ms, what_next)
                    self._return(job, failure)
            self._slow.check(running, now)


def make_workers(
    settings: PushSettings, ready: Ready, failures: Failures, counters: Counters, errors: HandlerErrors
) -> Workers | ForeignWorkers:
    """The object that calls the handlers of a consumer."""
    handlers = settings.handler or settings.batch_handler
    if isinstance(handlers, ForeignHandlers):
        handlers.concurrency = settings.concurrency
        return ForeignWorkers(settings, ready, failures, counters, errors, handlers)
    return Workers(settings, ready, failures, counters, errors)


async def call_handler(settings: PushSettings, messages: Sequence[MessageExt]) -> Result:
    """The handler's result for ``messages`` (one, unless the handler takes several). Raises the handler's error."""
    result: Any
    await keep_contents(messages)
    if settings.handler is not None:
        result = settings.handler(messages[0])
    else:
        assert settings.batch_handler is not None
        result = settings.batch_handler(list(messages))
    if hasattr(result, "__await__"):
        result = await result
    return check_result(result)
