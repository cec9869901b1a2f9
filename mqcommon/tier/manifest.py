"""What a bucket has of one broker set: the segments, the open file's tail, the metadata (pure).

A manifest is immutable. Whoever owns the set creates the next one with the next number; whoever does not own it any
more finds that number taken, and stops. Segments are contiguous, oldest first.
Neighbours: manifests.py (finds the newest, creates the next), layout.py (the names).
"""

from collections.abc import Sequence

from skylark.mqcommon.lazy_dataclass import lazy_dataclass


@lazy_dataclass(frozen=True, slots=True)
class StoredObject:
    """``crc``: CRC-32 of all bytes of the object."""

    name: str
    size: int
    crc: int


@lazy_dataclass(frozen=True, slots=True)
class Segment:
    """The bytes ``start`` to ``end`` of the log: one of its files. ``crc``: CRC-32 of these bytes as in that file.

    ``epoch``: of the owner that wrote it. ``first_ms`` and ``last_ms``: the least and the greatest store time.
    ``records``: how many there are. ``classes``: the objects with records, by the number of the retention class;
    classes whose time is over are missing.
    """

    start: int
    end: int
    crc: int
    epoch: int
    first_ms: int
    last_ms: int
    records: int
    folder: str
    classes: tuple[tuple[int, StoredObject], ...]
    index: StoredObject
    keys: StoredObject


@lazy_dataclass(frozen=True, slots=True)
class Span:
    """1,000 segments that are described in the object ``stored``; the fields are as those of `Segment`."""

    start: int
    end: int
    first_ms: int
    last_ms: int
    segments: int
    stored: StoredObject


@lazy_dataclass(frozen=True, slots=True)
class Tail:
    """The bytes ``start`` to ``end`` of the log, as they are there."""

    start: int
    end: int
    stored: StoredObject


@lazy_dataclass(frozen=True, slots=True)
class Tombstone:
    """All records of ``topic`` before ``physical_offset`` are deleted."""

    topic: str
    physical_offset: int


@lazy_dataclass(frozen=True, slots=True)
class Leftover:
    """An object that no manifest names since ``since_ms``; it is removed 24 h later."""

    name: str
    since_ms: int


@lazy_dataclass(frozen=True, slots=True)
class Manifest:
    """The state of a set in the bucket.

    ``epoch`` and ``owner`` (16 random bytes): who created it. A later owner has a greater epoch.
    ``segment_bytes``: the size of the log's files. ``tails`` begin where the segments end, without gaps.
    """

    number: int
    epoch: int
    owner: bytes
    created_ms: int
    segment_bytes: int
    spans: Sequence[Span] = ()
    segments: Sequence[Segment] = ()
    tails: Sequence[Tail] = ()
    metadata: StoredObject | None = None
    tombstones: Sequence[Tombstone] = ()
    leftovers: Sequence[Leftover] = ()

    @property
    def start(self) -> int:
        """Where the first segment begins; `end` if there is none."""
        if self.spans:
            return self.spans[0].start
        return self.segments[0].start if self.segments else self.end

    @property
    def end(self) -> int:
        """Where the last segment ends: files of the log before that may be removed."""
        if self.segments:
            return self.segments[-1].end
        if self.spans:
            return self.spans[-1].end
        return self.tails[0].start if self.tails else 0
