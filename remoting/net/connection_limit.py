"""How many connections a daemon accepts: the descriptors of the process, less those that its files need.

Without a limit connections could use up the descriptors, and the store could not open its next file. One network
(mqcommon/addresses.py: an IPv4 address, or a /64 of IPv6) may be limited further: in all, and in new connections a
second.
Neighbours: server.py (asks), daemon.py (raises the soft limit of descriptors to the hard one).
"""

import logging
import resource

logger = logging.getLogger(__name__)

MAX_BUCKETS = 10_000


class RateLimit:
    """A token bucket for each network: ``rate`` things a second, and as many at once.

    A bucket holds the tokens of one second. Full buckets are dropped, so their number is bounded by the networks of the
    last second; when even those are too many, the oldest are dropped.
    """

    def __init__(self, rate: int) -> None:
        self._rate = rate
        # tokens and when they were counted, the bucket used last at the end
        self._buckets: dict[str, tuple[float, float]] = {}

    def take(self, key: str, now: float) -> bool:
        """Whether ``key`` may do it once more; ``now`` is in seconds and does not go back."""
        tokens, since = self._buckets.pop(key, (self._rate, now))
        tokens = min(tokens + (now - since) * self._rate, self._rate)
        allowed = tokens >= 1
        self._buckets[key] = (tokens - 1 if allowed else tokens), now
        if len(self._buckets) > MAX_BUCKETS:
            self._drop(now)
        return allowed

    def _drop(self, now: float) -> None:
        """Drop the buckets that are full, and at least a tenth of all."""
        for number, (key, (_, since)) in enumerate(list(self._buckets.items())):
            if number >= MAX_BUCKETS // 10 and now - since < 1:
                break
            del self._buckets[key]


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
