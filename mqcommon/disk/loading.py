"""Brings bytes of a mapped file into memory, so that its map can be read.

Where the disk cannot read a page, an access to the map ends the process (SIGBUS). A read of the same bytes is an error
instead, and leaves the page in memory for the map.
"""

import errno
from typing import Protocol

from skylark.mqcommon.errors import Unreadable

#: The errors of a read that say that the disk has lost the bytes.
LOST_ERRNOS = (errno.EIO, errno.EBADMSG, errno.EILSEQ)
# How much is read at once; and after a failure, to find the bytes that the disk has lost.
PIECE_BYTES = 1024 * 1024
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
        if error.errno not in LOST_ERRNOS:
            raise
        raise Unreadable(file.path, _first_lost(file, at, size), str(error.strerror or error)) from error


def _first_lost(file: Loadable, at: int, size: int) -> int:
    for start in range(at, at + size, SECTOR_BYTES):
        try:
            file.pread(start, min(SECTOR_BYTES, at + size - start))
        except OSError:
            return start
    return at


class Loader:
    """Loads a file piece by piece, ahead of a reader that goes through its map from ``at`` on."""

    __slots__ = ("_file", "_size", "_to")

    def __init__(self, file: Loadable, at: int, size: int) -> None:
        """``size``: the size of the file."""
        self._file = file
        self._size = size
        self._to = at

    def load_to(self, end: int) -> None:
        """Load the bytes before ``end``, and some bytes after it. Blocks; Unreadable."""
        if end > self._to:
            stop = min(max(end, self._to + PIECE_BYTES), self._size)
            load(self._file, self._to, stop - self._to)
            self._to = stop
