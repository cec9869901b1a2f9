"""Handlers of a threaded application: plain functions, called in a pool of threads that may block."""

import inspect
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from skylark.mqcommon.message.message import Message, MessageExt
from skylark.sdk.arrow import RecordBatch
from skylark.sdk.consumer.outcome import ConsumeResult, Result
from skylark.sdk.consumer.workers import ForeignHandlers, Job
from skylark.sdk.producer.transaction import TransactionState

PlainHandler = Callable[..., Result]
PlainChecker = Callable[[MessageExt], TransactionState]
PlainLocal = Callable[[Message], TransactionState]
PlainBatchHandler = Callable[[list[MessageExt]], Result]
PlainArrowHandler = Callable[[RecordBatch], Result]
# When the consumer has closed, its threads have nothing left to do; a thread that hangs in a handler is left behind.
JOIN_S = 1.0
# A longer call may be blocked: its result is reported at once, and other threads may take the calls after it.
QUICK_S = 50e-6
# After this many consecutive quick calls one thread makes all calls. With fewer quick calls between two slow calls, all
# threads take calls again.
MANY_CALLS = 32
FEW_CALLS = 4
# How often a thread checks whether the only thread that makes calls is stuck in a call.
CHECK_S = 0.001
# How long all threads take calls after a stuck thread was found: a stuck thread delays the calls after it by up to two
# checks.
SHARE_S = 0.05


class ThreadHandlers(ForeignHandlers):
    """Calls a handler in threads, which are made as needed, ``concurrency`` at most, and end with the consumer.

    The threads are daemons: a program ends although a handler hangs. After a fork the child starts without threads.
    """

    def __init__(self, handler: Callable[[Any], object]) -> None:
        super().__init__(handler)
        if inspect.iscoroutinefunction(inspect.unwrap(handler)):
            raise TypeError(
                "handlers of skylark.blocking are plain functions; for async functions use skylark.aio or skylark"
            )
        self._pool = _Pool(self, 0)

    def _start(self) -> None:
        self._pool = _Pool(self, self.concurrency)

    def begin(self, jobs: Sequence[Job]) -> None:
        self._pool.add(jobs)

    def running(self) -> Sequence[Job]:
        return self._pool.running()

    def cancel(self, job: Job) -> None:
        """Let another thread take the place of the one that runs ``job``: a thread cannot be cancelled."""
        self._pool.replace(job)

    def stop(self) -> None:
        self._pool.stop()

    def check_close(self) -> None:
        """RuntimeError if called by a handler, which would wait for its own end."""
        if threading.current_thread() in self._pool.threads():
            raise RuntimeError("a handler cannot close its own consumer: let another thread do it")

    def join(self) -> None:
        """Wait for the end of the threads, after the consumer has closed."""
        self._pool.stop()
        deadline = time.monotonic() + JOIN_S
        for thread in self._pool.threads():
            thread.join(max(deadline - time.monotonic(), 0))


class _Worker:
    """One thread, and its current call: call ``number`` of ``job``, the ``served``-th call of this thread."""

    __slots__ = ("is_replaced", "job", "number", "seen", "seen_served", "served", "thread")

    def __init__(self, run: "Callable[[_Worker], object]") -> None:
        # None between jobs.
        self.job: Job | None = None
        self.number = 0
        self.served = 0
        # The call as `_Pool.running` last returned it, and the value of ``served`` then.
        self.seen: Job | None = None
        self.seen_served = -1
        self.is_replaced = False
        self.thread = threading.Thread(target=run, args=(self,), name="skylark-handler", daemon=True)


class _Pool:
    """Threads that make the calls of jobs, in one of two ways.

    Handlers that may block run side by side: each thread takes the next call of the first job, and wakes another thread
    for the call after it. Taking a call needs no lock, because ``next`` of an iterator in C is atomic.

    While handlers return at once, one thread makes all calls, the leader. More threads would only take the interpreter
    lock from each other. A second thread checks every CHECK_S whether the leader is still in the same call. If so, its
    handler blocks, and the calls go to all threads again.
    """

    def __init__(self, handlers: ThreadHandlers, most: int) -> None:
        self._handler = handlers.handler
        self._most = most
        # Each job with the numbers of the calls that no thread has taken yet.
        self._jobs: deque[tuple[Job, Iterator[int]]] = deque()
        self._changed = threading.Condition()
        self._idle = 0
        self._is_stopping = False
        self._is_quick = False
        self._leader: _Worker | None = None
        self._shared_until = 0.0
        self._has_watcher = False
        self._workers: dict[_Worker, None] = {}

    def threads(self) -> list[threading.Thread]:
        """The threads that have not ended, without stuck threads."""
        return [worker.thread for worker in list(self._workers)]

    def add(self, jobs: Sequence[Job]) -> None:
        """Let threads make the calls of the jobs."""
        with self._changed:
            self._jobs.extend((job, iter(range(len(job.calls)))) for job in jobs)
            # A leader goes on to these jobs by itself, but the leader may be stuck.
            if self._leader is None or not self._has_watcher:
                self._call_one()

    def running(self) -> list[Job]:
        """The calls in progress. A call that goes on is returned as the same job each time."""
        jobs: list[Job] = []
        for worker in list(self._workers):
            job, number, served = worker.job, worker.number, worker.served
            if job is None:
                continue
            if worker.seen is None or worker.seen_served != served:
                # The thread may go on between these lines. The next call of `running` then finds another value of
                # ``served``.
                worker.seen, worker.seen_served = job.part(number, number + 1), served
            jobs.append(worker.seen)
        return jobs

    def replace(self, job: Job) -> None:
        """The thread of ``job``, a job of one call, is stuck: stop counting the thread."""
        with self._changed:
            for worker in list(self._workers):
                if job in (worker.job, worker.seen):
                    # The stuck thread ends when its handler returns, and a new thread may start: at most
                    # ``concurrency`` threads count.
                    worker.is_replaced = True
                    del self._workers[worker]
                    self._share()

    def stop(self) -> None:
        """Return jobs that were not begun, and end the threads."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()
            while self._jobs:
                job, numbers = self._jobs.popleft()
                for number in numbers:
                    _give_back(job, number)

    def _call_one(self) -> None:
        """If there are jobs, let one more thread take calls. The condition is held."""
        if not self._jobs:
            return
        if self._idle:
            self._changed.notify()
        elif len(self._workers) < self._most:
            worker = _Worker(self._run)
            self._workers[worker] = None
            worker.thread.start()

    def _share(self) -> None:
        """Let all threads take calls. The condition is held."""
        self._is_quick, self._leader = False, None
        self._call_one()

    def _run(self, me: _Worker) -> None:
        done: tuple[Job, Iterator[int]] | None = None
        while (taken := self._next(me, done)) is not None:
            done = taken if self._call_each(me, *taken) else None

    def _next(self, me: _Worker, done: tuple[Job, Iterator[int]] | None) -> tuple[Job, Iterator[int]] | None:
        """The job whose calls this thread may take; None when it is to end. No call of ``done`` is left."""
        with self._changed:
            if done is not None and self._jobs and self._jobs[0] is done:
                self._jobs.popleft()
            seen: tuple[_Worker, int] | None = None
            while not self._is_stopping and not me.is_replaced:
                leader = self._leader
                if self._jobs and leader in (None, me):
                    self._leader = me if self._is_quick else None
                    # A single call is taken at once; later calls must not wait for its end.
                    if not self._has_watcher and (len(self._jobs) > 1 or len(self._jobs[0][0].calls) > 1):
                        self._call_one()
                    return self._jobs[0]
                if leader is me:
                    self._leader = leader = None
                if leader is None or not self._jobs or self._has_watcher:
                    self._wait(None)
                elif seen == (leader, leader.served):
                    self._shared_until = time.monotonic() + SHARE_S
                    self._share()
                else:
                    seen = leader, leader.served
                    self._has_watcher = True
                    self._wait(CHECK_S)
                    self._has_watcher = False
            return None

    def _wait(self, timeout_s: float | None) -> None:
        self._idle += 1
        self._changed.wait(timeout_s)
        self._idle -= 1

    def _call_each(self, me: _Worker, job: Job, numbers: Iterator[int]) -> bool:
        """Take calls of ``job`` and make them; False when other threads should take its remaining calls."""
        handler, calls, clock = self._handler, job.calls, time.monotonic
        window = None if job.batch is None else job.batch.window
        # The calls from ``start`` up to ``end`` have succeeded, and are reported together.
        start = end = 0
        began = now = clock()
        for number in numbers:
            if number != end:  # another thread has taken calls in between
                self._succeeded(me, job, start, end, now - began)
                start, began = number, now
            # While `stop` empties the iterator, no call after a returned call may begin.
            if self._is_stopping or (job.is_overdue if window is None else window.is_closed):
                self._succeeded(me, job, start, number, now - began)
                _give_back(job, number)
                start = end = number + 1
                continue
            me.number = number
            me.served += 1
            me.job = job
            result, error = None, None
            try:
                result = handler(calls[number])
            except BaseException as raised:  # also SystemExit: the thread goes on, and the message is not lost
                error = raised
            before, now = now, clock()
            end, leader = number + 1, self._leader
            if error is None and (result is None or result is ConsumeResult.SUCCESS):
                if now - before < QUICK_S and (leader is None or leader is me):
                    continue
                self._succeeded(me, job, start, end, now - began)
                if leader is me and end - start < FEW_CALLS and now - before >= QUICK_S:
                    with self._changed:
                        self._share()
            else:
                self._succeeded(me, job, start, number, before - began)
                one = job.part(number, end)
                one.result, one.error, one.took_s, one.was_called = result, error, now - before, True
                one.ended(one)
            start, began = end, now
            if me.is_replaced or self._leader not in (None, me):
                me.job = me.seen = None
                return False
        self._succeeded(me, job, start, end, now - began)
        me.job = me.seen = None
        return True

    def _succeeded(self, me: _Worker, job: Job, start: int, end: int, took_s: float) -> None:
        """Report that the calls from ``start`` up to ``end`` have succeeded."""
        if start == end:
            return
        part = job.part(start, end)
        part.took_s, part.was_called = took_s, True
        part.ended(part)
        if not self._is_quick and end - start >= MANY_CALLS:
            with self._changed:
                if self._leader is None and time.monotonic() > self._shared_until:
                    self._is_quick, self._leader = True, me


def _give_back(job: Job, number: int) -> None:
    one = job.part(number, number + 1)
    one.ended(one)


def in_threads(handler: Callable[[Any], object] | None) -> ThreadHandlers | None:
    """``handler`` in the form that a trio consumer takes."""
    return None if handler is None else ThreadHandlers(handler)
