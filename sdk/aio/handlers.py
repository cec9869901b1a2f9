"""Handlers of an asyncio application: coroutine functions, or plain functions that do not block.

As many tasks as handlers may run at once live in the loop that opened the consumer. A task goes on to the next message
without a switch of tasks when its handler did not wait; it lets the application run every TURN_S.
"""

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from sdk.consumer.elsewhere import HandlersElsewhere, Job
from sdk.inbox import Inbox, call_each

TURN_S = 0.002
# How many handlers are called between two looks at the clock.
LOOK_EVERY = 16


class AsyncioHandlers(HandlersElsewhere):
    """`bind` is called in the loop that opens the consumer, `close` there when it is closed."""

    def __init__(self, handler: Callable[[Any], object]) -> None:
        super().__init__(handler)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._context = contextvars.Context()
        self._works: Inbox[Callable[[], object]] | None = None
        self._jobs: deque[Job] = deque()
        self._tasks: list[asyncio.Task[None]] = []
        self._idle: list[asyncio.Future[None]] = []
        self._is_stopping = False

    def bind(self) -> None:
        """Handlers run in this loop and context."""
        loop = self._loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()

        def wake(run: Callable[[], None]) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(run)

        self._works = Inbox(wake, call_each)

    async def close(self) -> None:
        """End the tasks."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # --- called in trio

    def _start(self) -> None:
        self._to_asyncio(self._make_tasks)

    def begin(self, jobs: Sequence[Job]) -> None:
        self._to_asyncio(lambda: self._add(jobs))

    def cancel(self, job: Job) -> None:
        self._to_asyncio(lambda: self._cancel(job))

    def stop(self) -> None:
        self._is_stopping = True
        self._to_asyncio(self._wake_one)

    def _to_asyncio(self, work: Callable[[], object]) -> None:
        assert self._works is not None
        self._works.put(work)

    # --- in asyncio

    def _make_tasks(self) -> None:
        assert self._loop is not None
        make = self._loop.create_task
        self._tasks = [make(self._run(), context=self._context) for _ in range(self.concurrency)]

    def _add(self, jobs: Sequence[Job]) -> None:
        self._jobs.extend(jobs)
        self._wake_one()

    def _cancel(self, job: Job) -> None:
        if job.runner is not None:
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
        while True:
            if jobs:
                if len(jobs) > 1:
                    # If a handler waits, there should be somebody for the next message.
                    self._wake_one()
                await self._turn(me)
                await asyncio.sleep(0)
            else:
                idle = self._loop.create_future()
                self._idle.append(idle)
                await idle

    async def _turn(self, me: "asyncio.Task[Any]") -> None:
        """Call the handler until there is nothing to do, or the turn is over."""
        assert self._loop is not None
        jobs, handler, now = self._jobs, self.handler, self._loop.time
        ends_at, look = now() + TURN_S, LOOK_EVERY
        while jobs:
            job = jobs.popleft()
            batch = job.batch
            if self._is_stopping or (batch is not None and batch.window.is_closed):
                job.ended(job)
                continue
            job.runner = me
            job.was_called = True
            try:
                result = handler(job.what)
                if result is not None:
                    job.result = await result if hasattr(result, "__await__") else result
            except Exception as error:
                job.error = error
            except asyncio.CancelledError as error:
                # Raised by the handler, or its time is over, or the consumer closes.
                job.error = error
                if me.cancelling():
                    if not job.is_over:
                        job.was_called = False
                        job.ended(job)
                        raise
                    me.uncancel()
            job.runner = None
            job.ended(job)
            look -= 1
            if not look:
                look = LOOK_EVERY
                if now() > ends_at:
                    return


def elsewhere(handler: Callable[[Any], object] | None) -> AsyncioHandlers | None:
    """``handler`` for a consumer in trio."""
    return None if handler is None else AsyncioHandlers(handler)
