"""Sync double write: when a send to a SYNC_MASTER is answered, and with what.

A send is answered SEND_OK when the master's log is on disk (SYNC_FLUSH) and enough slaves have the message, as the
ledgers of both say: it waits in one, then in the other. RocketMQ's other outcomes, all of a message that is stored:
FLUSH_DISK_TIMEOUT, SLAVE_NOT_AVAILABLE (at once: too few slaves are in sync), FLUSH_SLAVE_TIMEOUT; what is wrong with
the slaves goes before what is wrong with the disk. `admit` refuses what must not be stored at all.
Neighbours: acks.py, store/group_commit.py, handlers/send.py.
"""

import logging
from collections.abc import Callable

from broker.options import BrokerOptions
from broker.replication.acks import AckLedger
from broker.store.group_commit import GroupCommit
from mqcommon.errors import RequestRefused
from remoting.protocol.codes import ResponseCode

logger = logging.getLogger(__name__)

# Some 1 KiB each. Sends that wait end at their deadlines, so only their rate would bound them.
MAX_WAITING = 32_768
LOG_INTERVAL_S = 10.0

Answer = Callable[[int], None]


class DoubleWrite:
    """See the module. ``answer`` gets the code, once. Times are seconds of one clock."""

    def __init__(
        self, commits: GroupCommit, acks: AckLedger, options: BrokerOptions, max_waiting: int = MAX_WAITING
    ) -> None:
        self._commits = commits
        self._acks = acks
        self._options = options
        self.max_waiting = max_waiting
        self._sync_flush = options.flush_disk_type == "SYNC_FLUSH"
        self._next_log = 0.0
        self._unsaid = 0
        # Sends answered so, since the start.
        self.not_available = 0
        self.timed_out = 0

    def __len__(self) -> int:
        """Sends that wait."""
        return len(self._commits) + len(self._acks)

    def admit(self, end: int) -> None:
        """Before a message is put at ``end`` of the log: RequestRefused when that must not be."""
        if len(self) >= self.max_waiting:
            raise RequestRefused(
                ResponseCode.SYSTEM_BUSY,
                f"[REJECTREQUEST]system busy, start flow control for a while: {len(self)} sends wait for slaves",
            )
        if 1 + self._acks.in_sync(end) < self._options.min_in_sync_replicas:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, "in-sync replicas not enough")

    def wait(self, end: int, now: float, answer: Answer) -> None:
        """``answer`` when all before ``end`` is where it must be, or when that takes too long."""
        options = self._options
        slaves = self._slaves_needed(end)
        deadline = now + options.slave_timeout / 1000
        if not self._sync_flush:
            self._wait_for_slaves(end, slaves, deadline, ResponseCode.SUCCESS, answer)
            return

        def flushed(in_time: bool) -> None:
            code = ResponseCode.SUCCESS if in_time else ResponseCode.FLUSH_DISK_TIMEOUT
            self._wait_for_slaves(end, slaves, deadline, code, answer)

        self._commits.wait(end, now + options.sync_flush_timeout / 1000, flushed)

    def expire(self, now: float) -> None:
        """End the waits for slaves whose time is over."""
        late = self._acks.expire(now)
        self.timed_out += late
        self._unsaid += late
        if self._unsaid and now >= self._next_log:
            logger.warning("slaves took longer than slaveTimeout: sends answered FLUSH_SLAVE_TIMEOUT: %d", self._unsaid)
            self._unsaid = 0
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

    def _wait_for_slaves(self, end: int, slaves: int, deadline: float, code: int, answer: Answer) -> None:
        if slaves < 0:
            self.not_available += 1
            answer(ResponseCode.SLAVE_NOT_AVAILABLE)
            return
        self._acks.wait(
            end, slaves, deadline, lambda in_time: answer(code if in_time else ResponseCode.FLUSH_SLAVE_TIMEOUT)
        )
