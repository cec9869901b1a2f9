"""Opening files when the process, or the machine, runs out of descriptors.

A failed open, unlike a failed fsync, may succeed a moment later, so it has an error of its own, OutOfDescriptors.
Opens that are needed to write, to sync or to roll to the next file may use a reserve of descriptors; reads may not.
Neighbour: files.py.
"""

import errno
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from mqcommon.errors import OutOfDescriptors

T = TypeVar("T")

_NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)


class Descriptors:
    """Opens files; holds a reserve of ``spare`` descriptors for when no others are left. For any thread."""

    def __init__(self, spare: int = 0) -> None:
        self._wanted = spare
        self._lock = threading.Lock()
        self._spare: list[int] = []
        self._fill()

    def open(self, path: str, flags: int, *, must: bool = True) -> int:
        """As os.open; only its owner can read a new file. Errors and ``must`` are as in `take`."""
        return self.take(path, lambda: os.open(path, flags | os.O_CLOEXEC, 0o600), must=must)

    def take(self, path: str, call: Callable[[], T], *, must: bool = True) -> T:
        """The result of ``call``, which opens one descriptor for the file ``path``.

        Raises OutOfDescriptors when none is left; with ``must`` only when the reserve is empty, too.
        """
        if len(self._spare) < self._wanted:
            self._fill()
        while True:
            try:
                return call()
            except OSError as error:
                if error.errno not in _NO_DESCRIPTORS:
                    raise
                # Another thread or a new connection may take the descriptor that is freed; then free the next one.
                if not (must and self._give_up_one()):
                    raise OutOfDescriptors(
                        f"{path} cannot be opened: {error.strerror}: raise the limit of open files (ulimit -n)"
                    ) from error

    def fsync_dir(self, path: str) -> None:
        """Make the names in a directory survive a power loss."""
        fd = self.open(path or ".", os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def _fill(self) -> None:
        with self._lock, suppress(OSError):
            while len(self._spare) < self._wanted:
                self._spare.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))

    def _give_up_one(self) -> bool:
        with self._lock:
            if not self._spare:
                return False
            os.close(self._spare.pop())
            return True

    def close(self) -> None:
        """Give the reserve back. Files can still be opened."""
        self._wanted = 0
        while self._give_up_one():
            pass

    def __del__(self) -> None:
        self.close()
