"""When a message is safe, and the status that its producer gets.

Invariant: SUCCESS is sent only when the message is on disk (SYNC_FLUSH) and enough slaves have copied it (SYNC_MASTER).
An answer waits in `LogWaits` for the disk, then in `AckLedger` for the slaves. The deadline for the slaves is set
when the message is stored, so a slow disk does not prolong it. The message is stored in all four outcomes, so a retry
after the last three makes a duplicate:
- SUCCESS: at once with neither SYNC_FLUSH nor SYNC_MASTER, and with WAIT=false.
- FLUSH_DISK_TIMEOUT: the disk was late; the slaves, if any are needed, have the message.
- FLUSH_SLAVE_TIMEOUT: the slaves were late or went away, and perhaps the disk was late, too; in a DLedger group see
  `code_when_late`.
- SLAVE_NOT_AVAILABLE: too few slaves are in sync, so the answer does not wait for them.
A broker that is demoted gets no reports of slaves, so answers that wait for slaves end with FLUSH_SLAVE_TIMEOUT: the
new master may or may not have the message. An answer that still waits for the disk at that time ends the same way.
Neighbours: admission.py (whether a message may be stored), elected.py (the rules of Controller mode), waits.py (the
rows).
"""

import logging
import math
from collections.abc import Callable
from typing import Protocol

from skylark.broker.options import BrokerOptions
from skylark.broker.writing.elected import Elected
from skylark.broker.writing.waits import AckLedger, LogWaits
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import Command

logger = logging.getLogger(__name__)

# The most answers that wait: about 1 KiB each. Without this limit only the rate of sends and their deadlines would
# bound the memory.
MAX_WAITING = 32_768
LOG_INTERVAL_S = 10.0
NO_MAJORITY = "no majority of the group has the message yet, and another leader may drop it: send it again"
# Stand in for a number of slaves: too few slaves are in sync; all members of the SyncStateSet are needed.
_TOO_FEW, _ALL = -1, -2


class Answering(Protocol):
    """A connection, as this module needs it."""

    def reply(self, request: Command, response: Command) -> None:
        """Send ``response``, which answers ``request``.

        The callback of a client in this event loop may run before this method returns.
        """


class Durability:
    """Decides when the answer to a send may be sent, and with which status. Times are seconds of one clock."""

    def __init__(
        self,
        commits: LogWaits,
        acks: AckLedger,
        options: BrokerOptions,
        *,
        double_write: bool,
        max_waiting: int = MAX_WAITING,
        elected: Elected | None = None,
    ) -> None:
        """``double_write``: sends wait for slaves while this broker is the master. ``elected``: in Controller mode."""
        self._commits = commits
        self._acks = acks
        #: None without Controller mode.
        self.elected = elected
        self._confirms: LogWaits | None = None
        if elected is not None:
            self._confirms = confirms = LogWaits(elected.confirm_offset)
            elected.observers.append(confirms.advance)
            elected.on_cut.append(confirms.cut)
        self._options = options
        #: Whether sends wait for slaves while this broker is the master.
        self.double_write = double_write = double_write or elected is not None
        self.max_waiting = max_waiting
        # In a DLedger group an entry counts when a majority, this broker included, has it on disk.
        self._is_in_group = options.enable_dleger_commit_log
        self._sync_flush = options.flush_disk_type == "SYNC_FLUSH" and not self._is_in_group
        #: Whether sends wait for slaves now.
        self.needs_slaves = double_write
        #: Whether sends wait for anything now.
        self.waits = double_write or self._sync_flush
        #: How often this broker was demoted: its log may have been cut since.
        self.demotions = 0
        self._next_log = 0.0
        self._not_logged = 0
        # How many sends were answered with SLAVE_NOT_AVAILABLE, and with `code_when_late`, since the start.
        self.not_available = 0
        self.timed_out = 0

    def __len__(self) -> int:
        """How many answers wait."""
        waiting = len(self._commits) + len(self._acks)
        return waiting if self._confirms is None else waiting + len(self._confirms)

    def lead(self, leads: bool) -> None:
        """Set whether this broker is the master. On demotion all waits for slaves end: no more copies are reported.

        In Controller mode waits for the disk end, too.
        """
        self.needs_slaves = leads and self.double_write
        self.waits = self.needs_slaves or self._sync_flush
        if not leads:
            self.demotions += 1
            self.timed_out += self._expire(math.inf)
            if self.elected is not None:
                # The log may be cut now. Rows that wait for the disk would then precede later sends with lower ends.
                self._commits.expire(math.inf)

    def are_enough(self, end: int) -> bool:
        """Whether minInSyncReplicas brokers, this one included, are in sync with the log, which ends at ``end``."""
        least, elected = self._options.min_in_sync_replicas, self.elected
        if elected is None:
            return 1 + self._acks.in_sync(end) >= least
        return elected.set_size >= (least or elected.default_min_size)

    def are_too_few(self, end: int) -> bool:
        """Whether a send that is stored now, in a log that ends at ``end``, would get SLAVE_NOT_AVAILABLE."""
        return self.needs_slaves and self._slaves_needed(end) == _TOO_FEW

    def answer_when_safe(
        self,
        channel: Answering,
        request: Command,
        response: Command,
        end: int,
        now: float,
        before_reply: Callable[[Command], None] | None = None,
    ) -> Command | None:
        """``response``, the answer to ``request``, if nothing waits; None if it is sent later, or was sent already.

        The answer is sent when the log is safe up to ``end``, or with the code of the step that took too long.
        ``before_reply`` is called just before that, with the response, whose code is set by then.
        """
        if not self.waits or request.is_oneway:
            return response
        # The body may be large; free it while the answer waits.
        request.body, request.ext = b"", None
        options = self._options
        slaves = self._slaves_needed(end) if self.needs_slaves else 0
        pending = PendingAnswer(
            self,
            channel,
            request,
            response,
            before_reply,
            end,
            slaves,
            now + options.slave_timeout / 1000,
            self.demotions,
        )
        if self._sync_flush:
            self._commits.wait(end, now + options.sync_flush_timeout / 1000, pending.wait_ended)
        else:
            pending.wait_ended(True)
        return None

    def wait_for_slaves(self, pending: "PendingAnswer") -> None:
        """Let ``pending`` wait until enough slaves, or all of the SyncStateSet, have its message."""
        if pending.slaves != _ALL:
            self._acks.wait(pending.end, pending.slaves, pending.deadline, pending.wait_ended)
        elif self._confirms is not None:
            self._confirms.wait(pending.end, pending.deadline, pending.wait_ended)

    @property
    def code_when_late(self) -> int:
        """The code for a send whose message too few brokers have in time.

        In a DLedger group it is an error, as in RocketMQ: another leader may cut the message off, and producers do not
        try again after a status that says the message is stored.
        """
        return ResponseCode.SYSTEM_ERROR if self._is_in_group else ResponseCode.FLUSH_SLAVE_TIMEOUT

    def expire(self, now: float) -> None:
        """End the waits for slaves whose deadline has passed."""
        late = self._expire(now)
        self.timed_out += late
        self._not_logged += late
        if self._not_logged and now >= self._next_log:
            logger.warning(
                "%s took longer than slaveTimeout, or went away: sends answered %s: %d",
                *(("a majority", "SYSTEM_ERROR") if self._is_in_group else ("slaves", "FLUSH_SLAVE_TIMEOUT")),
                self._not_logged,
            )
            self._not_logged = 0
            self._next_log = now + LOG_INTERVAL_S

    def _expire(self, now: float) -> int:
        late = self._acks.expire(now)
        return late if self._confirms is None else late + self._confirms.expire(now)

    def _slaves_needed(self, end: int) -> int:
        """How many slaves a send waits for, or _ALL; _TOO_FEW when too few slaves are in sync."""
        options = self._options
        if self._confirms is not None and (options.all_ack_in_sync_state_set or self._is_in_group):
            return _ALL
        needed = options.in_sync_replicas - 1
        if needed == 0:
            return 0
        in_sync = self._acks.in_sync(end)
        if options.enable_auto_in_sync_replicas:
            needed = max(min(needed, in_sync), options.min_in_sync_replicas - 1)
        return needed if needed <= in_sync else _TOO_FEW


@lazy_dataclass(slots=True, eq=False)
class PendingAnswer:
    """The answer to a request whose message is stored and not safe yet.

    It first waits for the disk (without SYNC_FLUSH this wait ends at once), then for slaves. Invariant: ``wait_ended``
    is called once for each wait, and the second call, or the first if no slave is needed, sends the answer; so the
    answer is sent once.
    """

    durability: Durability
    channel: Answering
    request: Command
    response: Command
    before_reply: Callable[[Command], None] | None
    end: int
    #: How many slaves must have the message; or _ALL, or _TOO_FEW.
    slaves: int
    #: The deadline for the slaves: it counts from the put, so a slow disk does not prolong it.
    deadline: float
    #: `Durability.demotions` when the message was stored.
    demotions: int
    is_for_disk: bool = True
    code: int = ResponseCode.SUCCESS

    def wait_ended(self, in_time: bool) -> None:
        """End the wait for the disk, or then the wait for slaves: start the next wait, or send the answer.

        ``in_time``: the message is where it was to be; otherwise the wait took too long.
        """
        durability, elected = self.durability, self.durability.elected
        if not self.is_for_disk:
            if not in_time:
                self.code = durability.code_when_late
        elif self.demotions != durability.demotions and (self.slaves or elected is not None):
            # This broker was demoted meanwhile, and its log may have been cut: the bytes on disk before ``end`` may now
            # be another message, and no slave reports copies to this broker any more.
            durability.timed_out += 1
            self.code = durability.code_when_late
        else:
            self.is_for_disk = False
            if not in_time:
                self.code = ResponseCode.FLUSH_DISK_TIMEOUT
            if self.slaves == _TOO_FEW:
                durability.not_available += 1
                self.code = ResponseCode.SLAVE_NOT_AVAILABLE
            elif self.slaves:
                durability.wait_for_slaves(self)
                return
        # Check the lease last: the process may have been stopped for long, and another master elected.
        if self.code == ResponseCode.SUCCESS and elected is not None and not elected.is_leased:
            durability.timed_out += 1
            self.code = durability.code_when_late
        self.response.code = self.code
        if self.code == ResponseCode.SYSTEM_ERROR:
            self.response.remark = NO_MAJORITY
        if self.before_reply is not None:
            self.before_reply(self.response)
        self.channel.reply(self.request, self.response)
