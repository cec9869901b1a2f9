"""The interface of a bucket: objects under one path of an object store, or of a directory.

Every call blocks, and may be made from any thread. A call ends within the deadline with which the bucket was opened;
`Bucket.put` makes several requests, and each of them has that deadline.
Correctness never depends on `Bucket.list`, whose answers may be old. It depends on `Bucket.create`: of several callers
that create an object at most one succeeds.
Neighbours: layout.py (the names of objects).
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

from skylark.mqcommon.errors import InvalidArgument, SkylarkError


class BucketError(SkylarkError):
    """A bucket did not do what it was asked."""

    #: The object that cannot be read, where a reader of many objects needs to know it; see `TierView`.
    object_name = ""


class NoSuchObject(BucketError):
    """There is no object of that name, or it is shorter than the range that was asked for."""


class ObjectExists(BucketError):
    """`Bucket.create`: there is an object of that name already."""


class BucketAway(BucketError):
    """The bucket cannot be reached, is too slow, or wants fewer requests. The same call may succeed later.

    Whether a call that writes has had an effect is unknown.
    """


class BucketRefused(BucketError):
    """The bucket lacks a right, or the credentials have ended: an administrator has to act. Nothing was changed."""


class DamagedObject(BucketError):
    """The bytes of an object are not as they were written, or this version of Skylark does not know their format."""


class NewerFormat(DamagedObject):
    """A newer version of Skylark wrote the object: it is not damaged, and must not be made again."""


class ObjectInfo(NamedTuple):
    """``size`` in bytes; ``modified_ms``: when the object was written, by the clock of the bucket."""

    name: str
    size: int
    modified_ms: int


def check_name(name: str) -> None:
    """Raise InvalidArgument if no object may have this name: its parts must not be empty, nor begin with a dot."""
    if not all(part and not part.startswith(".") for part in name.split("/")) or not name.isprintable():
        raise InvalidArgument(f"{name!r} cannot be the name of an object: parts are not empty and begin with no dot")


class Bucket(Protocol):
    """Objects by name. A name has parts with ``/`` between them, as in layout.py."""

    #: As given by the user, without credentials; for log lines.
    url: str

    def get(self, name: str) -> bytes:
        """The whole object. Raises NoSuchObject."""

    def get_range(self, name: str, start: int, size: int) -> bytes:
        """Exactly ``size`` bytes from ``start`` on. Raises NoSuchObject."""

    def head(self, name: str) -> ObjectInfo:
        """What is known about the object. Raises NoSuchObject."""

    def create(self, name: str, data: bytes) -> None:
        """Write a small object that must not exist yet. Raises ObjectExists.

        After BucketAway the caller reads the object to learn who wrote it.
        """

    def put(self, name: str, pieces: Iterable[bytes | memoryview]) -> int:
        """Write an object of any size, from ``pieces``; returns its bytes. The caller has made the name unique.

        A reader sees the whole object or none.
        """

    def delete(self, names: Sequence[str]) -> None:
        """Remove objects. A name without an object is no error."""

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Objects whose names begin with ``prefix``, in no certain order. New objects may be missing."""

    def folders(self, prefix: str) -> Sequence[str]:
        """The folders directly below the folder ``prefix`` ("": the bucket), sorted. New folders may be missing."""

    def close(self) -> None:
        """Let connections go. Calls of other threads may fail then."""
