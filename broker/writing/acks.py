"""How much of the master's log each slave has, and who waits for copies: a ledger, not a task or timer a wait.

A wait is a row (end that must be copied, slaves needed, deadline, what to call). Rows that need equally many slaves
stand in the order of the log, so whoever reports pops those that enough slaves have reached; a sweep answers those
whose time is over. Only slaves that are connected count, each once, however many connections it has: the one that began
last. A slave whose log begins after a message has not got it, so it does not count while such a wait goes on.
Times are seconds of one clock, given by the caller.
Neighbours: replication/master.py tells what slaves report; durability.py waits.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

Done = Callable[[bool], None]


@dataclass(slots=True)
class Slave:
    """A connected slave. ``next_offset`` and ``sent_bytes`` are kept by who sends to it."""

    addr: str
    identity: str
    since: float
    start: int  # its log has nothing before
    acked: int = -1  # nothing reported yet
    next_offset: int = 0
    sent_bytes: int = 0


class AckLedger:
    """See the module. ``done`` of a wait is called once: True when enough slaves have it, False when too late."""

    def __init__(self, max_gap_bytes: int) -> None:
        """A slave that is ``max_gap_bytes`` behind, or more, is not in sync."""
        self._max_gap_bytes = max_gap_bytes
        self._slaves: dict[str, Slave] = {}
        self._acked: list[int] = []  # what slaves have reported
        self._ends: list[int] = []  # the same of those that count for all who wait, largest first
        self._rows: dict[int, deque[tuple[int, float, Done]]] = {}  # by slaves needed
        self._waiting = 0
        self._left_out = False  # some slave lacks what somebody waits for

    def __len__(self) -> int:
        """Waits that are not over."""
        return self._waiting

    # --- slaves

    def connected(self, addr: str, since: float, identity: str = "", start: int = 0) -> Slave:
        """A slave that connected at ``since``, with a log from ``start`` on; of one ``identity`` the last counts."""
        slave = Slave(addr, identity, since, start)
        if identity:
            others = [other for other in self._slaves.values() if other.identity == identity]
            if any(other.since > since for other in others):
                return slave  # a connection that was given up, and took longer to say who it is
            for other in others:
                del self._slaves[other.addr]
        self._slaves[addr] = slave
        self._count()
        return slave

    def acked(self, addr: str, offset: int) -> None:
        """The slave has all before ``offset``: ends the waits for which that was missing."""
        slave = self._slaves.get(addr)
        if slave is not None and offset != slave.acked:
            slave.acked = offset
            self._count()
            self._pop_reached()

    def gone(self, addr: str) -> None:
        """The connection is closed. Waits go on: the slave may come back in time."""
        if self._slaves.pop(addr, None) is not None:
            self._count()

    def slaves(self) -> list[Slave]:
        """Those connected, in the order in which they came."""
        return list(self._slaves.values())

    def is_in_sync(self, slave: Slave, end: int) -> bool:
        """Whether the slave is close enough behind ``end``."""
        return slave.acked >= 0 and end - slave.acked < self._max_gap_bytes

    def in_sync(self, end: int) -> int:
        """How many slaves are close enough behind ``end``."""
        least = end - self._max_gap_bytes
        return sum([acked > least for acked in self._acked])

    def reached(self, needed: int) -> int:
        """The end that ``needed`` slaves have; -1 when there are fewer."""
        return self._ends[needed - 1] if needed <= len(self._ends) else -1

    # --- waits

    def wait(self, end: int, needed: int, deadline: float, done: Done) -> None:
        """Call ``done`` when ``needed`` slaves have all before ``end``, or at ``deadline``; ends come in log order."""
        if needed <= 0 or (self.reached(needed) >= end and self._having(end) >= needed):
            done(True)
            return
        rows = self._rows.get(needed)
        if rows is None:
            rows = self._rows[needed] = deque()
        rows.append((end, deadline, done))
        self._waiting += 1

    def expire(self, now: float) -> int:
        """End the waits whose deadline has passed. Deadlines rise with the log, as all wait equally long."""
        late = 0
        for rows in list(self._rows.values()):
            while rows and rows[0][1] <= now:
                self._waiting -= 1
                late += 1
                rows.popleft()[2](False)
                if self._left_out:
                    self._count()
                    self._pop_reached()
        return late

    def _having(self, end: int) -> int:
        """How many slaves have what ends there: one may have begun behind it, after the message was stored."""
        return sum([slave.acked >= end > slave.start for slave in self._slaves.values()])

    def _pop_reached(self) -> None:
        while True:
            for needed, rows in list(self._rows.items()):
                reached = self.reached(needed)
                while rows and rows[0][0] <= reached:
                    self._waiting -= 1
                    rows.popleft()[2](True)
            before = self._ends
            if self._left_out:
                self._count()
            if self._ends == before:
                return

    def _count(self) -> None:
        counted = [slave for slave in self._slaves.values() if slave.acked >= 0]
        oldest = min((rows[0][0] for rows in self._rows.values() if rows), default=None)
        having = counted if oldest is None else [slave for slave in counted if slave.start < oldest]
        self._left_out = len(having) < len(counted)
        self._acked = [slave.acked for slave in counted]
        self._ends = sorted((slave.acked for slave in having), reverse=True)
