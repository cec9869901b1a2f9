"""A file on the machine's disk that only grows. Neighbour: files.py, which opens it."""

import contextlib
import os

from mqcommon.descriptors import Descriptors
from mqcommon.errors import DiskFull
from mqcommon.full_disk import raising_disk_full


class OsAppendFile:
    """An unbuffered file: bytes that ``write`` has accepted are in the kernel's page cache."""

    def __init__(self, path: str, descriptors: Descriptors) -> None:
        self.path = path
        self._descriptors = descriptors
        with raising_disk_full(path):
            self._fd = descriptors.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        self._size = os.fstat(self._fd).st_size
        self._directory_synced = False

    def write(self, data: bytes) -> None:
        rest = memoryview(data)
        try:
            with raising_disk_full(self.path, len(data)):
                while rest:
                    rest = rest[os.write(self._fd, rest) :]
        except (OSError, DiskFull):
            with contextlib.suppress(OSError):  # the first error is the one to report
                os.ftruncate(self._fd, self._size)
            raise
        self._size += len(data)

    def sync(self) -> None:
        os.fdatasync(self._fd)
        if not self._directory_synced:
            self._descriptors.fsync_dir(os.path.dirname(self.path))
            self._directory_synced = True

    def size(self) -> int:
        return self._size

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)
        self._size = size

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
