"""What this broker is in its set: the master, a slave, or a slave that acts as the master. Pure.

    MASTER --demoted--> SLAVE --promoted--> TAKING_OVER --took_over--> MASTER
                        SLAVE <--acting--> ACTING --promoted--> TAKING_OVER

A broker that is promoted first takes over: it stops to follow, and its queues get all that its log holds. Messages are
taken by a MASTER only. Connections stay open through all of this.
Invariant: observers see each change once, in their order, and no change begins while another is being told.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from mqcommon.names import MASTER_ID


class Kind(Enum):
    """See the module."""

    MASTER = "master"
    SLAVE = "slave"
    ACTING = "acting"
    TAKING_OVER = "taking over"


@dataclass(frozen=True, slots=True)
class Role:
    """``broker_id`` is 0 for the master, and above for the others, each its own."""

    kind: Kind
    broker_id: int

    @property
    def is_master(self) -> bool:
        """Whether it takes messages."""
        return self.kind is Kind.MASTER

    @property
    def follows(self) -> bool:
        """Whether it copies a master."""
        return self.kind in (Kind.SLAVE, Kind.ACTING)

    @property
    def takes_commits(self) -> bool:
        """Whether consumers commit their offsets here: at the master, or at the slave that acts as the master."""
        return self.kind in (Kind.MASTER, Kind.ACTING)


Observer = Callable[[Role, Role], None]


class RoleMachine:
    """The present role is ``now``. An event that does not fit it raises RuntimeError, and changes nothing."""

    def __init__(self, broker_id: int) -> None:
        """A master when ``broker_id`` is 0, else a slave."""
        self.now = Role(Kind.MASTER if broker_id == MASTER_ID else Kind.SLAVE, broker_id)
        self._observers: list[Observer] = []
        self._is_telling = False

    def observe(self, observer: Observer) -> None:
        """Call ``observer`` with the role before and after each change from now on."""
        self._observers.append(observer)

    def demoted(self, broker_id: int) -> None:
        """Another broker is the master from now on; this one follows it, with an id of its own above 0."""
        if broker_id <= MASTER_ID:
            raise ValueError(f"{broker_id} is no id of a slave, they are above {MASTER_ID}")
        self._change((Kind.MASTER,), Role(Kind.SLAVE, broker_id))

    def promoted(self) -> None:
        """This broker is to be the master; `took_over` when it can be."""
        self._change((Kind.SLAVE, Kind.ACTING), Role(Kind.TAKING_OVER, self.now.broker_id))

    def took_over(self) -> None:
        """Nothing is followed any more, and all that was copied is in the queues."""
        self._change((Kind.TAKING_OVER,), Role(Kind.MASTER, MASTER_ID))

    def acting(self, is_acting: bool) -> None:
        """Whether this slave acts as the master, since no member of the set with a lower id lives."""
        before = self.now
        if before.follows and is_acting is not (before.kind is Kind.ACTING):
            self._change((before.kind,), Role(Kind.ACTING if is_acting else Kind.SLAVE, before.broker_id))

    def _change(self, before: tuple[Kind, ...], after: Role) -> None:
        if self.now.kind not in before or self._is_telling:
            raise RuntimeError(f"a broker that is {self.now.kind.value} cannot become {after.kind.value} now")
        old, self.now = self.now, after
        self._is_telling = True
        try:
            for observer in self._observers:
                observer(old, after)
        finally:
            self._is_telling = False
