"""Requests that need bytes which are only on disk or in a bucket, or very many bytes, wait here for a thread's read.

A handler runs in the event loop within `resident_only`. Where the handler would wait for the disk, it is stopped, a
thread reads the bytes, and the handler runs again from its start. So sends are not held up. Clients take turns, however
much each client asks for; a client that does not read its large answers gets no further answers.
A thread that meets damage of the log raises Damaged. Then the request waits until the damage is mended, for 1 s at
most: its client gets SYSTEM_BUSY and comes again.
Reads of a bucket take longer, so they have threads of their own: they hold up no reads of the disk.
Limits: threads, waiting requests, the time that a request may take, and how often its handler is run.
Neighbours: store/log/residency.py, damage_hold.py (has damage mended). ``reads_disk`` of a part lists the handlers that
wait here.
"""

import math
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import field
from functools import partial
from typing import TypeVar

import trio

from skylark.broker.damage_hold import DamageHold, Healer
from skylark.broker.part import Part
from skylark.broker.store.log.residency import Damaged, Got, InBucket, NotResident, resident_only, warm
from skylark.mqcommon.errors import OutOfDescriptors
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.remoting.net.channel import BULK_BYTES, Channel
from skylark.remoting.net.server import Handler, failure
from skylark.remoting.net.steps import Steps
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import Command

# Enough to keep a disk busy; more would only take CPU time from the event loop.
THREADS = 4
BUCKET_THREADS = 8
MAX_WAITING = 1_000
# RocketMQ's pull consumers give up after 10 s.
TIMEOUT_S = 10.0
# A bucket may be slow for seconds; RocketMQ's push consumers wait for 30 s.
BUCKET_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 2.0
# How long a request waits for the repair of damage, and how many requests do at the same time.
MEND_TIMEOUT_S = 1.0
MAX_MENDING = 256
# The last attempt may wait for the disk in the event loop. It follows at once when memory is so short that the bytes
# are evicted again before the handler sees them.
MAX_ATTEMPTS = 256

T = TypeVar("T")

# Handles a request, or raises NotResident.
Attempt = Callable[[], Command | None]


@lazy_dataclass(slots=True, eq=False)
class _Waiting:
    channel: Channel
    request: Command
    attempt: Attempt
    cold: NotResident
    begun: float
    after_disk: Attempt
    attempts: int = 1
    got: Got | None = None
    #: Whether the request has needed a bucket.
    is_slow: bool = False

    @property
    def deadline(self) -> float:
        return self.begun + (BUCKET_TIMEOUT_S if self.is_slow else TIMEOUT_S)


@lazy_dataclass(slots=True, eq=False)
class _Lane:
    """The requests that wait for disk or bucket, and the threads that read this storage. Clients take turns."""

    threads: trio.CapacityLimiter
    by_channel: dict[Channel, deque[_Waiting]] = field(default_factory=dict)
    count: int = 0
    free: trio.lowlevel.ParkingLot = field(default_factory=trio.lowlevel.ParkingLot)

    def add(self, waiting: _Waiting) -> None:
        self.by_channel.setdefault(waiting.channel, deque()).append(waiting)
        self.count += 1
        self.free.unpark()

    def pop_next(self, sending: set[Channel]) -> _Waiting | None:
        """Remove and return the oldest request of the channel whose turn it is; None when no request can be served.

        ``sending``: channels that have to read their answers first.
        """
        channel = next((channel for channel in self.by_channel if channel not in sending), None)
        if channel is None:
            return None
        # A channel with more requests goes to the end of the dict: its next turn comes after every other channel's.
        requests = self.by_channel.pop(channel)
        waiting = requests.popleft()
        if requests:
            self.by_channel[channel] = requests
        self.count -= 1
        return waiting


class ColdReads(Part):
    """All requests of a broker that wait for its disk. ``hold``: where they wait while damage of the log is mended."""

    def __init__(self, max_waiting: int = MAX_WAITING, hold: DamageHold | None = None) -> None:
        self.max_waiting = max_waiting
        self.hold = hold
        # Requests that wait until damage is mended.
        self._mending: dict[_Waiting, trio.CancelScope] = {}
        self._nursery: trio.Nursery | None = None
        self._disk = _Lane(trio.CapacityLimiter(THREADS))
        self._bucket = _Lane(trio.CapacityLimiter(BUCKET_THREADS))
        self._lanes = self._disk, self._bucket
        self._running = 0
        # Channels whose clients have not read their large answers yet: their next requests wait.
        self._sending: set[Channel] = set()
        self._turn = trio.Lock()
        self._stopping = False
        self._idle = trio.Event()

    def __len__(self) -> int:
        return sum([lane.count for lane in self._lanes]) + self._running + len(self._mending)

    @property
    def healer(self) -> Healer | None:
        """What mends damage of the log; None until it is set."""
        return None if self.hold is None else self.hold.healer

    @healer.setter
    def healer(self, healer: Healer | None) -> None:
        assert self.hold is not None
        self.hold.healer = healer

    @property
    def head_wait_s(self) -> float:
        """How long the oldest request has waited for its turn to read the disk."""
        oldest = min((requests[0].begun for requests in self._disk.by_channel.values()), default=None)
        return 0.0 if oldest is None else trio.current_time() - oldest

    def handle(
        self, channel: Channel, request: Command, attempt: Attempt, after_disk: Attempt | None = None
    ) -> Command | None:
        """The answer of ``attempt``; None when ``attempt`` returns None, or when it waits for the disk.

        If it waits for the disk, the answer is sent later. ``attempt`` may run more than once, so it must not have
        effects before its last read. Once the request has waited for the disk, ``after_disk`` is run instead.
        """
        try:
            with resident_only():
                return attempt()
        except NotResident as cold:
            begun = trio.current_time()
            return self._wait(_Waiting(channel, request, attempt, cold, begun, after_disk or attempt))
        except Damaged as damaged:
            begun, nothing = trio.current_time(), NotResident([])
            return self._mend(_Waiting(channel, request, attempt, nothing, begun, after_disk or attempt), damaged)
        except OutOfDescriptors as error:
            return _no_descriptors(request, error)

    def guarded(self, handler: Handler) -> Handler:
        """Wrap ``handler``, which only reads, so that it does not wait for the disk in the event loop."""
        return lambda channel, request: self.handle(channel, request, partial(handler, channel, request))

    def channel_closed(self, channel: Channel) -> None:
        """Drop the waiting requests of the channel."""
        for lane in self._lanes:
            lane.count -= len(lane.by_channel.pop(channel, ()))

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve waiting requests, until cancelled."""
        task_status.started()
        async with trio.open_nursery() as self._nursery:
            if self.hold is not None:
                self._nursery.start_soon(self.hold.run)
            for lane in self._lanes:
                for _ in range(int(lane.threads.total_tokens)):
                    self._nursery.start_soon(self._work, lane, self._nursery)

    async def stop(self) -> None:
        """Refuse waiting and new requests; return when all reads have ended, or after `STOP_TIMEOUT_S`."""
        self._stopping = True
        # Refuse requests of clients that do not read their answers, too.
        self._sending.clear()
        for lane in self._lanes:
            while waiting := lane.pop_next(self._sending):
                self._answer(waiting, _refusal(waiting.request, stopping=True))
        for scope in self._mending.values():
            scope.cancel()
        if self._running:
            with trio.move_on_after(STOP_TIMEOUT_S):
                await self._idle.wait()

    def _wait(self, waiting: _Waiting) -> Command | None:
        """Queue the request; returns the refusal when it cannot be queued."""
        is_in_bucket = isinstance(waiting.cold, InBucket)
        waiting.is_slow |= is_in_bucket
        lane = self._bucket if is_in_bucket else self._disk
        if self._stopping or lane.count >= self.max_waiting:
            return _refusal(waiting.request, stopping=self._stopping)
        # The traceback would keep the attempt's frame, and so this request and its connection, in a cycle.
        waiting.cold.__traceback__ = None
        lane.add(waiting)
        return None

    def _mend(self, waiting: _Waiting, damaged: Damaged) -> Command | None:
        """Let the request wait until the damage is mended; returns the refusal when it cannot wait."""
        if self._stopping or self._nursery is None or len(self._mending) >= MAX_MENDING:
            return _refusal(waiting.request, stopping=self._stopping)
        damaged.__traceback__ = None
        scope = self._mending[waiting] = trio.CancelScope()
        self._nursery.start_soon(self._wait_for_mending, waiting, damaged, scope)
        return None

    async def _wait_for_mending(self, waiting: _Waiting, damaged: Damaged, scope: trio.CancelScope) -> None:
        scope.deadline = min(trio.current_time() + MEND_TIMEOUT_S, waiting.deadline)
        try:
            with scope:
                await damaged.wait()
            if scope.cancelled_caught:
                refusal = (
                    _refusal(waiting.request, stopping=True) if self._stopping else failure(waiting.request, damaged)
                )
                self._answer(waiting, refusal)
            elif (response := self._wait(waiting)) is not None:
                self._answer(waiting, response)
        finally:
            del self._mending[waiting]

    async def _work(self, lane: _Lane, nursery: trio.Nursery) -> None:
        while True:
            waiting = lane.pop_next(self._sending)
            if waiting is None:
                await lane.free.park()
                continue
            self._running += 1
            try:
                self._answer(waiting, await self._serve(waiting, lane))
            finally:
                self._running -= 1
            # If the client reads its answers more slowly than the disk delivers them, its other requests wait until the
            # buffered answers have been sent.
            channel = waiting.channel
            if channel.buffered_bytes >= BULK_BYTES and channel not in self._sending:
                self._sending.add(channel)
                nursery.start_soon(self._go_on_when_sent, channel)
            # Otherwise this task would keep a connection alive while it waits for work.
            del channel, waiting
            if self._stopping and not self._running:
                self._idle.set()

    async def _go_on_when_sent(self, channel: Channel) -> None:
        await channel.sent()
        self._sending.discard(channel)
        for lane in self._lanes:
            lane.free.unpark_all()

    async def _serve(self, waiting: _Waiting, lane: _Lane) -> Command | None:
        """Read in a thread, then make one more attempt."""
        if trio.current_time() > waiting.deadline:
            return _refusal(waiting.request, stopping=False)
        try:
            # A thread that reads a bucket is left alone at the deadline: what it brings is of use for the next request.
            # When the broker stops, all threads are left alone; they keep files open as long as they need them.
            with trio.move_on_at(waiting.deadline if lane is self._bucket else math.inf) as scope:
                waiting.got = await trio.to_thread.run_sync(
                    warm, waiting.cold, waiting.got, limiter=lane.threads, abandon_on_cancel=True
                )
            if scope.cancelled_caught:
                return _refusal(waiting.request, stopping=False)
            waiting.attempts += 1
            if waiting.cold.on_disk:
                waiting.attempt = waiting.after_disk
            async with self._turn:
                # One answer per turn of the event loop: several answers would block the loop for too long.
                await trio.lowlevel.checkpoint()
                with resident_only(waiting.got) if waiting.attempts < MAX_ATTEMPTS else nullcontext():
                    return waiting.attempt()
        except NotResident as cold:
            # The handler came further, and now lacks other bytes. If it lacks the same bytes again, memory is so short
            # that they were evicted at once: the next attempt is the last one, and may wait for the disk.
            if cold.spans and cold.spans == waiting.cold.spans:
                waiting.attempts = MAX_ATTEMPTS
            waiting.cold = cold
            return self._wait(waiting)
        except Damaged as damaged:
            return self._mend(waiting, damaged)
        except OutOfDescriptors as error:
            return _no_descriptors(waiting.request, error)
        except Exception as error:
            return failure(waiting.request, error)

    def _answer(self, waiting: _Waiting, response: Command | None) -> None:
        if response is not None:
            waiting.channel.reply(waiting.request, response)


def reading(read: Callable[[], T]) -> Steps[T]:
    """The result of ``read``, as steps that wait for the disk in a thread. ``read`` may run more than once.

    Damaged when damage is not mended in time.
    """
    got: Got | None = None
    for _ in range(MAX_ATTEMPTS):
        try:
            with resident_only(got):
                return read()
        except NotResident as cold:
            lacked = cold
        except Damaged as damaged:
            yield partial(_wait_in_thread, damaged)
            continue
        try:
            got = yield partial(warm, lacked, got)
        except Damaged as damaged:
            yield partial(_wait_in_thread, damaged)
    return read()


# Threads of the reads that the broker makes of its own accord. A bucket that hangs takes neither a thread of trio's
# default limiter nor a thread that reads the disk.
_own_disk_reads: trio.lowlevel.RunVar[trio.CapacityLimiter] = trio.lowlevel.RunVar("own_disk_reads")
_own_bucket_reads: trio.lowlevel.RunVar[trio.CapacityLimiter] = trio.lowlevel.RunVar("own_bucket_reads")


def _threads_of(cold: NotResident) -> trio.CapacityLimiter:
    is_in_bucket = isinstance(cold, InBucket)
    limiters = _own_bucket_reads if is_in_bucket else _own_disk_reads
    try:
        return limiters.get()
    except LookupError:
        limiter = trio.CapacityLimiter(BUCKET_THREADS if is_in_bucket else THREADS)
        limiters.set(limiter)
        return limiter


async def from_disk(read: Callable[[], T]) -> T:
    """The result of ``read``; bytes that are only on disk are read in a thread. ``read`` may run more than once.

    Waits until damage is mended or given up.
    """
    got: Got | None = None
    while True:
        try:
            try:
                with resident_only(got):
                    return read()
            except NotResident as cold:
                got = await trio.to_thread.run_sync(warm, cold, got, limiter=_threads_of(cold), abandon_on_cancel=True)
        except Damaged as damaged:
            await damaged.wait()


def _wait_in_thread(damaged: Damaged) -> None:
    """Wait in a thread of trio until the damage is mended; raises ``damaged`` when that takes too long."""

    async def wait() -> None:
        with trio.move_on_after(MEND_TIMEOUT_S) as scope:
            await damaged.wait()
        if scope.cancelled_caught:
            raise damaged

    trio.from_thread.run(wait)


def _refusal(request: Command, *, stopping: bool) -> Command:
    # Consumers retry after these codes, RocketMQ's after 3 s.
    if stopping:
        return request.respond(ResponseCode.SERVICE_NOT_AVAILABLE, "the broker is stopping; try again")
    return request.respond(
        ResponseCode.SYSTEM_BUSY,
        "[OVERLOAD]too many requests wait for the broker's disk or bucket, or the bucket is slow; try again later",
    )


def _no_descriptors(request: Command, error: OutOfDescriptors) -> Command:
    return request.respond(ResponseCode.SYSTEM_BUSY, f"[OVERLOAD]{error}; try again later")
