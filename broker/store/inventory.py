"""A list of what a store must have, so that a start notices missing parts and does not take the store for a new one.

File ``inventory``: crc of the rest 4 | CBOR {"logStart": offset, "metadata": whether there is a journal}

No file of the commit log at or after ``logStart`` was removed: the cleaner notes where the log will start before it
removes a file. A store without this file, as RocketMQ's, is taken as it is.
"""

import threading
from collections.abc import Callable

import cbor2

from skylark.mqcommon.disk.atomic import read_with_crc, write_with_crc
from skylark.mqcommon.disk.files import FileSystem, ReadableFiles
from skylark.mqcommon.errors import DiskFull

FILE_NAME = "inventory"


class Inventory:
    """The file in ``directory``. ``log_start`` is None until the log has had a file."""

    def __init__(self, fs: FileSystem, directory: str) -> None:
        self._fs = fs
        self._directory = directory
        self._path = f"{directory}/{FILE_NAME}"
        self._lock = threading.Lock()
        self.log_start, self.has_metadata = read_inventory(fs, directory)
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
            data = cbor2.dumps({"logStart": self.log_start, "metadata": self.has_metadata})
            write_with_crc(self._fs, self._path, data)
        except DiskFull:
            # Without the file a start reports nothing as missing. With an outdated file it would report files that the
            # cleaner removes to make room.
            if self._fs.exists(self._path):
                self._fs.remove(self._path)
                self._fs.fsync_dir(self._directory)
        else:
            self._is_written = True


def read_inventory(fs: ReadableFiles, directory: str) -> tuple[int | None, bool]:
    """(start of the log, whether there is metadata); None and False when the file is missing or damaged."""
    data = read_with_crc(fs, f"{directory}/{FILE_NAME}")
    if data is None:
        return None, False
    known = cbor2.loads(data)
    return known["logStart"], known["metadata"]
