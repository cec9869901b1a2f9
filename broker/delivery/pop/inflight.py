"""Which messages are popped and not acknowledged. Pure: the state is what the records of the revive log say, in order.

`apply` takes a record that a running broker has just written, as well as the records that a start reads from the log.
Invariant: each message before a group's position in a queue is acknowledged, has come back as a copy, or is in a lease.
Leases are kept in the order of their check points in the log: the log before the first of them is not needed any more.
A queue that is popped in order has at most one lease, which the next one replaces.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush

from skylark.broker.delivery.pop.records import RELEASED, Ack, Key, PopCheckpoint, Queue
from skylark.broker.store.clock_steps import ClockStep
from skylark.mqcommon.lazy_dataclass import lazy_dataclass

# Rows of leases that have ended are dropped when they are more than those of the others, and than this.
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

    @property
    def due_ms(self) -> int:
        """When all messages that are left are visible, by the present clock."""
        checkpoint = self.checkpoint
        if not checkpoint.visible_ms:
            return checkpoint.due_ms + self.moved_ms
        return max([checkpoint.visible_ms.get(offset, checkpoint.due_ms) for offset in self.left]) + self.moved_ms

    def renewed(self) -> PopCheckpoint:
        """The check point to write again, nearer to the end of the log."""
        acked = ((1 << len(self.checkpoint.offsets)) - 1) & ~self.unacked
        return replace(self.checkpoint, position=None, acked=acked, replaces=None, is_again=True)


class Inflight:
    """See the module."""

    def __init__(self) -> None:
        self._leases: dict[Key, PopLease] = {}
        # In the order of the log.
        self._in_log: dict[PopLease, None] = {}
        self._due: list[tuple[int, int, PopLease]] = []
        self._count = 0
        #: The lease of each queue that is popped in order.
        self.ordered: dict[Queue, PopLease] = {}
        #: The attempt that has the messages of such a lease, if this broker was told; not in the log.
        self.attempts: dict[Queue, str] = {}
        #: Where the next pop of a queue begins, as far as records say.
        self.positions: dict[Queue, int] = {}

    def __len__(self) -> int:
        """How many leases there are."""
        return len(self._leases)

    def apply(self, record: PopCheckpoint | Ack, log_offset: int) -> None:
        """Take over a record that is at ``log_offset`` of the revive log."""
        if isinstance(record, Ack):
            self._take_back(record.key, record.offsets)
            return
        key = record.key
        # First what the record ends, then the lease that it begins.
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
        # Written again only: other times would be of the present clock.
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
        """The lease with messages that are left."""
        return self._leases.get(key)

    def hidden(self, key: Key, offsets: Sequence[int]) -> list[int]:
        """Those of ``offsets`` that are in flight under this check point."""
        lease = self._leases.get(key)
        if lease is None:
            return []
        known, unacked = lease.checkpoint.offsets, lease.unacked
        return [offset for offset in offsets if offset in known and unacked >> known.index(offset) & 1]

    def due(self, now_ms: int) -> PopLease | None:
        """A lease whose time is over. It is not returned again: `put_off` it, or acknowledge its messages."""
        while self._due and self._due[0][0] <= now_ms:
            lease = heappop(self._due)[2]
            if lease in self._in_log:
                return lease
        return None

    @property
    def next_due_ms(self) -> int | None:
        """When the next lease is over, unless it ends before; None when there is none."""
        return self._due[0][0] if self._due else None

    def clock_moved(self, step: ClockStep) -> None:
        """The clock was set: what was popped before that stays hidden for as long as its consumer was told."""
        for lease in self._in_log:
            if step.may_precede(lease.checkpoint.key.pop_ms + lease.moved_ms):
                lease.moved_ms += step.moved_ms
        self._order()

    def take_over(self, now_ms: int) -> None:
        """All leases were read from the log. A pop in the future was made by another clock: it counts as of now."""
        for lease in self._in_log:
            lease.moved_ms = min(now_ms - lease.checkpoint.key.pop_ms, 0)
        self._order()

    def _order(self) -> None:
        self._due = [(lease.due_ms, number, lease) for number, lease in enumerate(self._in_log, self._count)]
        self._count += len(self._due)
        heapify(self._due)

    def put_off(self, lease: PopLease, due_ms: int) -> None:
        """Return a lease from `due` again at this time."""
        self._count += 1
        heappush(self._due, (due_ms, self._count, lease))

    def drop_topic(self, topic: str) -> None:
        """The topic is being deleted: forget what is popped from it, and how far groups are."""
        for lease in [lease for lease in self._in_log if lease.checkpoint.key.queue.topic == topic]:
            self._end(lease)
        for queue in [queue for queue in self.positions if queue.topic == topic]:
            del self.positions[queue]

    def needed_from(self, end: int) -> int:
        """The first offset of the revive log that a start needs; ``end`` when it needs none of what is written."""
        first = next(iter(self._in_log), None)
        return end if first is None else first.log_offset

    def oldest(self) -> Iterator[PopLease]:
        """The leases in the order of the log; do not change them meanwhile."""
        return iter(self._in_log)

    def _take_back(self, key: Key, offsets: Sequence[int]) -> None:
        lease = self._leases.get(key)
        if lease is None:
            return
        known = lease.checkpoint.offsets
        for offset in offsets:
            if offset in known:
                lease.unacked &= ~(1 << known.index(offset))
        if not lease.unacked:
            self._end(lease)

    def _end(self, lease: PopLease) -> None:
        """Drop a lease that no other one replaces."""
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
            # Leases that ended long before their time.
            self._due = [row for row in self._due if row[2] in self._in_log]
            heapify(self._due)


class PendingCommits:
    """Positions of groups that wait until they may be committed.

    A position is committed when the log, up to the check point that moved it, is on disk and with the slaves. So a
    crash that takes the end of the log leaves no committed offset after messages whose check point is lost.
    """

    def __init__(self) -> None:
        # (end of the log after the check point, queue, position)
        self._rows: deque[tuple[int, Queue, int]] = deque()

    def moved(self, queue: Queue, position: int, log_end: int) -> None:
        """The group's position is ``position`` by what is in the log before ``log_end``."""
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
        """The group goes on at another offset: older positions of this queue must not be committed."""
        self._rows = deque(row for row in self._rows if row[1] != queue)

    def drop_topic(self, topic: str) -> None:
        """The topic is being deleted."""
        self._rows = deque(row for row in self._rows if row[1].topic != topic)


@lazy_dataclass(slots=True)
class Horizon:
    """The start of the revive log that may be saved.

    ``offset`` was the first that was needed when the log ended at ``log_end``. It may be saved when the log is safe up
    to there, and all positions from before are committed and on disk: else a start would lack check points that tell
    how far a group is, and pop acknowledged messages again.
    """

    offset: int
    log_end: int

    def may_be_saved(self, reached: int) -> bool:
        """Whether the positions from before have been given out by `PendingCommits.safe`, for the same ``reached``."""
        return reached >= self.log_end
