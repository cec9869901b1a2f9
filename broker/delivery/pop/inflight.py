"""Which messages are popped and not acknowledged. Pure: the state follows from the records of the revive log, in order.

`apply` is called with each record that a running broker has written, and with the records that a start reads.
Invariant: each message before a group's position in a queue is acknowledged, has come back as a copy, or is in a lease.
Leases are kept in the order of their check points in the log: the log before the first lease is not needed any more.
A queue that is popped in order has at most one lease, which the next lease replaces.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush

from skylark.broker.delivery.pop.records import RELEASED, Ack, Key, PopCheckpoint, Queue
from skylark.broker.store.clock_steps import ClockStep
from skylark.mqcommon.lazy_dataclass import lazy_dataclass

# Rows of ended leases are dropped when there are more of them than rows of open leases, and more than this.
SPARE_ROWS = 10_000


class PopLease:
    """The messages of one check point that are still hidden: bit n of ``unacked`` stands for ``offsets[n]``.

    ``moved_ms``: by how much the clock was set since the pop.
    """

    __slots__ = ("checkpoint", "log_offset", "moved_ms", "unacked")

    def __init__(self, checkpoint: PopCheckpoint, log_offset: int) -> None:
        self.checkpoint = checkpoint
        self.log_offset = log_offset
        self.moved_ms = 0
        self.unacked = ((1 << len(checkpoint.offsets)) - 1) & ~checkpoint.acked

    @property
    def left(self) -> list[int]:
        """The offsets of the messages that are not acknowledged."""
        return [offset for place, offset in enumerate(self.checkpoint.offsets) if self.unacked >> place & 1]

    def bits_of(self, offsets: Iterable[int]) -> int:
        """The bits of those ``offsets`` that are offsets of this check point."""
        known, bits = self.checkpoint.offsets, 0
        if not isinstance(known, range):
            for offset in offsets:
                if offset in known:
                    bits |= 1 << known.index(offset)
            return bits
        # By far the most pops are of neighbours, whose place is their distance to the first.
        first, end = known.start, known.stop
        if isinstance(offsets, range) and first <= offsets.start <= offsets.stop <= end:
            return (1 << len(offsets)) - 1 << offsets.start - first
        for offset in offsets:
            if first <= offset < end:
                bits |= 1 << offset - first
        return bits

    @property
    def due_ms(self) -> int:
        """When all remaining messages are visible, by the present clock."""
        checkpoint = self.checkpoint
        if not checkpoint.visible_ms:
            return checkpoint.due_ms + self.moved_ms
        return max([checkpoint.visible_ms.get(offset, checkpoint.due_ms) for offset in self.left]) + self.moved_ms

    def renewed(self) -> PopCheckpoint:
        """The check point to write again, nearer to the end of the log."""
        acked = ((1 << len(self.checkpoint.offsets)) - 1) & ~self.unacked
        return replace(self.checkpoint, position=None, acked=acked, replaces=None, is_again=True)


class Inflight:
    """The open leases of all groups, and the positions of the groups."""

    def __init__(self) -> None:
        self._leases: dict[Key, PopLease] = {}
        # In the order of the log.
        self._in_log: dict[PopLease, None] = {}
        self._due: list[tuple[int, int, PopLease]] = []
        self._count = 0
        #: The lease of each queue that is popped in order.
        self.ordered: dict[Queue, PopLease] = {}
        #: The attempt that popped the messages of an ordered lease, if its request named one; not in the log.
        self.attempts: dict[Queue, str] = {}
        #: Where the next pop of a queue begins, by the records.
        self.positions: dict[Queue, int] = {}

    def __len__(self) -> int:
        """How many leases there are."""
        return len(self._leases)

    def apply(self, record: PopCheckpoint | Ack, log_offset: int) -> None:
        """Apply a record that is at ``log_offset`` of the revive log."""
        if isinstance(record, Ack):
            self._take_back(record.key, record.offsets)
            return
        key = record.key
        # First end the leases that the record replaces, then add its own lease.
        if record.replaces is not None:
            self._take_back(record.replaces, record.offsets)
        if (old := self._leases.get(key)) is not None:
            self._drop(old)
        # A queue that is popped in order has one lease.
        if record.is_ordered and (before := self.ordered.get(key.queue)) is not None:
            self._drop(before)
        if record.position == RELEASED:
            self.positions.pop(key.queue, None)
        elif record.position is not None:
            self.positions[key.queue] = record.position
        # A check point without messages only moves the group; it needs no lease.
        lease = PopLease(record, log_offset)
        # If the check point was only written again, keep the clock adjustment. New times are by the present clock.
        if record.is_again and old is not None and record.visible_ms == old.checkpoint.visible_ms:
            lease.moved_ms = old.moved_ms
        if lease.unacked:
            self._leases[key] = lease
            self._in_log[lease] = None
            if record.is_ordered:
                self.ordered[key.queue] = lease
            self._count += 1
            heappush(self._due, (lease.due_ms, self._count, lease))

    def of(self, key: Key) -> PopLease | None:
        """The lease of this check point, if it has unacknowledged messages."""
        return self._leases.get(key)

    def hidden(self, key: Key, offsets: Sequence[int]) -> Sequence[int]:
        """The offsets among ``offsets`` that are in flight under this check point."""
        lease = self._leases.get(key)
        if lease is None:
            return []
        if (bits := lease.bits_of(offsets)) & lease.unacked == bits and bits.bit_count() == len(offsets):
            return offsets
        return [offset for offset in offsets if lease.bits_of((offset,)) & lease.unacked]

    def due(self, now_ms: int) -> PopLease | None:
        """A lease whose time is over. It is not returned again: call `put_off`, or acknowledge its messages."""
        while self._due and self._due[0][0] <= now_ms:
            lease = heappop(self._due)[2]
            if lease in self._in_log:
                return lease
        return None

    @property
    def next_due_ms(self) -> int | None:
        """When the next lease expires, unless its messages are acknowledged before; None without leases."""
        return self._due[0][0] if self._due else None

    def clock_moved(self, step: ClockStep) -> None:
        """Adjust leases to a step of the clock: messages popped before it stay hidden for their full invisible time."""
        for lease in self._in_log:
            if step.may_precede(lease.checkpoint.key.pop_ms + lease.moved_ms):
                lease.moved_ms += step.moved_ms
        self._order()

    def take_over(self, now_ms: int) -> None:
        """Begin with the leases read from the log. A pop time in the future is of another clock: it counts as now."""
        for lease in self._in_log:
            lease.moved_ms = min(now_ms - lease.checkpoint.key.pop_ms, 0)
        self._order()

    def _order(self) -> None:
        self._due = [(lease.due_ms, number, lease) for number, lease in enumerate(self._in_log, self._count)]
        self._count += len(self._due)
        heapify(self._due)

    def put_off(self, lease: PopLease, due_ms: int) -> None:
        """Have `due` return the lease again at this time."""
        self._count += 1
        heappush(self._due, (due_ms, self._count, lease))

    def drop_topic(self, topic: str) -> None:
        """Forget the leases and positions of a topic that is being deleted."""
        for lease in [lease for lease in self._in_log if lease.checkpoint.key.queue.topic == topic]:
            self._end(lease)
        for queue in [queue for queue in self.positions if queue.topic == topic]:
            del self.positions[queue]

    def needed_from(self, end: int) -> int:
        """The first offset of the revive log that a start needs; ``end`` when it needs no record."""
        first = next(iter(self._in_log), None)
        return end if first is None else first.log_offset

    def oldest(self) -> Iterator[PopLease]:
        """The leases in the order of the log; do not change them during the iteration."""
        return iter(self._in_log)

    def _take_back(self, key: Key, offsets: Sequence[int]) -> None:
        lease = self._leases.get(key)
        if lease is None:
            return
        lease.unacked &= ~lease.bits_of(offsets)
        if not lease.unacked:
            self._end(lease)

    def _end(self, lease: PopLease) -> None:
        """Drop a lease that no other lease replaces."""
        self._drop(lease)
        queue = lease.checkpoint.key.queue
        if queue not in self.ordered:
            self.attempts.pop(queue, None)

    def _drop(self, lease: PopLease) -> None:
        key = lease.checkpoint.key
        del self._leases[key], self._in_log[lease]
        if self.ordered.get(key.queue) is lease:
            del self.ordered[key.queue]
        if len(self._due) > 2 * len(self._leases) + SPARE_ROWS:
            # Drop rows of leases that ended long before their time.
            self._due = [row for row in self._due if row[2] in self._in_log]
            heapify(self._due)


class PendingCommits:
    """Positions of groups that wait until they may be committed.

    A position is committed when the log, up to the check point that moved it, is on disk and on the slaves. So if a
    crash loses the end of the log, no committed offset is past messages whose check point is lost.
    """

    def __init__(self) -> None:
        # (end of the log after the check point, queue, position)
        self._rows: deque[tuple[int, Queue, int]] = deque()

    def moved(self, queue: Queue, position: int, log_end: int) -> None:
        """Note that the group has moved to ``position``, by a check point in the log before ``log_end``."""
        self._rows.append((log_end, queue, position))

    def safe(self, reached: int) -> dict[Queue, int]:
        """The positions to commit now that the log is safe up to ``reached``."""
        found: dict[Queue, int] = {}
        rows = self._rows
        while rows and rows[0][0] <= reached:
            _, queue, position = rows.popleft()
            found[queue] = position
        return found

    def forget(self, queue: Queue) -> None:
        """Drop the pending positions of a queue whose group continues at another offset."""
        self._rows = deque(row for row in self._rows if row[1] != queue)

    def drop_topic(self, topic: str) -> None:
        """Drop the pending positions of a topic that is being deleted."""
        self._rows = deque(row for row in self._rows if row[1].topic != topic)


@lazy_dataclass(slots=True)
class Horizon:
    """The start of the revive log that may be saved.

    ``offset`` was the first needed record when the log ended at ``log_end``. It may be saved when the log is safe up to
    ``log_end``, and all earlier positions are committed and on disk. Otherwise a start would lack check points that say
    how far a group is, and acknowledged messages would be popped again.
    """

    offset: int
    log_end: int

    def may_be_saved(self, reached: int) -> bool:
        """Whether `PendingCommits.safe` has returned all earlier positions, for the same ``reached``."""
        return reached >= self.log_end
