"""Brings bytes of a mapped file into memory, so that its map can be read.

Where the disk cannot read a page, an access to the map ends the process (SIGBUS). A read of the same bytes is an error
instead, and leaves the page in memory for the map.
"""

import errno
import mmap
from collections.abc import Callable
from typing import Protocol

from skylark.mqcommon.disk.files import ReadableMap
from skylark.mqcommon.errors import Unreadable

#: The errors of a read that say that the disk has lost the bytes.
LOST_ERRNOS = (errno.EIO, errno.EBADMSG, errno.EILSEQ)
# The bytes of one read.
PIECE_BYTES = 1024 * 1024
# After a failed read, reads of this size find the first place that the disk has lost.
SECTOR_BYTES = 4096


class Loadable(Protocol):
    """A mapped file whose bytes can be read without its map."""

    @property
    def path(self) -> str: ...

    def pread(self, at: int, size: int) -> bytes: ...


def load(file: Loadable, at: int, size: int) -> None:
    """Have ``size`` bytes of ``file`` from ``at`` on in memory. Blocks; Unreadable where the disk has lost them."""
    for start in range(at, at + size, PIECE_BYTES):
        read(file, start, min(PIECE_BYTES, at + size - start))


def read(file: Loadable, at: int, size: int) -> bytes:
    """As ``file.pread``; Unreadable where the disk has lost the bytes."""
    try:
        return file.pread(at, size)
    except OSError as error:
        _refuse_other(error)
        raise Unreadable(file.path, _first_lost(file, at, size), str(error.strerror or error)) from error


def used_size(data: bytes) -> int:
    """The number of bytes up to the last byte that is not zero: a file may be longer than what was written."""
    # Most data is all zeros, and `rstrip` takes ten times as long as a comparison.
    return 0 if data == bytes(len(data)) else len(data.rstrip(b"\0"))


def _first_lost(file: Loadable, at: int, size: int) -> int:
    for start in range(at, at + size, SECTOR_BYTES):
        try:
            file.pread(start, min(SECTOR_BYTES, at + size - start))
        except OSError:
            return start
    return at


def lost_places(file: Loadable, size: int) -> list[tuple[int, int]]:
    """(at, size) of each place in the ``size`` bytes of ``file`` that the disk has lost. Blocks: reads them all."""
    found: list[tuple[int, int]] = []
    for start in range(0, size, PIECE_BYTES):
        end = min(start + PIECE_BYTES, size)
        try:
            file.pread(start, end - start)
        except OSError as error:
            _refuse_other(error)
            for at in range(start, end, SECTOR_BYTES):
                part = min(SECTOR_BYTES, end - at)
                if _is_lost(file, at, part):
                    before, length = found[-1] if found else (0, 0)
                    if before + length == at and found:
                        found[-1] = before, length + part
                    else:
                        found.append((at, part))
    return found


def _is_lost(file: Loadable, at: int, size: int) -> bool:
    try:
        file.pread(at, size)
    except OSError as error:
        _refuse_other(error)
        return True
    return False


def _refuse_other(error: OSError) -> None:
    if error.errno not in LOST_ERRNOS:
        raise error


class LossyMap:
    """A mapped file for a reader that goes on where the disk has lost bytes: the reader sees zeros in their place.

    When the first lost place is met, ``on_lost`` gets (at, size) of each lost place of the file. From then on the whole
    file is in memory, and `view` is another object: take it anew after each `pread`.
    """

    def __init__(self, file: ReadableMap, on_lost: Callable[[int, int], None]) -> None:
        self._file = file
        self._on_lost = on_lost
        self._has_lost = False
        self.path = file.path
        self.size = file.size
        self.view = file.view

    def pread(self, at: int, size: int) -> bytes:
        """``size`` bytes from ``at`` on. Blocks."""
        if not self._has_lost:
            try:
                return self._file.pread(at, size)
            except OSError as error:
                _refuse_other(error)
                self._copy()
        return self.view[at : at + size]

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _copy(self) -> None:
        lost = lost_places(self._file, self.size)
        copy = mmap.mmap(-1, self.size)
        at = 0
        for start, size in [*lost, (self.size, 0)]:
            for piece in range(at, start, PIECE_BYTES):
                data = self._file.pread(piece, min(PIECE_BYTES, start - piece))
                copy[piece : piece + len(data)] = data
            at = start + size
        self.view, self._has_lost = copy, True
        for start, size in lost:
            self._on_lost(start, size)


class Loader:
    """Loads a mapped file piece by piece, ahead of a reader that goes through its map from ``at`` on."""

    __slots__ = ("_file", "_size", "_to")

    def __init__(self, file: Loadable, at: int, size: int) -> None:
        """``size``: the bytes of the whole file, past which nothing is read."""
        self._file = file
        self._size = size
        self._to = at

    def load_to(self, end: int) -> None:
        """Have the bytes up to ``end``, and up to `PIECE_BYTES` more, in memory. Raises as `load` does."""
        if end > self._to:
            stop = min(max(end, self._to + PIECE_BYTES), self._size)
            load(self._file, self._to, stop - self._to)
            self._to = stop
