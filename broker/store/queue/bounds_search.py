"""Finds where a queue starts and ends after a part of the log was removed, in a thread, by reading its files.

`BoundsSearch` is for plain queues, `BatchBoundsSearch` for batch queues, whose entries stand for whole batches.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator

from skylark.broker.store.log.segment import SegmentChain
from skylark.broker.store.queue.entry import BATCH_ENTRY, BATCH_ENTRY_BYTES, BLANK_SIZE, ENTRY, ENTRY_BYTES
from skylark.mqcommon.disk.files import FileSystem


def first_where(low: int, high: int, is_past: Callable[[int], bool]) -> int:
    """The first place from ``low`` on that ``is_past``, as are all after it; ``high`` if there is none."""
    return bisect_left(range(high), True, low, key=is_past)


def first_from_end(low: int, high: int, is_past: Callable[[int], bool]) -> int:
    """As `first_where`, from the end in growing steps: most readers are near it."""
    step = 1
    while low < high:
        place = max(high - step, low)
        if not is_past(place):
            return first_where(place + 1, high, is_past)
        high, step = place, step * 2
    return low


class BoundsSearch:
    """A copy of all that the search needs: messages ``low`` to ``high`` are in the files of ``chain``."""

    __slots__ = ("_fs", "_high", "_low", "_segment_bytes", "_segments")
    #: The places of the entries that a cut removes from a batch queue, see `BatchBoundsSearch`.
    cut_places = (-1, -1)

    def __init__(self, fs: FileSystem, chain: SegmentChain, low: int, high: int) -> None:
        self._fs = fs
        self._segments = chain.segments[:]
        self._segment_bytes = chain.segment_bytes
        self._low = low
        self._high = high

    def run(self, log_start: int) -> int:
        """The first offset whose entry points into the log. Blocks."""
        return first_in_log(self._physical_at, self._low, self._high, log_start)

    def find_end(self, log_end: int) -> int:
        """The offset after the last message that is before ``log_end``. Blocks."""
        end = self.run(log_end)
        while end > self._low and self._physical_at(end - 1) is None:
            end -= 1
        return end

    def _physical_at(self, offset: int) -> int | None:
        position = offset * ENTRY_BYTES
        segment = self._segments[(position - self._segments[0].base) // self._segment_bytes]
        raw = self._fs.read_part(segment.path, position - segment.base, ENTRY_BYTES)
        physical, size, _ = ENTRY.unpack(raw)
        return None if size == BLANK_SIZE else physical


class BatchBoundsSearch(BoundsSearch):
    """As `BoundsSearch`: ``low`` to ``high`` are the places of the entries in the files, not queue offsets.

    ``first``: the queue offset where the queue starts; ``rest``: the queue offset of the first entry after the files.
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
        return first_where(self._low, self._high, lambda place: self._entry(place)[0] >= physical)

    def _entry(self, place: int) -> tuple[int, int, int, int, int, int, int, int]:
        position = place * BATCH_ENTRY_BYTES
        segment = self._segments[(position - self._segments[0].base) // self._segment_bytes]
        return BATCH_ENTRY.unpack(self._fs.read_part(segment.path, position - segment.base, BATCH_ENTRY_BYTES))


def first_in_log(physical_at: Callable[[int], int | None], low: int, high: int, log_start: int) -> int:
    """The first queue offset from ``low`` on whose entry points into the log; ``high`` if there is none before it.

    ``physical_at`` gives the physical offset in an entry, None for a blank. Physical offsets rise along a queue; blanks
    may be anywhere.
    """
    end, step = high, 1
    # In growing steps, as mostly few messages are gone. A blank tells nothing.
    while low + step < high and (physical := physical_at(low + step)) is not None:
        if physical >= log_start:
            high = low + step
        else:
            low, step = low + step + 1, step * 2
    while low < high:
        place = middle = (low + high) // 2
        physical = physical_at(place)
        while physical is None and place + 1 < high:
            place += 1
            physical = physical_at(place)
        if physical is not None and physical < log_start:
            low = place + 1
        else:
            high = middle
    while low < end and physical_at(low) is None:
        low += 1
    return low


def two_entries(fs: FileSystem, path: str, file_bytes: int, at: int) -> bytes:
    """The entry at ``at`` and the one after it; empty if the file is missing or has not ``file_bytes``."""
    try:
        return b"" if fs.size(path) != file_bytes else fs.read_part(path, at, 2 * ENTRY_BYTES)
    except FileNotFoundError:
        return b""


def entries_back(chain: SegmentChain, first: int, end: int) -> Iterator[tuple[int, int, int]]:
    """The entries before ``end``, newest first. Reads few at first, then more at a time."""
    many = 1
    while end > first:
        segment = chain.at((end - 1) * ENTRY_BYTES)
        assert segment is not None
        start = max(end - many, first, segment.base // ENTRY_BYTES)
        raw = segment.read_part(start * ENTRY_BYTES, (end - start) * ENTRY_BYTES)
        yield from reversed(list(ENTRY.iter_unpack(raw)))
        end, many = start, min(many * 4, 4096)
