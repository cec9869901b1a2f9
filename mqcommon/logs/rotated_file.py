"""`RotatedFile`: appends to a file, rotates it, and opens it again when somebody else has renamed or removed it.

Used by one thread. Errors are OSErrors, and the next write tries again; a line is written whole or not at all.
"""

import contextlib
import os
import time
from collections.abc import Callable

from skylark.mqcommon.lazy_dataclass import lazy_dataclass

HOUR_S = 3600


@lazy_dataclass(frozen=True, slots=True)
class Rotation:
    """The rules: by size and by age; 0 switches a rule off. ``keep`` rotated files are kept."""

    max_bytes: int = 0
    max_age_hours: int = 0
    keep: int = 10

    def period(self, local_s: float) -> int:
        """The number of the period that a moment is in; ``local_s`` counts from a midnight of local time."""
        return int(local_s // (self.max_age_hours * HOUR_S)) if self.max_age_hours else 0

    def is_due(self, size: int, incoming: int, began_local_s: float, now_local_s: float) -> bool:
        """Whether to rotate a file of ``size`` before ``incoming`` bytes are added. An empty file is never rotated.

        ``began_local_s``: when the file was begun; local times are as in `period`.
        """
        if not size:
            return False
        is_full = bool(self.max_bytes) and size + incoming > self.max_bytes
        return is_full or self.period(now_local_s) > self.period(began_local_s)

    def renames(self, path: str) -> list[tuple[str, str]]:
        """(old, new) names of a rotation, in the order of renaming; the last of ``keep`` files is replaced."""
        names = [path, *(f"{path}.{number}" for number in range(1, self.keep + 1))]
        return list(zip(names[-2::-1], names[:0:-1], strict=True))


_MODE = 0o600
# Windows changes the ends of lines in files that are opened without this flag; no other system has it.
_BINARY: int = getattr(os, "O_BINARY", 0)


class RotatedFile:
    """An open log file and its rotation. ``now_s`` is the time of the wall clock."""

    def __init__(self, path: str, rotation: Rotation, now_s: Callable[[], float] = time.time) -> None:
        self.path = path
        self._rotation = rotation
        self._now_s = now_s
        self._fd = -1
        self._size = 0
        # When the first line of the file was written, as far as that is known.
        self._began_local_s = 0.0
        self._reopen = False

    def reopen(self) -> None:
        """Open the file again before the next write; may be called from another thread, or by a signal's handler."""
        self._reopen = True

    def open(self) -> None:
        """Open the file; its directory is made."""
        os.makedirs(os.path.dirname(self.path) or ".", mode=0o700, exist_ok=True)
        self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | _BINARY, _MODE)
        found = os.fstat(self._fd)
        self._size = found.st_size
        self._began_local_s = self._local(found.st_mtime if found.st_size else self._now_s())

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def write(self, data: bytes) -> None:
        """Append whole lines, after a rotation if it is time for it."""
        if self._fd < 0 or self._reopen or not self._is_in_place():
            self.close()
            self._reopen = False
            self.open()
        # Read each time: another process may append to the same file.
        self._size = os.fstat(self._fd).st_size
        if self._rotation.is_due(self._size, len(data), self._began_local_s, self._local(self._now_s())):
            self._rotate()
        self._append(data)

    def _append(self, data: bytes) -> None:
        # A line is whole or absent: when the disk becomes full in the middle of a line, its written part is removed.
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(self._fd, rest) :]
        except OSError:
            with contextlib.suppress(OSError):  # the first error is the one to report
                os.ftruncate(self._fd, self._size)
            raise

    def _is_in_place(self) -> bool:
        """Whether the path still leads to the open file: logrotate renames it."""
        try:
            found = os.stat(self.path)
        except FileNotFoundError:
            return False
        return os.path.samestat(found, os.fstat(self._fd))

    def _rotate(self) -> None:
        self.close()  # first: Windows renames no open file
        # A file that cannot be renamed goes on growing: a long log is better than no log.
        with contextlib.suppress(OSError):
            for old, new in self._rotation.renames(self.path):
                with contextlib.suppress(FileNotFoundError):
                    os.replace(old, new)
            if not self._rotation.keep:
                os.unlink(self.path)
        self.open()
        self._began_local_s = self._local(self._now_s())

    def _local(self, time_s: float) -> float:
        return time_s + time.localtime(time_s).tm_gmtoff
