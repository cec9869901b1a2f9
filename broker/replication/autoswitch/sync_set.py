"""The SyncStateSet as its master sees it: its members, who should leave or join, and the confirm offset. Pure.

The Controller decides: the master only requests a change, one at a time, with the epoch of the set that it knows. Until
the answer both the old set and the requested set count, since the Controller may have applied either:
- The confirm offset is the lowest end of a log in either set. Each log that an election can choose has all bytes before
  it, so consumers may see them. It never moves back.
- A member that leaves still holds the confirm offset back until the Controller has agreed. So the master never confirms
  bytes that a broker lacks which can still be elected.
A request without an answer may take effect much later, unless the set has a new epoch by then. So it is sent again. If
it is then refused, the remaining members are requested: Skylark's Controllers give even an unchanged set a new epoch,
which ends the doubt. RocketMQ's Controllers refuse an unchanged set; then both requests are sent by turns.
A member leaves when it lacked a part of the log for ``patience_s``, and soon after its connection closed: until it has
left, nothing is confirmed. A slave joins when it has the log up to the confirm offset; learners never join. Members
leave first, and slaves join one at a time: a slave that the Controllers refuse must not keep a dead member in the set,
nor keep other slaves out. Times are of a monotonic clock, in seconds.
"""

from collections.abc import Iterable
from math import inf

from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.remoting.protocol.codes import ResponseCode

# A slave that lost its connection may connect again for this long before it leaves the set.
GONE_S = 0.5
# A slave that the Controllers refused is asked for again after this time.
REFUSED_S = 1.0

# With these codes the Controllers have decided against the change. After any other error it may still take effect.
DECIDED = frozenset(
    {
        ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH,
        ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH,
        ResponseCode.CONTROLLER_INVALID_MASTER,
        ResponseCode.CONTROLLER_INVALID_REPLICAS,
        ResponseCode.CONTROLLER_BROKER_NOT_ALIVE,
        ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST,
        ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED,
        ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED,
    }
)


@lazy_dataclass(slots=True)
class _Copy:
    """A connected slave: its log's end, and when it last had the master's whole log."""

    end: int
    level_at: float
    is_learner: bool


class SyncSet:
    """The set of the master ``broker_id`` in one of its epochs; make a new object at each election."""

    def __init__(
        self, broker_id: int, members: Iterable[int], epoch: int, patience_s: float, now: float, confirm_offset: int = 0
    ) -> None:
        """``members`` and ``epoch``: from the Controller; ``confirm_offset``: the confirm offset so far."""
        self._me = broker_id
        self.members = frozenset(members) | {broker_id}
        self.epoch = epoch
        self.confirm_offset = confirm_offset
        # The requested set; None when no answer is awaited.
        self.proposed: frozenset[int] | None = None
        # Whether an answer did not come; and whether the present set is requested now, to end the doubt.
        self._is_in_doubt = self._fences = False
        self._patience_s = patience_s
        self._copies: dict[int, _Copy] = {}
        # Members that are not connected leave, too.
        self._since = dict.fromkeys(self.members, now)
        # When connections closed.
        self._gone_at: dict[int, float] = {}
        # When the Controllers refused to let a slave join.
        self._refused_at: dict[int, float] = {}

    def acked(self, broker_id: int, end: int, log_end: int, now: float, *, is_learner: bool = False) -> None:
        """Record that the slave has the log up to ``end``, while the master's log ends at ``log_end``.

        ``is_learner``: the slave never becomes a member of the set.
        """
        copy = self._copies.get(broker_id)
        if copy is None:
            self._gone_at.pop(broker_id, None)
            copy = self._copies[broker_id] = _Copy(end, self._since.get(broker_id, now), is_learner)
        copy.end = max(copy.end, end)
        if copy.end >= log_end:
            copy.level_at = now
        self.advance(log_end)

    def disconnected(self, broker_id: int, now: float) -> None:
        """Record that the slave's connection is closed."""
        copy = self._copies.pop(broker_id, None)
        self._refused_at.pop(broker_id, None)
        if copy is not None:
            self._since[broker_id] = copy.level_at
            self._gone_at[broker_id] = now

    @property
    def waits_for_gone(self) -> bool:
        """Whether a member's connection is closed, and it has not left the set yet."""
        return not self.members.isdisjoint(self._gone_at)

    def advance(self, log_end: int) -> None:
        """Move the confirm offset as far as the members allow."""
        # Count the old and the requested set together: the Controller may have applied either, and elect from it. A
        # member that is not connected counts with 0, so nothing more is confirmed until it has left.
        counted = (self.members | (self.proposed or frozenset())) - {self._me}
        ends = [copy.end if (copy := self._copies.get(member)) else 0 for member in counted]
        self.confirm_offset = max(self.confirm_offset, min([log_end, *ends]))

    def wanted(self, now: float) -> frozenset[int] | None:
        """The set to ask for now; None when it is as it should be, or an answer is awaited."""
        stay = frozenset({self._me, *(each for each in self.members if each != self._me and self._is_kept(each, now))})
        # In doubt, repeat the request; if it was refused, request the remaining members (see the module docstring).
        if self._is_in_doubt:
            return stay if self._fences else self.proposed
        if self.proposed is not None:
            return None
        if stay != self.members:
            return stay
        join = min((slave for slave in self._copies if self._may_join(slave, now)), default=None)
        return None if join is None else stay | {join}

    def propose(self, members: frozenset[int]) -> None:
        """Record that the Controller is being asked for ``members``, which are `wanted`: one request at a time.

        Afterwards call `update` with the answer, `refused` or `unanswered`.
        """
        if self.proposed is not None and not members <= self.members | self.proposed:
            raise RuntimeError("the Controller has not answered yet")
        if self.proposed is None:
            self.proposed = members

    def update(self, members: Iterable[int], epoch: int, log_end: int, now: float) -> None:
        """Apply the Controller's view of the set.

        Older news change nothing. News of the present epoch do not mean that a requested change will not happen.
        """
        if epoch <= self.epoch:
            return
        members = frozenset(members) | {self._me}
        for member in members - self.members:
            self._since.setdefault(member, now)
        self.members, self.epoch, self.proposed = members, epoch, None
        self._is_in_doubt = self._fences = False
        self.advance(log_end)

    def refused(self, now: float) -> None:
        """Record a refusal with a code of `DECIDED`: the change did not happen, unless an earlier try is unanswered."""
        # This try was refused, but an earlier try may still be on its way to the group's log: the request stays open
        # until the set has a new epoch.
        if self._is_in_doubt:
            self._fences = not self._fences
            return
        for slave in (self.proposed or frozenset()) - self.members:
            self._refused_at[slave] = now
        self.proposed = None

    def unanswered(self) -> None:
        """Record that no answer came, or another error: the requested change may still happen."""
        self._is_in_doubt = self.proposed is not None

    def _may_join(self, slave: int, now: float) -> bool:
        copy = self._copies[slave]
        is_new = slave not in self.members and not copy.is_learner and copy.end >= self.confirm_offset
        return is_new and now >= self._refused_at.get(slave, -inf) + REFUSED_S

    def _is_kept(self, member: int, now: float) -> bool:
        copy = self._copies.get(member)
        level_at = copy.level_at if copy else self._since.get(member, now)
        return now < min(level_at + self._patience_s, self._gone_at.get(member, inf) + GONE_S)
