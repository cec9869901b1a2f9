"""Reads that refuse to wait for the disk.

Within `resident_only`, a read of bytes that are not in memory raises NotResident instead, which names them. Whoever
asked brings them in with `warm`, in a thread, and asks again. So everything that reads the store stays plain code,
and the event loop never stands still for a page fault. Reads outside are not looked at.
Neighbour: delivery/cold.py (asks again).
"""

from collections.abc import Sequence
from contextlib import suppress
from contextvars import ContextVar
from typing import NamedTuple

from common.errors import FileClosed, SkylarkError
from common.files import MappedFile

# Bytes are copied out in pieces of this size, and thrown away. What follows them the kernel reads ahead by itself;
# posix_fadvise(WILLNEED) on top of that halved the rate (measured).
STEP_BYTES = 1024 * 1024

_CHECKED: ContextVar[bool] = ContextVar("resident_only", default=False)


class Span(NamedTuple):
    """Bytes of a file."""

    file: MappedFile
    at: int
    size: int


class NotResident(SkylarkError):
    """``spans`` are on disk only."""

    def __init__(self, spans: Sequence[Span]) -> None:
        super().__init__(f"{len(spans)} ranges are not in memory, the first of {spans[0].file.path} at {spans[0].at}")
        self.spans = spans


class resident_only:
    """``with resident_only():`` reads within raise NotResident when they would wait for the disk."""

    __slots__ = ("_token",)

    def __enter__(self) -> None:
        self._token = _CHECKED.set(True)

    def __exit__(self, *_: object) -> None:
        _CHECKED.reset(self._token)


def is_checked() -> bool:
    """Whether this is within `resident_only`."""
    return _CHECKED.get()


def check_resident(file: MappedFile, at: int, size: int, *, around: int = 0) -> None:
    """NotResident when these bytes are not in memory, within `resident_only`.

    ``around``: the blocks of this size that hold the bytes are brought in with them, where others near are read soon.
    """
    if _CHECKED.get() and not file.resident(at, size):
        if around:
            start = at // around * around
            at, size = start, min(-(-(at + size) // around) * around, file.size) - start
        raise NotResident([Span(file, at, size)])


def warm(cold: NotResident) -> None:
    """Bring the bytes into memory. Blocks; for a thread."""
    for file, start, size in cold.spans:
        with suppress(FileClosed):
            for at in range(start, start + size, STEP_BYTES):
                file.pread(at, min(STEP_BYTES, start + size - at))
