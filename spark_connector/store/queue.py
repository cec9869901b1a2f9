"""The files of one consume queue as numpy arrays: where in the log each of its messages is."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from broker.store.log.segment import NAME_DIGITS
from broker.store.queue.entry import BLANK_SIZE, ENTRY, ENTRY_BYTES
from spark_connector.offsets import OffsetRange
from spark_connector.store.files import QUEUES, ReadOnlyFiles, chain

# One row is one entry of a queue, as entry.py has it.
ENTRIES = np.dtype(
    [(name, f">{code}") for name, code in zip(("physical", "size", "tags_code"), ENTRY.format[1:], strict=True)]
)
BLANK = ENTRY.pack(0, BLANK_SIZE, 0)
Entries = NDArray[np.void]


class StorePart(NamedTuple):
    """What one task reads. Entries from offset ``tail_start`` on are in ``tail`` and not in the queue's files.

    The first one is at ``start``: in a batch queue (``is_batch``) before ``wanted``, if that begins within a batch.
    ``folder`` has the files, which a batch queue may lack, or have of a time when it was a plain one.
    """

    wanted: OffsetRange
    log_start: int
    tail_start: int
    tail: bytes
    start: int
    is_batch: bool
    folder: str


def blank_entries(count: int) -> Entries:
    """So many blank entries."""
    return np.frombuffer(BLANK * max(count, 0), dtype=ENTRIES).copy()


class QueueFiles:
    """The files in ``directory``; ``problem`` says why they cannot be the whole queue."""

    folder = QUEUES

    def __init__(self, files: ReadOnlyFiles, directory: str) -> None:
        self._files = files
        paths = list(chain(files, directory))
        self._paths = [
            (int(path[-NAME_DIGITS:]) // ENTRY_BYTES, files.size(path) // ENTRY_BYTES, path) for path in paths
        ]
        self.problem = ""
        for (first, count, path), (following, _, _) in zip(self._paths, self._paths[1:], strict=False):
            if first + count != following and not self.problem:
                self.problem = f"{path} ends before the next file of the queue begins"

    def bounds(self, log_start: int, log_end: int) -> tuple[int, int]:
        """(first offset, next offset) of the messages between these offsets of the log; equal when there are none."""
        low, high = self._low(log_start), self._high(log_end)
        return min(low, high), high

    def _low(self, log_start: int) -> int:
        end = 0
        for first, count, path in self._paths:
            entries = self._load(path, count)
            is_message = (entries["size"] > 0) & (entries["size"] != BLANK_SIZE) & (entries["physical"] >= log_start)
            if is_message.any():
                return first + int(is_message.argmax())
            end = first + count
        return end

    def _high(self, log_end: int) -> int:
        """One past the last entry before ``log_end``. Notes a problem when an entry before it was never written."""
        for first, count, path in reversed(self._paths):
            entries = self._load(path, count)
            used = np.flatnonzero((entries["size"] > 0) & (entries["physical"] < log_end))
            if len(used):
                last = int(used[-1]) + 1
                if (entries["size"][:last] <= 0).any():
                    self.problem = f"{path} has entries that were never written"
                return first + last
        return self._paths[0][0] if self._paths else 0

    def first_of(self, offset: int) -> int:
        """Each message has an entry of its own."""
        return offset

    def known_end(self) -> int:
        """Where the last message of the files ends in the log; 0 without one."""
        for _, count, path in reversed(self._paths):
            entries = self._load(path, count)
            is_message = np.flatnonzero((entries["size"] > 0) & (entries["size"] != BLANK_SIZE))
            if len(is_message):
                last = entries[is_message[-1]]
                return int(last["physical"]) + int(last["size"])
        return 0

    def entries(self, low: int, high: int) -> Entries:
        """The entries of the offsets from ``low`` up to, not including, ``high``; missing ones are zeros."""
        found = np.zeros(max(high - low, 0), dtype=ENTRIES)
        for first, count, path in self._paths:
            start, end = max(low, first), min(high, first + count)
            if start < end:
                found[start - low : end - low] = self._load(path, count)[start - first : end - first]
        return found

    def _load(self, path: str, count: int) -> Entries:
        """All entries of a file."""
        if not count:
            return np.zeros(0, dtype=ENTRIES)
        return np.frombuffer(self._files.open_map(path, count * ENTRY_BYTES, create=False).view, dtype=ENTRIES)
