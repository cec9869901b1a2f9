"""Where a queue starts now that files of the log are gone; looked for by a thread, which reads the queue's files."""

from broker.store.queue_entry import BLANK_SIZE, ENTRY, ENTRY_BYTES
from broker.store.retention import first_in_log
from broker.store.segment import SegmentChain
from mqcommon.files import FileSystem


class StartSearch:
    """A copy of what the search needs: messages ``low`` to ``high`` are in the files of ``chain``."""

    __slots__ = ("_fs", "_high", "_low", "_segment_bytes", "_segments")

    def __init__(self, fs: FileSystem, chain: SegmentChain, low: int, high: int) -> None:
        self._fs = fs
        self._segments = chain.segments[:]
        self._segment_bytes = chain.segment_bytes
        self._low = low
        self._high = high

    def run(self, log_start: int) -> int:
        """The first message that points into the log. Blocks."""
        return first_in_log(self._physical_at, self._low, self._high, log_start)

    def _physical_at(self, offset: int) -> int | None:
        position = offset * ENTRY_BYTES
        segment = self._segments[(position - self._segments[0].base) // self._segment_bytes]
        raw = self._fs.read_part(segment.path, position - segment.base, ENTRY_BYTES)
        physical, size, _ = ENTRY.unpack(raw)
        return None if size == BLANK_SIZE else physical
