"""The role of this broker in its set: master, slave, or slave that acts as the master. Pure.

    MASTER --demoted--> SLAVE --promoted--> TAKING_OVER --took_over--> MASTER
                        SLAVE <--acting--> ACTING --promoted--> TAKING_OVER --stepped_back--> SLAVE

Invariant: the log has at most one writer. In MASTER producers append to it, in SLAVE and ACTING the replica does, and
in TAKING_OVER nobody does. So promotion has a state of its own: before the first message is appended, the replica must
have stopped, and the queues must have all records of the log. Demotion needs none: observers run inside the change,
so messages are refused before the replica starts (replication.py tells the order of steps).
Observers see each change once, in order, and no change begins while they are called. So the observer registered first
(`Core.take_role`, which refuses messages) has changed before those after it. Client connections stay open during all
changes.
"""

from collections.abc import Callable
from enum import Enum

from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.names import MASTER_ID


class RoleKind(Enum):
    """The states of the role."""

    MASTER = "master"
    SLAVE = "slave"
    ACTING = "acting"
    TAKING_OVER = "taking over"


@lazy_dataclass(frozen=True, slots=True)
class Role:
    """``broker_id`` is 0 for the master; each of the others has its own id above 0."""

    kind: RoleKind
    broker_id: int

    @property
    def is_master(self) -> bool:
        """Whether a broker in this role accepts messages."""
        return self.kind is RoleKind.MASTER

    @property
    def follows(self) -> bool:
        """Whether a broker in this role copies a master."""
        return self.kind in (RoleKind.SLAVE, RoleKind.ACTING)

    @property
    def takes_commits(self) -> bool:
        """Whether consumers commit their offsets here: at the master, or at the slave that acts as the master."""
        return self.kind in (RoleKind.MASTER, RoleKind.ACTING)


Observer = Callable[[Role, Role], None]


class RoleMachine:
    """The present role is ``now``. An event that does not fit it raises RuntimeError, and changes nothing."""

    def __init__(self, broker_id: int) -> None:
        """A master when ``broker_id`` is 0, else a slave."""
        self.now = Role(RoleKind.MASTER if broker_id == MASTER_ID else RoleKind.SLAVE, broker_id)
        self._observers: list[Observer] = []
        self._is_notifying = False

    def observe(self, observer: Observer) -> None:
        """Call ``observer`` with the role before and after each change from now on."""
        self._observers.append(observer)

    def demoted(self, broker_id: int) -> None:
        """MASTER to SLAVE: another broker is the master, and this one follows it, with an id of its own above 0."""
        if broker_id <= MASTER_ID:
            raise ValueError(f"{broker_id} is not a slave's id, these are above {MASTER_ID}")
        self._change((RoleKind.MASTER,), Role(RoleKind.SLAVE, broker_id))

    def numbered(self, broker_id: int) -> None:
        """Set the id that the Controllers gave this slave."""
        if broker_id <= MASTER_ID:
            raise ValueError(f"{broker_id} is not an id that Controllers give, these are above {MASTER_ID}")
        if broker_id != self.now.broker_id:
            self._change((RoleKind.SLAVE,), Role(RoleKind.SLAVE, broker_id))

    def promoted(self) -> None:
        """SLAVE or ACTING to TAKING_OVER: this broker is elected; call `took_over` when it is ready to lead."""
        self._change((RoleKind.SLAVE, RoleKind.ACTING), Role(RoleKind.TAKING_OVER, self.now.broker_id))

    def took_over(self) -> None:
        """TAKING_OVER to MASTER: this broker has stopped copying, and its queues have all records of its log."""
        self._change((RoleKind.TAKING_OVER,), Role(RoleKind.MASTER, MASTER_ID))

    def stepped_back(self) -> None:
        """TAKING_OVER to SLAVE: another broker was elected; this one has accepted nothing, and follows again."""
        self._change((RoleKind.TAKING_OVER,), Role(RoleKind.SLAVE, self.now.broker_id))

    def acting(self, is_acting: bool) -> None:
        """Set whether this slave acts as the master, because no member of the set with a lower id is alive."""
        before = self.now
        if before.follows and is_acting is not (before.kind is RoleKind.ACTING):
            self._change((before.kind,), Role(RoleKind.ACTING if is_acting else RoleKind.SLAVE, before.broker_id))

    def _change(self, before: tuple[RoleKind, ...], after: Role) -> None:
        if self.now.kind not in before or self._is_notifying:
            raise RuntimeError(f"a broker that is {self.now.kind.value} cannot become {after.kind.value} now")
        # `now` is the new role before observers are called, so an observer that reads it agrees with its arguments. No
        # observer can begin another change, which the other observers would see out of order.
        old, self.now = self.now, after
        self._is_notifying = True
        try:
            for observer in self._observers:
                observer(old, after)
        finally:
            self._is_notifying = False
