"""Where this slave's master is, as NameServers report it.

Each registration of a slave is answered with two addresses of its master: for requests, and of its HA port. When
NameServers know no master, the last address is kept: a master that is away mostly comes back there. When they report
different addresses, the present one is kept as long as some NameServer reports it, so that the slave does not switch
back and forth while NameServers disagree.
Neighbours: registrar.py reports, slave.py (the log) and slave_sync.py (the metadata) use it.
"""

from collections.abc import Callable
from typing import NamedTuple


class MasterAddress(NamedTuple):
    """``addr`` is for requests, ``ha_addr`` for the log."""

    addr: str
    ha_addr: str


class KnownMaster:
    """The present master. ``on_change`` are called after each change, also the first."""

    def __init__(self) -> None:
        self.address: MasterAddress | None = None
        self.on_change: list[Callable[[], None]] = []
        #: Called when the master can be reached again.
        self.on_return: list[Callable[[], object]] = []
        #: Called when the master was lost: NameServers may know another one.
        self.ask_again: Callable[[], None] = _ask_nothing
        self._reported: dict[str, MasterAddress] = {}  # by NameServer
        self._answers = True

    @property
    def is_reachable(self) -> bool:
        """Whether a NameServer knows the master and it answers this slave: a frozen one stays registered for long."""
        return self._answers and self.registered

    @property
    def registered(self) -> bool:
        """Whether some NameServer says that the master is alive."""
        return bool(self._reported)

    def forget(self) -> None:
        """Forget the master: this broker is the master now."""
        self._reported.clear()
        self.address, self._answers = None, True

    def reported(self, by: str, address: MasterAddress | None) -> None:
        """Take the address that the NameServer ``by`` reports; None: it knows no master, or does not answer."""
        if address is None:
            self._reported.pop(by, None)
            return
        was_reachable = self.is_reachable
        self._reported[by] = address
        if not was_reachable:
            self._notify_of_return()
        # The present address stays while any NameServer reports it.
        if address != self.address and self.address not in self._reported.values():
            self.address = address
            for changed in self.on_change:
                changed()

    def heard(self, *, answers: bool) -> None:
        """Record whether the master has answered a request of this slave."""
        was_reachable, self._answers = self.is_reachable, answers
        if not was_reachable:
            self._notify_of_return()

    def _notify_of_return(self) -> None:
        if self.is_reachable:
            for callback in self.on_return:
                callback()

    def returning(self, address: MasterAddress) -> None:
        """Take the address of which the master itself says that it is about to come online there."""
        if address != self.address:
            self.address = address
            for changed in self.on_change:
                changed()

    def lives(self, is_alive: bool) -> None:
        """Record whether the master is alive, by the set's members, for which NameServers are asked more often."""
        if not is_alive:
            self._reported.clear()
        elif not self._reported:
            self.ask_again()


def _ask_nothing() -> None:
    """The default of `KnownMaster.ask_again`, until the registrar or the membership replaces it: does nothing."""
