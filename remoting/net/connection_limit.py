"""How many connections a daemon accepts: the descriptors of the process, less those that its files need.

Without a limit connections could use up the descriptors, and the store could not open its next file. One network
(mqcommon/addresses.py: an IPv4 address, or a /64 of IPv6) may be limited further: in all, and in new connections a
second.
Neighbours: server.py (asks), daemon.py (raises the soft limit of descriptors to the hard one).
"""

import logging
import resource

from remoting.net.rate_limit import RateLimit

logger = logging.getLogger(__name__)

# One event loop cannot serve more connections than this.
MOST = 65_536


class ConnectionBudget:
    """How many connections all ports of a daemon may have together, and one network of them (0: no limit)."""

    def __init__(self, most: int, most_of_network: int = 0, new_a_second: int = 0) -> None:
        self.most = most
        self.used = 0
        self._most_of_network = most_of_network
        self._rate = RateLimit(new_a_second) if new_a_second else None
        self._of_network: dict[str, int] = {}

    def take(self, network: str, now: float) -> str:
        """Take a connection, to be returned with `give`; else the key of `Refusals` that says why not."""
        if self._rate is not None and not self._rate.take(network, now):
            return "connection_rate"
        if self.used >= self.most:
            return "connections"
        if self._most_of_network:
            used = self._of_network.get(network, 0)
            if used >= self._most_of_network:
                return "connections_of_address"
            self._of_network[network] = used + 1
        self.used += 1
        return ""

    def give(self, network: str) -> None:
        self.used -= 1
        if self._most_of_network:
            self._of_network[network] -= 1
            if not self._of_network[network]:
                del self._of_network[network]


def connection_budget(wanted: int, files: int, of_network: int = 0, new_a_second: int = 0) -> ConnectionBudget:
    """The budget of a daemon whose files and outgoing connections need up to ``files`` descriptors.

    ``wanted`` is the option maxConnections; 0: as many as possible. The others limit one network; 0: no limit.
    """
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = most_connections(descriptors, files)
    if wanted > most:
        logger.warning(
            "maxConnections=%d is more than %d open files (ulimit -n) allow; %d are accepted", wanted, descriptors, most
        )
    return ConnectionBudget(min(wanted, most) if wanted else most, of_network, new_a_second)


def most_connections(descriptors: int, files: int) -> int:
    """All descriptors but those for ``files``, and at least half of all."""
    if descriptors == resource.RLIM_INFINITY:
        return MOST
    return min(descriptors - min(files, descriptors // 2), MOST)
