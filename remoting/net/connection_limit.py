"""How many connections a daemon takes: what the process's descriptors allow, less what its files need.

Without a limit the last descriptor would go to a connection, and the next file of the store could not be opened.
Neighbours: server.py (asks), daemon.py (raises the soft limit of descriptors to the hard one).
"""

import logging
import resource

logger = logging.getLogger(__name__)

# More connections than this are of no use to one event loop.
MOST = 65_536


class ConnectionBudget:
    """Connections that all ports of a daemon may have together."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.used = 0

    def take(self) -> bool:
        """Whether there is one more; `give` it back."""
        if self.used >= self.most:
            return False
        self.used += 1
        return True

    def give(self) -> None:
        self.used -= 1


def connection_budget(wanted: int, files: int) -> ConnectionBudget:
    """The budget of a daemon whose files, and connections of its own, need up to ``files`` descriptors.

    ``wanted`` is the option maxConnections; 0: as many as there can be.
    """
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = most_connections(descriptors, files)
    if wanted > most:
        logger.warning(
            "maxConnections=%d is more than %d open files (ulimit -n) allow; %d are taken", wanted, descriptors, most
        )
    return ConnectionBudget(min(wanted, most) if wanted else most)


def most_connections(descriptors: int, files: int) -> int:
    """Of so many descriptors, at least half are for connections."""
    if descriptors == resource.RLIM_INFINITY:
        return MOST
    return min(descriptors - min(files, descriptors // 2), MOST)
