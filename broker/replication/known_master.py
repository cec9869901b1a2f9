"""Where this slave's master is, as far as NameServers told.

Each registration of a slave is answered with the address of its master and that of the master's HA port. A NameServer
that knows no master says nothing against what others say: the last address stays, since a master that is away comes
back there most of the time. Of several addresses the present one stays as long as some NameServer names it, so that
NameServers which differ for a while do not make the slave go to and fro.
Neighbours: registrar.py tells, slave.py (the log) and slave_sync.py (the metadata) follow.
"""

from collections.abc import Callable
from typing import NamedTuple


class MasterAddress(NamedTuple):
    """``addr`` is for requests, ``ha_addr`` for the log."""

    addr: str
    ha_addr: str


class KnownMaster:
    """The present master; ``on_change`` are called after each change, and so once it is known."""

    def __init__(self) -> None:
        self.address: MasterAddress | None = None
        self.on_change: list[Callable[[], None]] = []
        #: Called when the master can be reached again.
        self.on_return: list[Callable[[], object]] = []
        #: Called by whoever lost the master: NameServers may know of another.
        self.ask_again: Callable[[], None] = _nobody
        self._told: dict[str, MasterAddress] = {}
        self._answers = True

    @property
    def is_reachable(self) -> bool:
        """Whether a NameServer knows the master, and it answers this slave, too: a frozen one stays registered long."""
        return self._answers and self.registered

    @property
    def registered(self) -> bool:
        """Whether some NameServer says that the master lives."""
        return bool(self._told)

    def forget(self) -> None:
        """This broker is the master now."""
        self._told.clear()
        self.address, self._answers = None, True

    def told(self, by: str, address: MasterAddress | None) -> None:
        """The NameServer ``by`` says where the master is; None when it knows none, or does not answer any more."""
        if address is None:
            self._told.pop(by, None)
            return
        was_reachable = self.is_reachable
        self._told[by] = address
        if not was_reachable:
            self._tell_of_return()
        if address != self.address and self.address not in self._told.values():
            self.address = address
            for changed in self.on_change:
                changed()

    def heard(self, *, answers: bool) -> None:
        """The master answered a request of this slave, or did not."""
        was_reachable, self._answers = self.is_reachable, answers
        if not was_reachable:
            self._tell_of_return()

    def _tell_of_return(self) -> None:
        if self.is_reachable:
            for callback in self.on_return:
                callback()

    def returning(self, address: MasterAddress) -> None:
        """A master says itself that it is about to come online at ``address``."""
        if address != self.address:
            self.address = address
            for changed in self.on_change:
                changed()

    def lives(self, is_alive: bool) -> None:
        """What NameServers say of the members of the set, which they are asked more often."""
        if not is_alive:
            self._told.clear()
        elif not self._told:
            self.ask_again()


def _nobody() -> None:
    """Nobody to ask: there is no NameServer."""
