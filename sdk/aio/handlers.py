"""Handlers of an asyncio application: coroutine functions, or plain functions that do not block.

As many tasks as handlers may run at once live in the loop that opened the consumer. A task goes on to the next message
without a switch of tasks when its handler did not wait; it lets the application run every TURN_S.
"""

import asyncio
import contextvars
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from contextlib import suppress
from functools import partial
from types import CoroutineType
from typing import Any

from skylark.sdk.aio.loop_watch import WATCHES, LoopWatch
from skylark.sdk.consumer.problems import check_on_problem
from skylark.sdk.consumer.workers import ForeignHandlers, Job
from skylark.sdk.loop_thread import Inbox, call_each

TURN_S = 0.002
# How many handlers are called between two readings of the clock.
CLOCK_EVERY = 16


class AsyncioHandlers(ForeignHandlers):
    """Calls a handler in the loop that opens the consumer. `bind` and `close` are called in that loop."""

    is_loop = True

    def __init__(self, handler: Callable[[Any], object]) -> None:
        super().__init__(handler)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watch: LoopWatch | None = None
        self._context = contextvars.Context()
        self._works: Inbox[Callable[[], object]] | None = None
        # Trio adds jobs at the right; asyncio takes jobs from the left, and puts the rest of a job back at the left.
        self._jobs: deque[Job] = deque()
        self._running: dict[Job, None] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._idle: list[asyncio.Future[None]] = []
        self._is_stopping = False

    def bind(self) -> None:
        """Let handlers run in the present loop and context."""
        loop = self._loop = asyncio.get_running_loop()
        self._watch = WATCHES.of(loop)
        self._watch.add_user()
        self._context = contextvars.copy_context()

        def wake(run: Callable[[], None]) -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(run)

        self._works = Inbox(wake, call_each)

    async def close(self) -> None:
        """End the tasks. It may be called more than once."""
        if self._watch is not None:
            self._watch.remove_user()
            self._watch = None
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # --- called in trio

    def _start(self) -> None:
        self._to_asyncio(self._make_tasks)

    def begin(self, jobs: Sequence[Job]) -> None:
        self._jobs.extend(jobs)
        self._to_asyncio(self._wake_one)

    def running(self) -> Sequence[Job]:
        return list(self._running)

    def look_at_loop(self) -> None:
        # `close` may drop the watch meanwhile, in the other thread.
        if (watch := self._watch) is not None:
            watch.look()

    def cancel(self, job: Job) -> None:
        self._to_asyncio(lambda: self._cancel(job))

    def stop(self) -> None:
        self._is_stopping = True
        self._to_asyncio(self._wake_one)

    def _to_asyncio(self, work: Callable[[], object]) -> None:
        assert self._works is not None and self._loop is not None
        if self._loop.is_closed():
            self._give_back()
        else:
            self._works.put(work)

    def _give_back(self) -> None:
        """Return the jobs that the closed loop did not finish: the ending consumer must not wait for them."""
        left = [*self._running, *self._jobs]
        self._running.clear()
        self._jobs.clear()
        for job in left:
            # A single call (orderly consumption) has a caller, for which this would be a failure. The call is cancelled
            # when the consumer ends.
            if job.batch is not None:
                job.ended(job)

    # --- in asyncio

    def _make_tasks(self) -> None:
        assert self._loop is not None
        make = self._loop.create_task
        # A copy for each task: handlers that run concurrently must not see each other's context variables.
        self._tasks = [make(self._run(), context=self._context.copy()) for _ in range(self.concurrency)]

    def _cancel(self, job: Job) -> None:
        if job.runner is not None:
            job.was_cancelled = True
            job.runner.cancel()

    def _wake_one(self) -> None:
        while self._idle:
            idle = self._idle.pop()
            if not idle.done():
                idle.set_result(None)
                return

    async def _run(self) -> None:
        assert self._loop is not None
        jobs, me = self._jobs, asyncio.current_task()
        assert me is not None
        # A handler may swallow a cancellation that is meant for the task.
        while not me.cancelling():
            if jobs:
                if len(jobs) > 1:
                    # If a handler waits, another task should take the next message.
                    self._wake_one()
                await self._turn(me)
                await asyncio.sleep(0)
            else:
                idle = self._loop.create_future()
                self._idle.append(idle)
                await idle

    async def _turn(self, me: "asyncio.Task[Any]") -> None:
        """Call the handler until there are no more jobs, or the turn is over."""
        assert self._loop is not None
        jobs, now = self._jobs, self._loop.time
        ends_at = now() + TURN_S
        while jobs and now() < ends_at:
            job = jobs.popleft()
            if self._is_stopping or not job.is_wanted:
                job.ended(job)
            else:
                await self._call_each(job, me, ends_at)

    async def _call_each(self, job: Job, me: "asyncio.Task[Any]", ends_at: float) -> None:
        """Make the calls of ``job`` as long as they succeed without waiting. Later calls become separate jobs."""
        assert self._loop is not None
        handler, calls, now = self.handler, job.calls, self._loop.time
        began = now()
        for number, what in enumerate(calls):
            if self._is_stopping:
                break
            if number % CLOCK_EVERY == CLOCK_EVERY - 1 and now() > ends_at:
                self._end(job.part(0, number), now() - began)
                self._jobs.appendleft(job.part(number, len(calls)))
                return
            waiting: Awaitable[object] | None = None
            result: object = None
            failed: BaseException | None = None
            try:
                result = handler(what)
                if result is not None:
                    # Run the first step here: a coroutine that does not wait costs no task and no switch. A coroutine
                    # that waits yields a future for its task; `_Started` passes it on.
                    if type(result) is CoroutineType:
                        waiting = _Started(result, result.send(None))
                    elif isinstance(result, Awaitable):
                        waiting = result
            except StopIteration as end:
                result = end.value
            except (Exception, asyncio.CancelledError) as error:
                failed = error
            if result is None and waiting is None and failed is None:
                continue
            # A call that waits or has failed leaves its job: finished calls must be counted now, and later calls must
            # not wait for this call.
            one = self._split(job, number, now() - began)
            if number:
                began = now()
            if waiting is not None:
                await self._wait(one, waiting, me)
            else:
                one.result, one.error = result, failed
            one.took_s = now() - began
            one.was_called = True
            one.ended(one)
            return
        else:
            number = len(calls)
        self._end(job.part(0, number), now() - began, job.part(number, len(calls)))

    def _split(self, job: Job, number: int, took_s: float) -> Job:
        """The job of call ``number`` alone. The calls before it are done; a free task makes the calls after it."""
        if len(job.calls) == 1:
            return job
        self._end(job.part(0, number), took_s)
        if number + 1 < len(job.calls):
            self._jobs.appendleft(job.part(number + 1, len(job.calls)))
            self._wake_one()
        return job.part(number, number + 1)

    def _end(self, done: Job, took_s: float, left: Job | None = None) -> None:
        if done.calls:
            done.took_s = took_s
            done.was_called = True
            done.ended(done)
        if left is not None and left.calls and left is not done:
            left.ended(left)

    async def _wait(self, job: Job, waiting: Awaitable[object], me: "asyncio.Task[Any]") -> None:
        """Wait for the result of a handler."""
        job.runner = me
        self._running[job] = None
        try:
            job.result = await waiting
        except Exception as error:
            job.error = error
        except asyncio.CancelledError as error:
            # The handler raised, its time is over, or the consumer closes.
            job.error = error
            # `cancelling` counts the requests to cancel this task. `_cancel` makes one, for the handler only; any other
            # request ends the task itself.
            if me.cancelling() > job.was_cancelled:
                job.ended(job)
                raise
        finally:
            job.runner = None
            del self._running[job]
            if job.was_cancelled:
                me.uncancel()


class _Started:
    """Awaits a coroutine that was started and did not finish: the coroutine has yielded ``first`` to its task."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], first: object) -> None:
        self._coroutine = coroutine
        self._first = first

    def __await__(self) -> Generator[Any, Any, object]:
        coroutine, wanted = self._coroutine, self._first
        while True:
            try:
                sent = yield wanted
            except BaseException as error:  # thrown into the task: pass it to the coroutine
                step = partial(coroutine.throw, error)
            else:
                step = partial(coroutine.send, sent)
            try:
                wanted = step()
            except StopIteration as end:
                return end.value


class LoopCallback:
    """Calls a plain function in the loop that opens the consumer, and does not wait for its end."""

    def __init__(self, function: Callable[[Any], object]) -> None:
        check_on_problem(function)
        self._function = function
        self._loop: asyncio.AbstractEventLoop | None = None

    def bind(self) -> None:
        """Let the function be called in the present loop."""
        self._loop = asyncio.get_running_loop()

    async def close(self) -> None:
        """Does nothing: calls already scheduled in the loop still run."""

    def __call__(self, what: Any) -> None:
        assert self._loop is not None
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._function, what)


def in_loop(function: Callable[[Any], object] | None) -> LoopCallback | None:
    """``function`` in the form that a trio consumer takes."""
    return None if function is None else LoopCallback(function)


def in_tasks(handler: Callable[[Any], object] | None) -> AsyncioHandlers | None:
    """``handler`` in the form that a trio consumer takes."""
    return None if handler is None else AsyncioHandlers(handler)
