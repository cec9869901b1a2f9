"""How many connections a daemon accepts: the descriptors of the process, less those that its files need.

Without a limit connections could use up the descriptors, and the store could not open its next file.
Neighbours: server.py (asks), daemon.py (raises the soft limit of descriptors to the hard one).
"""

import logging
import resource

logger = logging.getLogger(__name__)

# One event loop cannot serve more connections than this.
MOST = 65_536


class ConnectionBudget:
    """How many connections all ports of a daemon may have together."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.used = 0

    def take(self) -> bool:
        """Take one connection; False when all are taken. Return it with `give`."""
        if self.used >= self.most:
            return False
        self.used += 1
        return True

    def give(self) -> None:
        self.used -= 1


def connection_budget(wanted: int, files: int) -> ConnectionBudget:
    """The budget of a daemon whose files and outgoing connections need up to ``files`` descriptors.

    ``wanted`` is the option maxConnections; 0: as many as possible.
    """
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = most_connections(descriptors, files)
    if wanted > most:
        logger.warning(
            "maxConnections=%d is more than %d open files (ulimit -n) allow; %d are accepted", wanted, descriptors, most
        )
    return ConnectionBudget(min(wanted, most) if wanted else most)


def most_connections(descriptors: int, files: int) -> int:
    """All descriptors but those for ``files``, and at least half of all."""
    if descriptors == resource.RLIM_INFINITY:
        return MOST
    return min(descriptors - min(files, descriptors // 2), MOST)
