"""Opens files, and names the two shortages that opening and writing meet: no room, and no descriptor."""

import contextlib
import errno
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

from skylark.mqcommon.errors import DiskFull, OutOfDescriptors

T = TypeVar("T")

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


@contextlib.contextmanager
def raising_disk_full(path: str, needed: int = 0) -> Iterator[None]:
    """Raise DiskFull when there is no room for ``needed`` bytes, or, if ``needed`` is 0, for a name in a directory."""
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        free = f", {shutil.disk_usage(os.path.dirname(path) or '.').free:,} are free" if needed else ""
        what = f"{needed:,} bytes" if needed else "another name"
        raise DiskFull(f"{path}: no room for {what}{free}: make room or move the store") from error


# Windows changes the ends of lines in files that are opened without this flag; no other system has it.
BINARY: int = getattr(os, "O_BINARY", 0)
_NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)


class Descriptors:
    """Opens files; holds a reserve of ``spare`` descriptors for when no others are left. For any thread."""

    def __init__(self, spare: int = 0) -> None:
        self._wanted = spare
        self._lock = threading.Lock()
        self._spare: list[int] = []
        #: Called when no descriptor is left; returns whether it may have freed some.
        self.make_room: Callable[[], bool] = lambda: False
        self._fill()

    def open(self, path: str, flags: int, *, must: bool = True) -> int:
        """As os.open; only its owner can read a new file. Errors and ``must`` are as in `open_by`."""
        return self.open_by(path, lambda: os.open(path, flags | BINARY, 0o600), must=must)

    def open_by(self, path: str, opener: Callable[[], T], *, must: bool = True) -> T:
        """Call ``opener``, which opens one descriptor for the file ``path``, and return its result.

        Raises OutOfDescriptors when none is left and `make_room` frees none; with ``must`` only when the reserve is
        empty, too.
        """
        if len(self._spare) < self._wanted:
            self._fill()
        while True:
            try:
                return opener()
            except OSError as error:
                if error.errno not in _NO_DESCRIPTORS:
                    raise
                # Another thread or a new connection may take the freed descriptor; then free the next one.
                if not self.make_room() and not (must and self._give_up_one()):
                    raise OutOfDescriptors(
                        f"{path} cannot be opened: {error.strerror}: raise the limit of open files (ulimit -n)"
                    ) from error

    def fsync_dir(self, path: str) -> None:
        """Make the names in a directory survive a power loss. Windows does that by itself: it opens no directories."""
        if not hasattr(os, "O_DIRECTORY"):
            return
        fd = self.open(path or ".", os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def _fill(self) -> None:
        with self._lock, contextlib.suppress(OSError):
            while len(self._spare) < self._wanted:
                self._spare.append(os.open(os.devnull, os.O_RDONLY))

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
