"""When a message is safe, and what its producer is told.

A message is safe when the log is on disk up to its end (SYNC_FLUSH) and enough slaves have copied it (a master with
double write), as the ledgers of both say: an answer waits in one, then in the other. The four outcomes, all of a
message that is stored: SUCCESS, FLUSH_DISK_TIMEOUT, SLAVE_NOT_AVAILABLE (at once: too few slaves are in sync),
FLUSH_SLAVE_TIMEOUT. What is wrong with the slaves goes before what is wrong with the disk. Without SYNC_FLUSH and
double write a stored message is safe at once. A producer that says WAIT=false is told SUCCESS at once, too.
`admit` refuses what must not be stored at all.
Neighbours: group_commit.py, acks.py.
"""

import logging
import math
from collections.abc import Callable

from broker.options import BrokerOptions
from broker.writing.acks import AckLedger
from broker.writing.group_commit import GroupCommit
from mqcommon.errors import RequestRefused
from mqcommon.message.properties import find_property
from remoting.protocol.codes import ResponseCode

logger = logging.getLogger(__name__)

# Some 1 KiB each. Answers that wait end at their deadlines, so only the rate of sends would bound them.
MAX_WAITING = 32_768
LOG_INTERVAL_S = 10.0

#: Called once, with one of the four codes.
Done = Callable[[int], None]


def skips_waiting(properties: bytes) -> bool:
    """Whether a producer says with these properties that it does not wait for its message to be safe."""
    return properties.find(b"WAIT\x01false") >= 0 and find_property(properties, b"WAIT") == b"false"


class Durability:
    """See the module. Times are seconds of one clock."""

    def __init__(
        self,
        commits: GroupCommit,
        acks: AckLedger,
        options: BrokerOptions,
        *,
        double_write: bool,
        max_waiting: int = MAX_WAITING,
    ) -> None:
        """``double_write``: as long as this broker leads, sends wait for slaves."""
        self._commits = commits
        self._acks = acks
        self._options = options
        self._double_write = double_write
        self.max_waiting = max_waiting
        self._sync_flush = options.flush_disk_type == "SYNC_FLUSH"
        #: Whether slaves are waited for now.
        self.needs_slaves = double_write
        #: Whether anything is waited for now.
        self.waits = double_write or self._sync_flush
        self._next_log = 0.0
        self._not_logged = 0
        # Sends answered so, since the start.
        self.not_available = 0
        self.timed_out = 0

    def __len__(self) -> int:
        """Answers that wait."""
        return len(self._commits) + len(self._acks)

    def lead(self, leads: bool) -> None:
        """Whether this broker is the master now. When it ceases to be, nobody tells it of copies: all waits end."""
        self.needs_slaves = leads and self._double_write
        self.waits = self.needs_slaves or self._sync_flush
        if not leads:
            self.timed_out += self._acks.expire(math.inf)

    def admit(self, end: int) -> None:
        """Before a message is put at ``end`` of the log: RequestRefused when it must not be stored."""
        if len(self) >= self.max_waiting:
            raise RequestRefused(
                ResponseCode.SYSTEM_BUSY,
                f"[REJECTREQUEST]system busy, start flow control for a while: {len(self)} sends wait for slaves",
            )
        if 1 + self._acks.in_sync(end) < self._options.min_in_sync_replicas:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, "in-sync replicas not enough")

    def when_safe(self, end: int, now: float, done: Done) -> None:
        """Call ``done`` when all before ``end`` is safe, or when that takes too long."""
        options = self._options
        slaves = self._slaves_needed(end) if self.needs_slaves else 0
        deadline = now + options.slave_timeout / 1000
        if not self._sync_flush:
            self._wait_for_slaves(end, slaves, deadline, ResponseCode.SUCCESS, done)
            return

        def flushed(in_time: bool) -> None:
            code = ResponseCode.SUCCESS if in_time else ResponseCode.FLUSH_DISK_TIMEOUT
            self._wait_for_slaves(end, slaves, deadline, code, done)

        self._commits.wait(end, now + options.sync_flush_timeout / 1000, flushed)

    def expire(self, now: float) -> None:
        """End the waits for slaves whose time is over."""
        late = self._acks.expire(now)
        self.timed_out += late
        self._not_logged += late
        if self._not_logged and now >= self._next_log:
            logger.warning(
                "slaves took longer than slaveTimeout: sends answered FLUSH_SLAVE_TIMEOUT: %d", self._not_logged
            )
            self._not_logged = 0
            self._next_log = now + LOG_INTERVAL_S

    def _slaves_needed(self, end: int) -> int:
        """Slaves whose copies a send waits for; -1 when not so many are in sync."""
        options = self._options
        needed = options.in_sync_replicas - 1
        if needed == 0:
            return 0
        in_sync = self._acks.in_sync(end)
        if options.enable_auto_in_sync_replicas:
            needed = max(min(needed, in_sync), options.min_in_sync_replicas - 1)
        return needed if needed <= in_sync else -1

    def _wait_for_slaves(self, end: int, slaves: int, deadline: float, code: int, done: Done) -> None:
        if slaves < 0:
            self.not_available += 1
            done(ResponseCode.SLAVE_NOT_AVAILABLE)
        elif not slaves:
            done(code)
        elif not self.needs_slaves:
            # This broker ceased to lead while the disk was waited for.
            self.timed_out += 1
            done(ResponseCode.FLUSH_SLAVE_TIMEOUT)
        else:
            self._acks.wait(
                end, slaves, deadline, lambda in_time: done(code if in_time else ResponseCode.FLUSH_SLAVE_TIMEOUT)
            )
