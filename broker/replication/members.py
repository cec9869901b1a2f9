"""Which members of this broker's set are alive, by NameServers, and whether this broker has the lowest id. Pure.

Some work may only be done by one member of a set: the member with the lowest id. This is the master, or, with
``enableSlaveActingMaster``, a slave while no member with a lower id is alive. Features that need this (delayed and
transactional messages, ordered consumption) use ``is_lowest`` and are called when it changes.
Invariants: a slave acts only while no NameServer that answers knows a lower id, so that no slave acts beside a master
while NameServers disagree. While no NameServer answers, nothing changes: being cut off does not make a slave act.
Neighbours: heartbeats.py reports, offset_hand_over.py ends a slave's acting, pre_online.py brings a master online.
"""

from collections.abc import Callable, Mapping

from skylark.mqcommon.names import MASTER_ID


class Members:
    """The living members of the set. ``on_change`` are called after each change of the public attributes."""

    def __init__(self, broker_id: int) -> None:
        self._broker_id = broker_id
        self._views: dict[str, dict[int, str]] = {}
        self.on_change: list[Callable[[], None]] = []
        #: Whether this broker does what only one member of a set may do.
        self.is_lowest = False
        #: The address of the master; None when no NameServer knows a living one. For slaves only.
        self.master_addr: str | None = None
        #: How many times this slave began to act as the master.
        self.terms = 0

    @property
    def is_acting(self) -> bool:
        """Whether this slave acts as the master."""
        return self.is_lowest and self._broker_id != MASTER_ID

    def renumbered(self, broker_id: int) -> None:
        """Set the id of this broker in its set, which changes with its role, and forget the reports so far."""
        self._broker_id = broker_id
        self._views.clear()
        self._become(broker_id == MASTER_ID, None)

    def came_online(self) -> None:
        """Count this master as serving: it has the offsets that an acting slave had for it."""
        self._become(True, None)

    def reported(self, by: str, addrs: Mapping[int, str] | None) -> None:
        """Take the living members (addresses by id) that the NameServer ``by`` reports; None: it does not answer.

        NameServers that do not list this broker are ignored.
        """
        if addrs is None or self._broker_id not in addrs:
            self._views.pop(by, None)
        else:
            self._views[by] = dict(addrs)
        # Without any view nothing changes: this broker itself may be cut off.
        if self._views:
            views = self._views.values()
            is_lowest = not any(broker_id < self._broker_id for view in views for broker_id in view)
            self._become(is_lowest, next((view[MASTER_ID] for view in views if MASTER_ID in view), None))

    def _become(self, is_lowest: bool, master_addr: str | None) -> None:
        if (is_lowest, master_addr) == (self.is_lowest, self.master_addr):
            return
        if is_lowest and not self.is_lowest:
            self.terms += 1
        self.is_lowest, self.master_addr = is_lowest, master_addr
        for callback in self.on_change:
            callback()
