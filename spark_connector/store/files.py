"""The files of a store directory, opened for reading only: nothing is locked, created or changed.

Neighbours: queue.py (queue files), scan.py (the end of the log), rows.py (messages).
"""

import mmap
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from broker.store.log.segment import NAME_DIGITS
from mqcommon.disk.files import OsFiles
from mqcommon.errors import StoreCorrupt, UserError

LOG, QUEUES, BATCH_QUEUES = "commitlog", "consumequeue", "batchconsumequeue"


class ReadOnlyMap:
    """A file, mapped for reading."""

    def __init__(self, path: str, size: int) -> None:
        self.path = path
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            length = os.fstat(fd).st_size
            self.size = size or length
            if not 0 < self.size <= length:
                raise StoreCorrupt(path, length, f"the file has {length} bytes where {self.size} are expected")
            self.view = mmap.mmap(fd, self.size, access=mmap.ACCESS_READ)
        finally:
            os.close(fd)

    def close(self) -> None:
        self.view.close()


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


def chain(files: ReadOnlyFiles, directory: str) -> Iterator[str]:
    """The paths of a chain of files that are named by the offset of their first byte, in this order."""
    for name in files.listdir(directory):
        if len(name) == NAME_DIGITS and name.isdigit():
            yield f"{directory}/{name}"


@contextmanager
def reading(directory: str) -> Iterator[None]:
    """Errors of the disk in the block say what to do. Raises UserError at once if ``directory`` is none of a store."""
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
