"""Which connections the HA port keeps when there are too many. Pure.

A connection is a stranger until it is accepted as a slave (a follower): until its hello is answered, or a plain peer
has sent its offset. Strangers and followers have separate limits, so that silent connections cannot keep slaves out.
When there are too many strangers the oldest is closed, first those from networks that no slave ever came from.
Followers are limited in all and per network; above a limit a slave that says hello replaces a plain peer, and others
are refused.
Neighbour: master.py closes the connections that this returns.
"""

from typing import Generic, TypeVar

MAX_STRANGERS = 64
MAX_STRANGERS_OF_A_NETWORK = 16
# A set has a few slaves at most; more followers are a mistake or an attack.
MAX_FOLLOWERS = 100
MAX_FOLLOWERS_OF_A_NETWORK = 16
MAX_KNOWN_NETWORKS = 256

C = TypeVar("C")


class Admission(Generic[C]):
    """Connections of the HA port; ``network`` is where the peer is (`limited_network`)."""

    def __init__(self) -> None:
        # oldest first
        self._strangers: dict[C, str] = {}
        # with whether it said hello
        self._followers: dict[C, tuple[str, bool]] = {}
        # where slaves with a hello came from, the latest last
        self._known: dict[str, None] = {}

    def arrived(self, connection: C, network: str) -> C | None:
        """A connection was made; returns the stranger to close for it, if any."""
        victim = None
        here = [other for other, its_network in self._strangers.items() if its_network == network]
        if len(here) >= MAX_STRANGERS_OF_A_NETWORK:
            victim = here[0]
        elif len(self._strangers) >= MAX_STRANGERS:
            victim = min(self._strangers, key=lambda other: self._strangers[other] in self._known)
        if victim is not None:
            del self._strangers[victim]
        self._strangers[connection] = network
        return victim

    def follows(self, connection: C, *, said_hello: bool) -> tuple[bool, C | None]:
        """(whether a stranger may follow, the plain peer to close for it); one that is being closed may not."""
        network = self._strangers.pop(connection, None)
        if network is None:
            return False, None
        victim = None
        here = [other for other, (its_network, _) in self._followers.items() if its_network == network]
        full = here if len(here) >= MAX_FOLLOWERS_OF_A_NETWORK else list(self._followers)
        if full is here or len(full) >= MAX_FOLLOWERS:
            victim = next((other for other in full if not self._followers[other][1]), None) if said_hello else None
            if victim is None:
                return False, None
            del self._followers[victim]
        self._followers[connection] = network, said_hello
        if said_hello:
            self._known.pop(network, None)
            self._known[network] = None
            if len(self._known) > MAX_KNOWN_NETWORKS:
                del self._known[next(iter(self._known))]
        return True, victim

    def gone(self, connection: C) -> None:
        """The connection ended."""
        self._strangers.pop(connection, None)
        self._followers.pop(connection, None)
