"""Finds where a batch queue starts and ends after a part of the log was removed, in a thread, by reading its files."""

from broker.store.log.segment import SegmentChain
from broker.store.queue.entry import BATCH_ENTRY, BATCH_ENTRY_BYTES
from broker.store.queue.start_search import StartSearch
from mqcommon.disk.files import FileSystem


class BatchStartSearch(StartSearch):
    """As `StartSearch`: ``low`` to ``high`` are the places of the entries in the files, not queue offsets.

    ``first``: the queue offset where the queue starts; ``rest``: that of what follows after the files.
    """

    __slots__ = ("_first", "_rest", "cut_places")

    def __init__(self, fs: FileSystem, chain: SegmentChain, low: int, high: int, first: int, rest: int) -> None:
        super().__init__(fs, chain, low, high)
        self._first = first
        self._rest = rest
        #: The places of the entries that a cut removes; known after `find_end`.
        self.cut_places = (-1, -1)

    def run(self, log_start: int) -> int:
        """The queue offset of the first message that is in the log. Blocks."""
        place = self._first_from(log_start)
        return self._entry(place)[4] if place < self._high else self._rest

    def find_end(self, log_end: int) -> int:
        """The queue offset after the last message that is before ``log_end``. Blocks."""
        place = self._first_from(log_end)
        self.cut_places = place, self._high
        if place == self._low:
            return self._first
        _, _, _, _, base, messages, _, _ = self._entry(place - 1)
        return base + messages

    def _first_from(self, physical: int) -> int:
        """The place of the first entry that points to ``physical`` or after it."""
        low, high = self._low, self._high
        while low < high:
            middle = (low + high) // 2
            if self._entry(middle)[0] < physical:
                low = middle + 1
            else:
                high = middle
        return low

    def _entry(self, place: int) -> tuple[int, int, int, int, int, int, int, int]:
        position = place * BATCH_ENTRY_BYTES
        segment = self._segments[(position - self._segments[0].base) // self._segment_bytes]
        return BATCH_ENTRY.unpack(self._fs.read_part(segment.path, position - segment.base, BATCH_ENTRY_BYTES))
