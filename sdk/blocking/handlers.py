"""Handlers of a threaded application: plain functions, called in a pool of threads that may block."""

import inspect
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from mqcommon.message.message import Message, MessageExt
from sdk.arrow import RecordBatch
from sdk.consumer.outcome import Result
from sdk.consumer.workers import ForeignHandlers, Job
from sdk.producer.transaction import TransactionState

PlainHandler = Callable[[MessageExt], Result]
PlainChecker = Callable[[MessageExt], TransactionState]
PlainLocal = Callable[[Message], TransactionState]
PlainBatchHandler = Callable[[list[MessageExt]], Result]
PlainArrowHandler = Callable[[RecordBatch], Result]
# When the consumer has closed, its threads have nothing left to do; a thread that hangs in a handler is left behind.
JOIN_S = 1.0


class ThreadHandlers(ForeignHandlers):
    """The threads are made as they are needed, ``concurrency`` at most, and end with the consumer.

    They are daemons: a program ends although a handler hangs. After a fork the child starts with none.
    """

    def __init__(self, handler: Callable[[Any], object]) -> None:
        super().__init__(handler)
        if inspect.iscoroutinefunction(handler):
            raise TypeError("handlers of sdk.blocking are plain functions; for async ones use sdk.aio or sdk")
        self._pool = _Pool(self, 0)

    def _start(self) -> None:
        self._pool = _Pool(self, self.concurrency)

    def begin(self, jobs: Sequence[Job]) -> None:
        # Any call may block, so each is a job of its own.
        self._pool.add([job.part(number, number + 1) for job in jobs for number in range(len(job.calls))])

    def cancel(self, job: Job) -> None:
        """A thread cannot be cancelled; another takes its place."""
        self._pool.replace(job)

    def stop(self) -> None:
        self._pool.stop()

    def check_close(self) -> None:
        """RuntimeError in a handler, which would wait for itself."""
        if threading.current_thread() in self._pool.threads:
            raise RuntimeError("a handler cannot close its own consumer: let another thread do it")

    def join(self) -> None:
        """Wait for the end of the threads, after the consumer has closed."""
        self._pool.stop()
        deadline = time.monotonic() + JOIN_S
        for thread in list(self._pool.threads):
            thread.join(max(deadline - time.monotonic(), 0))


class _Pool:
    """Threads that take jobs from one queue."""

    def __init__(self, handlers: ThreadHandlers, most: int) -> None:
        self._handler = handlers.handler
        self._running = handlers.running
        self._most = most
        self._jobs: deque[Job] = deque()
        self._changed = threading.Condition()
        self._idle = 0
        self._is_stopping = False
        self.threads: dict[threading.Thread, None] = {}

    def add(self, jobs: Sequence[Job]) -> None:
        """Let threads take the jobs."""
        with self._changed:
            self._jobs.extend(jobs)
            self._call_one()

    def replace(self, job: Job) -> None:
        """The thread of ``job`` is stuck: it does not count any more."""
        with self._changed:
            # Without its entry in ``threads`` the stuck thread ends when its handler returns, and a new one may start:
            # at most ``concurrency`` threads count.
            if job.runner in self.threads:
                del self.threads[job.runner]
                self._call_one()

    def stop(self) -> None:
        """Return what was not begun, and end."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()
            while self._jobs:
                job = self._jobs.popleft()
                job.ended(job)

    def _call_one(self) -> None:
        """If there is something to do, let one more thread do it. The condition is held."""
        if not self._jobs:
            return
        if self._idle:
            self._changed.notify()
        elif len(self.threads) < self._most:
            thread = threading.Thread(target=self._run, name="skylark-handler", daemon=True)
            self.threads[thread] = None
            thread.start()

    def _run(self) -> None:
        me = threading.current_thread()
        while me in self.threads:
            with self._changed:
                while not self._jobs and not self._is_stopping:
                    self._idle += 1
                    self._changed.wait()
                    self._idle -= 1
                if self._is_stopping:
                    return
                if len(self._jobs) > 1:
                    # If a handler waits, there should be somebody for the next message.
                    self._call_one()
            self._handle_all(me)

    def _handle_all(self, me: threading.Thread) -> None:
        """Call the handler until there is nothing to do. Taking a job needs no lock."""
        jobs, handler, running = self._jobs, self._handler, self._running
        while not self._is_stopping and me in self.threads:
            try:
                job = jobs.popleft()
            except IndexError:
                return
            if job.is_wanted:
                job.runner = me
                running[job] = None
                began = time.monotonic()
                try:
                    job.result = handler(job.calls[0])
                except BaseException as error:  # also SystemExit: the thread goes on, and the message is not lost
                    job.error = error
                job.took_s = time.monotonic() - began
                job.was_called = True
                del running[job]
            job.ended(job)


def in_threads(handler: Callable[[Any], object] | None) -> ThreadHandlers | None:
    """``handler`` for a consumer in trio."""
    return None if handler is None else ThreadHandlers(handler)
