"""A list of what a store must have, so that a start notices missing parts and does not take the store for a new one.

File ``inventory``: crc of the rest 4 | CBOR {"logStart": offset, "metadata": whether there is a journal, "sums": [...]}

No file of the commit log at or after ``logStart`` was removed: the cleaner notes where the log will start before it
removes a file. Each of ``sums`` is [first, bytes of a log file, count]: there are files of block sums for the log
files that begin at ``first`` and then at these distances. A sums file is noted once it is there, and forgotten before
it is removed. A store without this file, as RocketMQ's, is taken as it is.
"""

import threading
from collections.abc import Callable, Collection
from typing import NamedTuple

import cbor2

from skylark.mqcommon.disk.atomic import read_with_crc, write_with_crc
from skylark.mqcommon.disk.files import FileSystem, ReadableFiles
from skylark.mqcommon.errors import DiskFull

FILE_NAME = "inventory"


class Inventoried(NamedTuple):
    """``log_start``: None if the log has had no file. ``sums``: the starts of the log files that have files of sums."""

    log_start: int | None = None
    has_metadata: bool = False
    sums: frozenset[int] = frozenset()


class Inventory:
    """The file in ``directory``; for the attributes see `Inventoried`."""

    def __init__(self, fs: FileSystem, directory: str) -> None:
        self._fs = fs
        self._directory = directory
        self._path = f"{directory}/{FILE_NAME}"
        self._lock = threading.Lock()
        self.log_start, self.has_metadata, self.sums = read_inventory(fs, directory)
        # Whether the file says so: it does not after a write that failed.
        self._is_written = True

    def note_log_start(self, start: Callable[[], int]) -> None:
        """Write down that files of the log before ``start()`` are gone, or will be. Blocks: for any thread."""
        # A checkpoint and the cleaner may do this at once. Each reads the log's start under the lock: a start read
        # before could be lower than the recorded one, and the next start would report the files in between as missing.
        with self._lock:
            offset = start()
            if offset != self.log_start or not self._is_written:
                self.log_start = offset
                self._write()

    def note_metadata(self) -> None:
        """Write down that there is a journal of metadata on disk. Blocks."""
        with self._lock:
            if not self.has_metadata or not self._is_written:
                self.has_metadata = True
                self._write()

    def note_sums(self, bases: Collection[int]) -> None:
        """Write down that there are files of sums for the log files at ``bases``. Blocks."""
        with self._lock:
            sums = self.sums.union(bases)
            if sums != self.sums or not self._is_written:
                self.sums = sums
                self._write()

    def forget_sums(self, bases: Collection[int]) -> None:
        """Write down that there need not be files of sums for the log files at ``bases``. Blocks."""
        with self._lock:
            if not self.sums.isdisjoint(bases):
                self.sums = self.sums.difference(bases)
                self._write()

    @property
    def is_kept(self) -> bool:
        """Whether there is something to write down, so that the file must exist."""
        return self.log_start is not None or self.has_metadata

    def write_again(self) -> None:
        """Write what is known: the file on disk is damaged. Blocks."""
        with self._lock:
            self._write()

    def _write(self) -> None:
        self._is_written = False
        try:
            fields = {"logStart": self.log_start, "metadata": self.has_metadata, "sums": _ranges(self.sums)}
            data = cbor2.dumps(fields)
            write_with_crc(self._fs, self._path, data)
        except DiskFull:
            # Without the file a start reports nothing as missing. With an outdated file it would report files that the
            # cleaner removes to make room.
            if self._fs.exists(self._path):
                self._fs.remove(self._path)
                self._fs.fsync_dir(self._directory)
        else:
            self._is_written = True


def read_inventory(fs: ReadableFiles, directory: str) -> Inventoried:
    """What a store must have: nothing when the file is missing or damaged."""
    data = read_with_crc(fs, f"{directory}/{FILE_NAME}")
    if data is None:
        return Inventoried()
    known = cbor2.loads(data)
    # An older version has written no sums.
    sums = frozenset(first + step * number for first, step, count in known.get("sums", ()) for number in range(count))
    return Inventoried(known["logStart"], known["metadata"], sums)


def _ranges(bases: Collection[int]) -> list[list[int]]:
    """``bases`` as few ranges of [first, step, count]."""
    found: list[list[int]] = []
    for base in sorted(bases):
        if found:
            first, step, count = found[-1]
            if count == 1 or base == first + step * count:
                found[-1] = [first, base - first if count == 1 else step, count + 1]
                continue
        found.append([base, 0, 1])
    return found
