"""The files of a store directory, opened for reading only: the log as bytes, queues as numpy arrays of entries.

Nothing is locked, created or changed. `BatchQueueFiles` are the files of a queue of RocketMQ's type BatchCQ, whose
entries are for whole batches. It has an entry for each offset as `QueueFiles` does: the first message of a batch has
the entry, the others have blanks.
Neighbours: scan.py (the end of the log), reader.py (messages).
"""

import errno
import mmap
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from skylark.broker.store.log.segment import NAME_DIGITS
from skylark.broker.store.queue.entry import BATCH_ENTRY, BATCH_ENTRY_BYTES, BLANK_SIZE, ENTRY, ENTRY_BYTES
from skylark.mqcommon.disk.files import OsFiles
from skylark.mqcommon.errors import StoreCorrupt, UserError
from skylark.sdk.arrow.records import Ints
from skylark.spark_connector.offsets import OffsetRange

LOG, QUEUES, BATCH_QUEUES = "commitlog", "consumequeue", "batchconsumequeue"


class ReadOnlyMap:
    """A file, mapped for reading. What nobody closes is closed with the last reference, as the map itself is."""

    _fd = -1

    def __init__(self, path: str, size: int) -> None:
        self.path = path
        self._fd = os.open(path, os.O_RDONLY)
        length = os.fstat(self._fd).st_size
        self.size = size or length
        # Reading past the end of a mapped file kills the process, so the size is checked first.
        if not 0 < self.size <= length:
            raise StoreCorrupt(path, length, f"the file has {length} bytes where {self.size} are expected")
        self.view = mmap.mmap(self._fd, self.size, access=mmap.ACCESS_READ)

    def pread(self, at: int, size: int) -> bytes:
        """``size`` bytes from ``at`` on; fewer at the end of the file."""
        return os.pread(self._fd, size, at)

    def close(self) -> None:
        self.view.close()
        self._close_descriptor()

    def __del__(self) -> None:
        self._close_descriptor()

    def _close_descriptor(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _data_end(fd: int) -> int:
    end = 0
    try:
        while True:  # ends with ENXIO: no data follows
            end = os.lseek(fd, os.lseek(fd, end, os.SEEK_DATA), os.SEEK_HOLE)
    except OSError as error:
        return end if error.errno == errno.ENXIO else os.fstat(fd).st_size


class ReadOnlyFiles:
    """The operations of a disk that need no more than permission to read."""

    def __init__(self) -> None:
        self._files = OsFiles()

    def exists(self, path: str) -> bool:
        return self._files.exists(path)

    def listdir(self, path: str) -> list[str]:
        return self._files.listdir(path)

    def size(self, path: str) -> int:
        return self._files.size(path)

    def data_end(self, path: str) -> int:
        """An offset from which on the file has only zeros: brokers make their files long before they fill them.

        Where the file system does not tell, the size of the file.
        """
        fd = os.open(path, os.O_RDONLY)
        try:
            return _data_end(fd)
        finally:
            os.close(fd)

    def read(self, path: str) -> bytes:
        return self._files.read(path)

    def boot_id(self) -> str:
        return self._files.boot_id()

    def open_map(self, path: str, size: int = 0, *, create: bool) -> ReadOnlyMap:
        assert not create
        return ReadOnlyMap(path, size)


class LogBytes:
    """The files of the commit log, each mapped when it is first needed."""

    def __init__(self, files: ReadOnlyFiles, directory: str) -> None:
        self._files = files
        self._directory = f"{directory}/{LOG}"
        found = [(int(path[-NAME_DIGITS:]), files.size(path)) for path in chain(files, self._directory)]
        self.bases: NDArray[np.int64] = np.array([base for base, _ in found], dtype=np.int64)
        self.sizes: NDArray[np.int64] = np.array([size for _, size in found], dtype=np.int64)
        self._maps: dict[int, memoryview | None] = {}

    def path(self, number: int) -> str:
        """The path of a file."""
        return f"{self._directory}/{self.bases[number]:0{NAME_DIGITS}d}"

    def view(self, number: int) -> memoryview | None:
        """The bytes of a file; None if a broker has removed it since."""
        if number not in self._maps:
            try:
                opened = self._files.open_map(self.path(number), int(self.sizes[number]), create=False)
                self._maps[number] = memoryview(opened.view)
            except FileNotFoundError:
                self._maps[number] = None
        return self._maps[number]

    def read(self, physical: int, size: int) -> bytes:
        """The bytes at this place of the log; fewer, or none, where no file has them."""
        number = int(np.searchsorted(self.bases, physical, side="right")) - 1
        view = self.view(number) if number >= 0 else None
        if view is None:
            return b""
        at = physical - int(self.bases[number])
        return bytes(view[at : at + size])


def chain(files: ReadOnlyFiles, directory: str) -> Iterator[str]:
    """The paths of a chain of files that are named by the offset of their first byte, in this order."""
    for name in files.listdir(directory):
        if len(name) == NAME_DIGITS and name.isdigit():
            yield f"{directory}/{name}"


@contextmanager
def reading(directory: str) -> Iterator[None]:
    """Errors of the disk in the block say what to do. Raises UserError at once if ``directory`` has no store."""
    try:
        _check(directory)
        yield
    except PermissionError as error:
        raise UserError(
            f"option storePath: {error.filename} cannot be read: {error.strerror}; give the user that runs Spark"
            " permission to read all files of the store (brokers make them for their own user only)"
        ) from None
    except FileNotFoundError as error:
        raise UserError(
            f"option storePath: {error.filename} was removed while it was read, as brokers do with old messages;"
            " run the query again"
        ) from None


def _check(directory: str) -> None:
    where = f"option storePath: {directory}"
    if not os.path.isdir(directory):
        raise UserError(
            f"{where} is no directory on this machine ({socket.gethostname()}); the store must be readable at the same"
            " path on the driver and on all executors"
        )
    names = os.listdir(directory)
    if LOG in names:
        return
    if os.path.isdir(f"{directory}/store/{LOG}"):
        raise UserError(f"{where} is no store directory, but {directory}/store is; give that one")
    what = f"has no folder {LOG}" if names else "is empty"
    raise UserError(f"{where} {what}; give a broker's storePathRootDir, or a copy of it: the folder above {LOG}")


# One row is one entry of a queue, as entry.py has it.
ENTRIES = np.dtype(
    [(name, f">{code}") for name, code in zip(("physical", "size", "tags_code"), ENTRY.format[1:], strict=True)]
)
BLANK = ENTRY.pack(0, BLANK_SIZE, 0)
Entries = NDArray[np.void]


#: No message of a `StorePart` is in the files.
NOT_IN_FILES = -1


class StorePart(NamedTuple):
    """What one task reads. Entries from offset ``tail_start`` on are in ``tail`` and not in the queue's files.

    The first entry is at ``start``: in a batch queue (``is_batch``) before ``wanted``, if ``wanted`` begins within a
    batch. ``folder`` has the files. A batch queue may have no files, or files from a time when it was a plain queue.
    ``last_at``: where in the log the last message of the files lies. Places in the log are never used again, so a topic
    that was made again since is noticed.
    """

    wanted: OffsetRange
    log_start: int
    tail_start: int
    tail: bytes
    start: int
    is_batch: bool
    folder: str
    last_at: int


def blank_entries(count: int) -> Entries:
    """``count`` blank entries."""
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
            entries = self._written(path, count)
            # Zeros were never written, and blank entries have no message. Entries before ``log_start`` point into files
            # of the log that the broker has removed.
            is_message = (entries["size"] > 0) & (entries["size"] != BLANK_SIZE) & (entries["physical"] >= log_start)
            if is_message.any():
                return first + int(is_message.argmax())
            end = first + count
        return end

    def _high(self, log_end: int) -> int:
        """One past the last entry before ``log_end``. Notes a problem when an entry before it was never written."""
        for first, count, path in reversed(self._paths):
            entries = self._written(path, count)
            used = np.flatnonzero((entries["size"] > 0) & (entries["physical"] < log_end))
            if len(used):
                last = int(used[-1]) + 1
                # A hole before the last entry: the broker had not written that page when it was killed. The log has the
                # messages.
                if (entries["size"][:last] <= 0).any():
                    self.problem = f"{path} has entries that were never written"
                return first + last
        return self._paths[0][0] if self._paths else 0

    def first_of(self, offset: int) -> int:
        """``offset`` itself: each message has an entry of its own."""
        return offset

    def known_end(self) -> int:
        """Where the last message of the files ends in the log; 0 without one."""
        for _, count, path in reversed(self._paths):
            entries = self._written(path, count)
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

    def _written(self, path: str, count: int) -> Entries:
        """The entries of a file but for zeros at its end, which would take far longer to read."""
        return self._load(path, min(count, -(-self._files.data_end(path) // ENTRY_BYTES)))

    def _load(self, path: str, count: int) -> Entries:
        """All entries of a file."""
        if not count:
            return np.zeros(0, dtype=ENTRIES)
        return np.frombuffer(self._files.open_map(path, count * ENTRY_BYTES, create=False).view, dtype=ENTRIES)


_NAMES = ("physical", "size", "tags_code", "stored_ms", "base", "messages", "compacted", "reserved")
# One row is one entry, as entry.py has it.
_BATCHES = np.dtype([(name, f">{code}") for name, code in zip(_NAMES, BATCH_ENTRY.format[1:], strict=True)])


class BatchQueueFiles:
    """The files in ``directory``; ``problem`` says why they cannot be the whole queue."""

    folder = BATCH_QUEUES

    def __init__(self, files: ReadOnlyFiles, directory: str) -> None:
        self._files = files
        self._directory = directory
        # Searches rely on the order.
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
                # An entry that a crash left unfinished ends with zeros.
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
        # Entries beyond the end of the log are of batches whose records did not reach the disk.
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
        # The last batch that begins at or before the offset; it has the offset unless it ends before it.
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
