"""Sends that wait until their message is safe, as rows of queues (no task or timer per send).

`LogWaits` has the sends that wait for an fsync, or for all members of the SyncStateSet; `AckLedger` has sends that wait
for copies by slaves, with one queue of rows for each number of slaves needed.
A row is (end of the message, deadline, function to call). Rows of one queue are in log order, and all sends have the
same timeout. So both ends and deadlines rise from row to row, and it is enough to look at the first row of each queue
when the log is safe up to a later offset or time passes (`expire`, which is called periodically).

Times are seconds of one clock, given by the caller.
Neighbours: tasks/flush.py says what is on disk, replication/master.py what slaves have, elected.py what is confirmed;
durability.py waits.
"""

from collections import deque
from collections.abc import Callable

from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.message.properties import find_property

Done = Callable[[bool], None]
# How long sends wait for a slave whose connection ended: longer than a reconnection takes, and shorter than a
# producer's timeout, after which the producer goes to another broker.
ABSENCE_S = 0.5


def skips_waiting(properties: bytes) -> bool:
    """Whether these properties say that the producer does not wait until its message is safe."""
    return properties.find(b"WAIT\x01false") >= 0 and find_property(properties, b"WAIT") == b"false"


class LogWaits:
    """Sends that wait until a log is safe up to an offset, in one sense: on disk (group commit), or confirmed.

    ``done`` of a wait is called once: with True when the log is safe, with False when that took too long. Invariant:
    the ends of rows rise, so that an `advance` ends the first rows. It holds because a message is put and its wait is
    added in one step, and because `cut` removes the rows of messages that were cut.
    """

    def __init__(self, reached: int = 0) -> None:
        self._rows: deque[tuple[int, float, Done]] = deque()
        self.reached = reached

    def __len__(self) -> int:
        return len(self._rows)

    def wait(self, end: int, deadline: float, done: Done) -> None:
        """Call ``done`` when the log is safe up to ``end``, or at ``deadline``. Must be called in log order."""
        if end <= self.reached:
            done(True)
        else:
            self._rows.append((end, deadline, done))

    def advance(self, reached: int, *, is_safe: bool = True) -> None:
        """End the waits up to ``reached``: the log is safe up to there.

        Without ``is_safe`` these waits fail: it is unknown whether their messages are on disk.
        """
        if is_safe:
            self.reached = reached
        rows = self._rows
        while rows and rows[0][0] <= reached:
            rows.popleft()[2](is_safe)

    def cut(self, end: int) -> None:
        """Fail the waits for messages after ``end``, where the log is cut. Later messages there are not safe yet."""
        self.reached = min(self.reached, end)
        while self._rows and self._rows[-1][0] > end:
            self._rows.pop()[2](False)

    def expire(self, now: float) -> int:
        """Fail the waits whose deadline has passed; returns how many."""
        rows = self._rows
        count = 0
        while rows and rows[0][1] <= now:
            rows.popleft()[2](False)
            count += 1
        return count


@lazy_dataclass(slots=True)
class ConnectedSlave:
    """A connected slave. The link that sends to it keeps ``next_offset`` and ``sent_bytes``."""

    addr: str
    identity: str  # the same for all connections of one slave; empty: unknown
    since: float
    start: int  # where the slave's log begins: it holds no message before this offset
    acked: int = -1  # the slave holds the log from ``start`` to here; -1: it has not reported yet
    next_offset: int = 0
    sent_bytes: int = 0
    is_leaving: bool = False  # it is about to stop: sends that wait already still count its copies


class AckLedger:
    """Waits for slaves. ``done`` of a wait is called once: True when enough slaves have the message, else False.

    Invariant: a wait succeeds only when as many connected slaves as it needs hold the whole message. The danger is to
    count a copy that does not exist:

    - A slave may connect again before the master sees that its first connection is dead. Two connections are one copy,
      so slaves with the same identity count once, as the connection that began last.
    - A slave whose log starts after the message can report an offset past the message's end without having it. Such a
      slave is not counted while the oldest wait is for a message before its start (`_count`).
    - A slave whose connection ended may be starting again, with a shorter log. It counts again after its next report.

    When a row ends, more slaves may count for the next row. So `_pop_reached` and `expire` count again until no more
    rows end.
    """

    def __init__(self, max_gap_bytes: int) -> None:
        """``max_gap_bytes``: a slave that lags this much, or more, is not in sync."""
        self._max_gap_bytes = max_gap_bytes
        self._slaves: dict[str, ConnectedSlave] = {}
        #: Whether a slave was ever connected.
        self.had_slaves = False
        self._acked: list[int] = []  # reported ends; without slaves that have not reported yet, or are leaving
        self._ends: list[int] = []  # reported ends of slaves that may have the oldest waiting message, largest first
        self._rows: dict[int, deque[tuple[int, float, Done]]] = {}  # by the number of slaves needed, in log order
        self._waiting = 0
        self._lacks_oldest = False  # some slave's log starts after the oldest waiting message
        # By the number of slaves needed: when `expire` first saw waits for more slaves than are connected.
        self._short_since: dict[int, float] = {}

    def __len__(self) -> int:
        """How many sends wait."""
        return self._waiting

    # --- slaves

    def connected(self, addr: str, since: float, identity: str = "", start: int = 0) -> ConnectedSlave:
        """Add a slave that connected at ``since`` with a log from ``start`` on; its ``identity`` counts once."""
        slave = ConnectedSlave(addr, identity, since, start)
        self.had_slaves = True
        if identity:
            others = [other for other in self._slaves.values() if other.identity == identity]
            if any(other.since > since for other in others):
                return slave  # the hello of an older connection, which the slave has replaced, came late
            for other in others:
                del self._slaves[other.addr]
        self._slaves[addr] = slave
        self._count()
        return slave

    def acked(self, addr: str, offset: int) -> None:
        """Record that the slave has the log up to ``offset``; ends the waits that this satisfies."""
        slave = self._slaves.get(addr)
        if slave is not None and offset != slave.acked:
            slave.acked = offset
            self._count()
            self._pop_reached()

    def disconnected(self, addr: str) -> None:
        """Remove a slave whose connection is closed. Waits go on for ABSENCE_S: the slave may come back in time."""
        if self._slaves.pop(addr, None) is not None:
            self._count()

    def leaving(self, slave: ConnectedSlave) -> None:
        """Count the slave as in sync no longer, as it is about to stop; its reports still end waits."""
        if not slave.is_leaving:
            slave.is_leaving = True
            self._count()

    def slaves(self) -> list[ConnectedSlave]:
        """The connected slaves, oldest connection first."""
        return list(self._slaves.values())

    def is_in_sync(self, slave: ConnectedSlave, end: int) -> bool:
        """Whether the slave lags less than the maximum gap behind ``end``, and does not leave."""
        return not slave.is_leaving and slave.acked >= 0 and end - slave.acked < self._max_gap_bytes

    def in_sync(self, end: int) -> int:
        """How many slaves lag less than the maximum gap behind ``end``."""
        least = end - self._max_gap_bytes
        return sum([acked > least for acked in self._acked])

    def reached(self, needed: int) -> int:
        """The offset up to which ``needed`` slaves have the log; -1 when there are fewer slaves."""
        return self._ends[needed - 1] if needed <= len(self._ends) else -1

    # --- waits

    def wait(self, end: int, needed: int, deadline: float, done: Done) -> None:
        """Call ``done`` when ``needed`` slaves have the message before ``end``, or at ``deadline``.

        Must be called in log order.
        """
        if needed <= 0 or (self.reached(needed) >= end and self._having(end) >= needed):
            done(True)
            return
        rows = self._rows.get(needed)
        if rows is None:
            rows = self._rows[needed] = deque()
        rows.append((end, deadline, done))
        self._waiting += 1

    def expire(self, now: float) -> int:
        """Fail waits whose deadline has passed, or whose slaves have been away for ABSENCE_S; returns how many."""
        late = 0
        for needed, rows in list(self._rows.items()):
            is_hopeless = False
            if rows and needed > len(self._slaves):
                is_hopeless = now >= self._short_since.setdefault(needed, now) + ABSENCE_S
            else:
                self._short_since.pop(needed, None)
            while rows and (is_hopeless or rows[0][1] <= now):
                self._waiting -= 1
                late += 1
                rows.popleft()[2](False)
                if self._lacks_oldest:
                    self._count()
                    self._pop_reached()
        return late

    def _having(self, end: int) -> int:
        """How many slaves have the message before ``end``: a slave counts only if its log starts before it."""
        return sum([slave.acked >= end > slave.start for slave in self._slaves.values()])

    def _pop_reached(self) -> None:
        while True:
            for needed, rows in list(self._rows.items()):
                reached = self.reached(needed)
                while rows and rows[0][0] <= reached:
                    self._waiting -= 1
                    rows.popleft()[2](True)
            before = self._ends
            if self._lacks_oldest:
                self._count()  # another wait is the oldest now: more slaves may count
            if self._ends == before:
                return

    def _count(self) -> None:
        reported = [slave for slave in self._slaves.values() if slave.acked >= 0]
        oldest = min((rows[0][0] for rows in self._rows.values() if rows), default=None)
        counted = reported if oldest is None else [slave for slave in reported if slave.start < oldest]
        self._lacks_oldest = len(counted) < len(reported)
        self._acked = [slave.acked for slave in reported if not slave.is_leaving]
        self._ends = sorted((slave.acked for slave in counted), reverse=True)
