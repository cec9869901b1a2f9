"""Which files of queues are mapped for reads: as many as the limit of open files allows, the last used ones.

An unmapped file is mapped again at its next read. It is not closed here: a reader in a thread may use it, and the last
reader closes it.
"""

import threading
from collections import deque

from skylark.broker.store.log.segment import Segment
from skylark.mqcommon.daemons.open_files import open_files_limit

# More maps than this gain nothing: each takes some address space.
MOST_MAPS = 2_000
LEAST_MAPS = 16
# A mapped file takes two descriptors: the open file's, and the copy that the map has.
DESCRIPTORS_OF_MAP = 2
# Descriptors for all that is no connection of a client; at most half of all. Besides maps these are files of the log,
# of the index and of metadata, links to slaves and connections to NameServers.
OTHER_DESCRIPTORS = 4_096
NOT_MAPS = 96
# With fewer, connections and maps get half of them each.
FEW_OPEN_FILES = 2 * OTHER_DESCRIPTORS


def most_maps(open_files: int) -> int:
    """How many files of queues may be mapped with this limit of open files."""
    others = min(OTHER_DESCRIPTORS, open_files // 2)
    return max(min((others - NOT_MAPS) // DESCRIPTORS_OF_MAP, MOST_MAPS), LEAST_MAPS)


class QueueMaps:
    """The files of queues that are mapped for reads, within the limit of open files. For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # In the order in which they were mapped, or found used.
        self._mapped: deque[Segment] = deque()
        #: How many files may be mapped. A daemon raises its limit of open files before it opens a store.
        self.most = most_maps(open_files_limit())

    def add(self, segment: Segment) -> None:
        """Add a segment that was just mapped; unmaps others if there are too many."""
        with self._lock:
            self._mapped.append(segment)
            while len(self._mapped) > self.most:
                self._let_one_go()

    def make_room(self) -> bool:
        """No descriptor is left: let some maps go; returns whether there were any."""
        with self._lock:
            count = len(self._mapped)
            for _ in range(min(count, max(count // 4, LEAST_MAPS))):
                self._let_one_go()
            return count > 0

    def _let_one_go(self) -> None:
        # Those that were used since they stood at the front go to the back, once.
        for _ in range(len(self._mapped)):
            segment = self._mapped.popleft()
            if not segment.was_used:
                break
            segment.was_used = False
            self._mapped.append(segment)
        else:
            segment = self._mapped.popleft()
        segment.let_go()
