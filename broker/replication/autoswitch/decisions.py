"""What this broker does after an answer of the Controller, or without an answer. Pure.

The Controller's news are (master, its epoch). Each election has a higher epoch, so news of a lower epoch are late and
change nothing. The broker is FOLLOWING a master, LEADING in an epoch, or IDLE. While IDLE it accepts no messages,
copies nothing and asks for an election. A master whose lease ends becomes IDLE by itself. If the Controller then still
names it in the same epoch, no other broker was elected meanwhile, and it leads again without a new epoch.
A restarted broker does not lead in an epoch that is older than its start. Its log may have lost bytes of that epoch
which slaves have; if it wrote other bytes at the same place, the difference would never be found. While the Controller
still names this broker for such an epoch, the broker must send no heartbeats, so that another broker is elected, or
this one in a new epoch. The first news must answer a question of this process.
The same epoch never names two masters; if it does, the news come from different groups of Controllers: RuntimeError.
`MasterLease` says until when a master may go on without an answer. Neighbours: role.py (what clients see).
"""

from enum import Enum
from math import inf
from typing import NamedTuple

from skylark.mqcommon.lazy_dataclass import lazy_dataclass

NO_EPOCH = -1
# Each election raises the epoch by one. News of an epoch that is further ahead than this are forged or damaged: in the
# file of epochs it would be later than all epochs of the Controllers, and this broker would never lead or follow again.
MAX_EPOCH_STEP = 1 << 24


class Stand(Enum):
    """What a broker does in its set."""

    IDLE = "idle"
    FOLLOWING = "following"
    LEADING = "leading"


class News(NamedTuple):
    """The Controller's view: ``master_id`` is None when there is no master now."""

    master_id: int | None
    master_addr: str
    epoch: int


@lazy_dataclass(frozen=True, slots=True)
class RoleDecision:
    """A new ``stand``, with its epoch. ``begins``: the log gets a new epoch before the first message."""

    stand: Stand
    epoch: int
    master_id: int | None = None
    master_addr: str = ""
    begins: bool = False


class Decisions:
    """Decides what this broker does in its set. ``now`` is the present decision.

    Each event has a method, which returns the new decision, or None when nothing changes.
    """

    def __init__(self, broker_id: int, log_epoch: int = NO_EPOCH) -> None:
        """The broker with the Controller's id ``broker_id``. It is idle until the Controller answers.

        ``log_epoch``: the last epoch of its log, which the Controllers have reached.
        """
        self.broker_id = broker_id
        self.now = RoleDecision(Stand.IDLE, log_epoch)
        # The last epoch that this broker has led in, or may not lead in.
        self._begun = log_epoch
        # The last epoch that is older than this process; None until the Controller has said it.
        self._older_epoch: int | None = None
        #: Whether no heartbeat may be sent: the Controller may name this broker for what it was before its start.
        self.must_be_silent = True
        # The master of `now.epoch`, also while this broker is idle; None before the first news.
        self._master_id: int | None = None

    @property
    def asks_for_election(self) -> bool:
        """Whether the Controller should be asked to elect a master (request 1002)."""
        return self.now.stand is Stand.IDLE

    def take_news(self, news: News) -> RoleDecision | None:
        """Decide by ``news``, an answer or notice of the Controller.

        RuntimeError when its group cannot have sent it.
        """
        if news.epoch > max(self.now.epoch, 0) + MAX_EPOCH_STEP:
            raise RuntimeError(
                f"no elections lead from epoch {max(self.now.epoch, 0)}, which this broker knows, to {news.epoch}:"
                " controllerAddr names another group, or something between changes answers"
            )
        # The first news of this process: it does not lead in an epoch from before its start.
        if self._older_epoch is None:
            self._older_epoch = self._begun = max(news.epoch, self.now.epoch)
            self.now = RoleDecision(Stand.IDLE, self._older_epoch)
        if news.epoch < self.now.epoch or (news.master_id == self.broker_id and news.epoch <= self._older_epoch):
            return None
        self.must_be_silent = False
        if news.master_id is None:
            # A slave goes on copying: the bytes it gets are confirmed later, or cut when it follows another master.
            return self._idle() if self.now.stand is Stand.LEADING else None
        # News of the present epoch matter only for an idle broker, or if the master's address has changed.
        is_new = news.epoch > self.now.epoch or self._master_id is None
        if not is_new and news.master_id != self._master_id:
            raise RuntimeError(
                f"epoch {news.epoch} has two masters, {self._master_id} and {news.master_id}:"
                " controllerAddr names Controllers of different groups"
            )
        self._master_id = news.master_id
        stand = Stand.LEADING if news.master_id == self.broker_id else Stand.FOLLOWING
        # The log gets the epoch once: a master that leads again in it goes on where it was.
        begins = stand is Stand.LEADING and news.epoch > self._begun
        if begins:
            self._begun = news.epoch
        decision = RoleDecision(stand, news.epoch, news.master_id, news.master_addr, begins)
        if not is_new and (stand, news.master_addr) == (self.now.stand, self.now.master_addr):
            return None
        self.now = decision
        return decision

    def lease_ended(self) -> RoleDecision | None:
        """Stop leading, because the lease has ended: the Controller may elect another master from now on."""
        return self._idle() if self.now.stand is Stand.LEADING else None

    def _idle(self) -> RoleDecision:
        self.now = RoleDecision(Stand.IDLE, self.now.epoch)
        return self.now


# The lease is shorter than the Controller's patience by this share.
MARGIN = 0.2


class MasterLease:
    """Until when an elected master may acknowledge messages without news from the Controller.

    The Controller elects another master when it has heard nothing from this broker for ``timeout_s``, the time that the
    broker states in its heartbeats. The Controller receives a heartbeat after it was sent, so the lease counts from the
    sending; it ends earlier by a share of the time, for clocks that run at different speeds. Only an answered heartbeat
    extends the lease. Call `holds` just before each acknowledgement: a process that was stopped and continues then
    finds its lease over.
    No lease is held at first, nor after `end`, until a heartbeat sent later is answered. Times are of a monotonic
    clock, in seconds.
    """

    def __init__(self, timeout_s: float) -> None:
        self._held_s = timeout_s * (1 - MARGIN)
        self._until = self._ended_at = -inf

    @property
    def until(self) -> float:
        """When the lease ends unless another heartbeat is answered."""
        return self._until

    def holds(self, now: float) -> bool:
        return now < self._until

    def answered(self, sent_at: float) -> None:
        """Extend the lease: the Controller has answered the heartbeat that was sent at ``sent_at``."""
        if sent_at > self._ended_at:
            self._until = max(self._until, sent_at + self._held_s)

    def end(self, now: float) -> None:
        """End the lease, as the Controller no longer takes this broker for the master.

        Answers to heartbeats that were sent before ``now`` do not count any more.
        """
        self._until, self._ended_at = -inf, now
