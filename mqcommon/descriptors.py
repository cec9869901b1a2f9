"""Opening files while the process, or the machine, runs out of descriptors.

A failed open is no failed fsync: it may succeed a moment later. OutOfDescriptors tells the two apart. What must be
opened to write, to sync or to roll to the next file draws on a reserve of descriptors that are held for that; reads
do not.
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
    """Opens files; holds ``spare`` descriptors for when there are no others. For any thread."""

    def __init__(self, spare: int = 0) -> None:
        self._wanted = spare
        self._lock = threading.Lock()
        self._spare: list[int] = []
        self._fill()

    def open(self, path: str, flags: int, *, must: bool = True) -> int:
        """As os.open; a new file is for its owner only. Errors and ``must`` as in `take`."""
        return self.take(path, lambda: os.open(path, flags | os.O_CLOEXEC, 0o600), must=must)

    def take(self, path: str, call: Callable[[], T], *, must: bool = True) -> T:
        """The result of ``call``, which takes one descriptor for the file ``path``.

        OutOfDescriptors when none is left; with ``must``, not in the reserve either.
        """
        if len(self._spare) < self._wanted:
            self._fill()
        while True:
            try:
                return call()
            except OSError as error:
                if error.errno not in _NO_DESCRIPTORS:
                    raise
                # Another thread, or a new connection, may take the one that is given up: then the next one is.
                if not (must and self._give_up_one()):
                    raise OutOfDescriptors(
                        f"{path} cannot be opened: {error.strerror}: raise the limit of open files (ulimit -n)"
                    ) from error

    def fsync_dir(self, path: str) -> None:
        """Make the names in a directory survive power loss."""
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

    def __del__(self) -> None:
        for fd in self._spare:
            os.close(fd)
