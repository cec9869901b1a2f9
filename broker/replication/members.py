"""Who of this broker's set lives, as NameServers say, and whether this broker is the lowest of them. Pure.

The lowest serves what only one of a set may: that is the master, and a slave with acting masters (RocketMQ's
``enableSlaveActingMaster``) while no member with a lower id lives. Later features that need it (delayed and
transactional messages, ordered consumption) look at ``is_lowest`` and are called when it changes.
Invariants: a slave acts only while no NameServer that answers knows a lower id, so that NameServers which differ for a
while make nobody act beside a master; while none answers, nothing changes.
Neighbours: heartbeats.py tells, hand_over.py ends what a slave did while it acted, pre_online.py says when a master is.
"""

from collections.abc import Callable, Mapping

from mqcommon.names import MASTER_ID


class Members:
    """See the module. ``on_change`` are called after each change of what the attributes tell."""

    def __init__(self, broker_id: int) -> None:
        self._broker_id = broker_id
        self._views: dict[str, dict[int, str]] = {}
        self.on_change: list[Callable[[], None]] = []
        #: Whether this broker serves what only one of a set may.
        self.is_lowest = False
        #: Where the master is, None when no NameServer knows a living one. Of a slave only.
        self.master_addr: str | None = None
        #: How often this slave began to act as the master.
        self.terms = 0

    @property
    def is_acting(self) -> bool:
        """Whether this slave stands in for the master."""
        return self.is_lowest and self._broker_id != MASTER_ID

    def renumbered(self, broker_id: int) -> None:
        """The role of this broker has changed, and with it the number among the members."""
        self._broker_id = broker_id
        self._views.clear()
        self._become(broker_id == MASTER_ID, None)

    def came_online(self) -> None:
        """This broker, a master, has all that an acting slave had for it, and serves from here on."""
        self._become(True, None)

    def told(self, by: str, addrs: Mapping[int, str] | None) -> None:
        """The NameServer ``by`` says who lives, None: it does not answer. One that forgot this broker has no say."""
        if addrs is None or self._broker_id not in addrs:
            self._views.pop(by, None)
        else:
            self._views[by] = dict(addrs)
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
