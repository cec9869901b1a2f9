"""The files of one batch queue (RocketMQ's type BatchCQ), whose entries stand for whole batches.

It answers as `QueueFiles` does, offset for offset: the first message of a batch has the entry, the others have blanks.
"""

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from broker.store.queue.entry import BATCH_ENTRY, BATCH_ENTRY_BYTES
from sdk.arrow.records import Ints
from spark_connector.store.files import BATCH_QUEUES, ReadOnlyFiles, chain
from spark_connector.store.queue import ENTRIES, Entries, QueueFiles, blank_entries

_NAMES = ("physical", "size", "tags_code", "stored_ms", "base", "messages", "compacted", "reserved")
# One row is one entry, as entry.py has it.
_BATCHES = np.dtype([(name, f">{code}") for name, code in zip(_NAMES, BATCH_ENTRY.format[1:], strict=True)])


class BatchQueueFiles:
    """The files in ``directory``; ``problem`` says why they cannot be the whole queue."""

    folder = BATCH_QUEUES

    def __init__(self, files: ReadOnlyFiles, directory: str) -> None:
        self._files = files
        self._directory = directory
        falls = self._bases[1:] < self._ends[:-1]
        self.problem = f"the entries of {directory} do not rise" if falls.any() else ""

    @cached_property
    def _entries(self) -> NDArray[Any]:
        """All entries that were written, of all files."""
        found = [np.zeros(0, dtype=_BATCHES)]
        for path in chain(self._files, self._directory):
            count = self._files.size(path) // BATCH_ENTRY_BYTES
            if count:
                view = self._files.open_map(path, count * BATCH_ENTRY_BYTES, create=False).view
                entries = np.frombuffer(view, dtype=_BATCHES)
                # Of an entry that a crash left unfinished, the end is zeros.
                is_whole = (entries["size"] > 0) & (entries["messages"] > 0) & (entries["compacted"] != 0)
                found.append(entries[is_whole])
        return np.concatenate(found)

    @cached_property
    def _bases(self) -> Ints:
        bases: Ints = self._entries["base"].astype(np.int64)
        return bases

    @cached_property
    def _ends(self) -> Ints:
        ends: Ints = self._bases + self._entries["messages"]
        return ends

    def bounds(self, log_start: int, log_end: int) -> tuple[int, int]:
        """(first offset, next offset) of the messages between these offsets of the log; equal when there are none."""
        physical = self._entries["physical"]
        there = np.flatnonzero((physical >= log_start) & (physical < log_end))
        if len(there):
            return int(self._bases[there[0]]), int(self._ends[there[-1]])
        end = int(self._ends[-1]) if len(self._ends) and (physical < log_start).all() else 0
        return end, end

    def known_end(self) -> int:
        """Where the last message of the files ends in the log; 0 without one."""
        last = self._entries[-1:]
        return int(last["physical"][0]) + int(last["size"][0]) if len(last) else 0

    def first_of(self, offset: int) -> int:
        """The offset of the first message in the batch that has ``offset``; ``offset`` if there is none."""
        at = int(np.searchsorted(self._bases, offset, side="right")) - 1
        return int(self._bases[at]) if at >= 0 and offset < self._ends[at] else offset

    def entries(self, low: int, high: int) -> Entries:
        """The entries of the offsets from ``low`` up to, not including, ``high``."""
        found = blank_entries(high - low)
        first, end = np.searchsorted(self._bases, [low, high])
        places = self._bases[first:end] - low
        for name in ENTRIES.names or ():
            found[name][places] = self._entries[name][first:end]
        return found


AnyQueueFiles = QueueFiles | BatchQueueFiles
KINDS: tuple[type[AnyQueueFiles], ...] = QueueFiles, BatchQueueFiles
