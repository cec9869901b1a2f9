"""What a bucket has of one broker set: the segments, the open file's tail, the metadata (pure).

A manifest is immutable. The owner of the set creates the next manifest, with the next number; a former owner finds that
number taken, and stops. Segments are contiguous, oldest first.
The next manifest is `Manifest.successor`, to which changes are applied: `with_segment`, `with_tail` and so on. An
object that a change takes out becomes a leftover: readers of the manifest before may still read it for 24 h.
Neighbours: manifests.py (finds the newest, creates the next), layout.py (the names), framed.py (the bytes).
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.tier.bucket import DamagedObject
from skylark.mqcommon.tier.framed import framed, unframed
from skylark.mqcommon.tier.layout import TAILS

#: This many of the oldest segments become a span, when a manifest has more.
SPAN_SEGMENTS: Final = 1_000
#: An object that no manifest names any more is removed after this time.
LEFTOVER_MS: Final = 24 * 3600 * 1000
#: With this many leftovers retention waits until some are removed, and tails are removed before `LEFTOVER_MS`.
MAX_LEFTOVERS: Final = 4_000
#: A tail that was replaced stays this long at least: whoever makes a store of the bucket reads the tails last.
TAIL_LEFTOVER_MS: Final = 3600 * 1000
#: The lowest `TERM_BITS` bits of an epoch are the number of the owner in its term, the next 32 bits the term, of a
#: Controller or of DLedger, and the bits above are the generation. A generation ends when all members of the set were
#: lost: then terms may begin with 1 again.
TERM_BITS: Final = 20
_TERMS: Final = 1 << 32
_MAGIC: Final = b"SKTM"
_SPAN_MAGIC: Final = b"SKTS"
_VERSION: Final = 1


@lazy_dataclass(frozen=True, slots=True)
class StoredObject:
    """An object in the bucket: its bytes, and the CRC-32 ``crc`` of them all."""

    name: str
    size: int
    crc: int


@lazy_dataclass(frozen=True, slots=True)
class Segment:
    """The bytes ``start`` to ``end`` of the log: one of its files. ``crc``: CRC-32 of these bytes as in that file.

    ``epoch``: of the owner that wrote the segment. ``first_ms`` and ``last_ms``: the least and the greatest store time.
    ``records``: the number of sound records. ``classes``: the objects with records, by the number of the retention
    class; classes whose time is over are missing.
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
    """The ``segments`` old segments that the object ``stored`` describes; other fields as in `Segment`."""

    start: int
    end: int
    first_ms: int
    last_ms: int
    segments: int
    stored: StoredObject


@lazy_dataclass(frozen=True, slots=True)
class Tail:
    """The bytes ``start`` to ``end`` of the log, as they are in the log."""

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
    """An object that no manifest names since ``since_ms``; it is removed `LEFTOVER_MS` later."""

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

    def successor(self, now_ms: int) -> "Manifest":
        """The next manifest of the same owner, without changes."""
        return replace(self, number=self.number + 1, created_ms=now_ms)

    def taken_over(self, term: int, owner: bytes, now_ms: int, *, anew: bool = False) -> "Manifest":
        """The next manifest, of a new owner, in ``term``. ``anew``: of a new generation.

        ValueError if an owner of a later term of the generation created this one.
        """
        if self.term > term and not anew:
            raise ValueError(f"manifest {self.number} is of term {self.term}, after term {term}")
        epoch = max(self.epoch + 1, ((self.generation + anew) * _TERMS + term) << TERM_BITS)
        return replace(self, number=self.number + 1, created_ms=now_ms, epoch=epoch, owner=owner)

    @property
    def term(self) -> int:
        """The term of the owner, in its generation."""
        return (self.epoch >> TERM_BITS) % _TERMS

    @property
    def generation(self) -> int:
        """How often the set was made anew of the bucket."""
        return (self.epoch >> TERM_BITS) // _TERMS

    def with_segment(self, segment: Segment) -> "Manifest":
        """Append a segment; tails of its bytes become leftovers. ValueError unless it begins where the last ends."""
        if (self.segments or self.spans) and segment.start != self.end:
            raise ValueError(f"a segment begins at {segment.start}, and the one before it ends at {self.end}")
        if segment.end <= segment.start:
            raise ValueError(f"a segment ends at {segment.end}, and begins at {segment.start}")
        gone = [tail for tail in self.tails if tail.start < segment.end]
        kept = tuple(self.tails[len(gone) :])
        if kept and kept[0].start != segment.end:
            raise ValueError(f"a segment ends at {segment.end}, and the tail after it begins at {kept[0].start}")
        return replace(
            self,
            segments=(*self.segments, segment),
            tails=kept,
            leftovers=self._left(tail.stored.name for tail in gone),
        )

    def with_tail(self, tail: Tail) -> "Manifest":
        """Append a tail, or replace the last one by a longer tail that begins where it does.

        Otherwise ValueError unless the tail begins where the last tail ends or, without tails, the last segment.
        """
        tails, gone = self.tails, []
        if tails and tail.start == tails[-1].start and tail.end > tails[-1].end:
            tails, gone = tails[:-1], [tails[-1].stored.name]
        known = tails[-1].end if tails else self.end if self.segments or self.spans else tail.start
        if tail.start != known or tail.end <= tail.start:
            raise ValueError(f"a tail has bytes {tail.start} to {tail.end}, and the bucket has all before {known}")
        return replace(self, tails=(*tails, tail), leftovers=self._left(gone))

    def without_tails(self) -> "Manifest":
        """Drop all tails, as when the log has been cut."""
        return replace(self, tails=(), leftovers=self._left(tail.stored.name for tail in self.tails))

    def with_metadata(self, stored: StoredObject) -> "Manifest":
        """Replace the copy of the metadata."""
        left = [self.metadata.name] if self.metadata else []
        return replace(self, metadata=stored, leftovers=self._left(left))

    def with_tombstone(self, tombstone: Tombstone) -> "Manifest":
        """Hide the records of a topic before an offset. A topic has one tombstone, the latest."""
        others = [each for each in self.tombstones if each.topic != tombstone.topic]
        same = [each for each in self.tombstones if each.topic == tombstone.topic]
        latest = max([tombstone, *same], key=lambda each: each.physical_offset)
        return replace(self, tombstones=(*others, latest))

    def next_span(self) -> Sequence[Segment]:
        """The segments that have to become a span now; none up to `SPAN_SEGMENTS` segments."""
        return self.segments[:SPAN_SEGMENTS] if len(self.segments) > SPAN_SEGMENTS else ()

    def with_span(self, span: Span) -> "Manifest":
        """Replace the oldest ``span.segments`` segments by the span that describes them."""
        if span.start != self.segments[0].start or span.end != self.segments[span.segments - 1].end:
            raise ValueError(f"a span has bytes {span.start} to {span.end}, which the oldest segments are not")
        return replace(self, spans=(*self.spans, span), segments=tuple(self.segments[span.segments :]))

    def with_span_changed(self, number: int, span: Span | None, gone: Iterable[str] = ()) -> "Manifest":
        """Replace the span with this number, or drop it; names ``gone`` become leftovers, and the old object too.

        ValueError when a span that is not the first would be dropped, or another range replaces it.
        """
        old = self.spans[number]
        if span is None and number:
            raise ValueError("only the oldest span can be dropped")
        if span is not None and (span.end != old.end or (span.start != old.start and number)):
            raise ValueError(f"a span of bytes {old.start} to {old.end} cannot become {span.start} to {span.end}")
        spans = (*self.spans[:number], *([span] if span else []), *self.spans[number + 1 :])
        return replace(self, spans=spans, leftovers=self._left([old.stored.name, *gone]))

    def with_segments_changed(self, segments: Sequence[Segment], gone: Iterable[str] = ()) -> "Manifest":
        """Replace the segments that are in no span, as `expired` returns them. ``gone`` become leftovers."""
        if self.segments and (not segments or segments[-1].end != self.end):
            raise ValueError(f"the last segment must end at {self.end}, as before")
        return replace(self, segments=tuple(segments), leftovers=self._left(gone))

    def due_leftovers(self, now_ms: int) -> list[str]:
        """The objects to remove now: those whose time is over, and the oldest tails if there are too many leftovers."""
        too_many = len(self.leftovers) - MAX_LEFTOVERS
        names: list[str] = []
        for each in self.leftovers:
            age_ms = now_ms - each.since_ms
            is_surplus = len(names) < too_many and f"/{TAILS}/" in each.name and age_ms >= TAIL_LEFTOVER_MS
            if age_ms >= LEFTOVER_MS or is_surplus:
                names.append(each.name)
        return names

    def without_leftovers(self, names: Collection[str]) -> "Manifest":
        """Forget leftovers that have been removed."""
        removed = set(names)
        return replace(self, leftovers=tuple([each for each in self.leftovers if each.name not in removed]))

    def without_idle_tombstones(self) -> "Manifest":
        """Forget tombstones that hide nothing: no segment has bytes before them."""
        return replace(self, tombstones=tuple([each for each in self.tombstones if each.physical_offset > self.start]))

    def without_purged_tombstones(self, purged: Collection[Tombstone]) -> "Manifest":
        """Forget the tombstones ``purged``, but for tombstones that still hide queues of the newest index.

        ``purged``: tombstones of which no object has bytes any more.
        An index carries the queues of a deleted topic on until the first segment that begins after the deletion.
        """
        newest_start = self.segments[-1].start if self.segments else -1
        gone = {each for each in purged if each.physical_offset <= newest_start}
        return replace(self, tombstones=tuple([each for each in self.tombstones if each not in gone]))

    def _left(self, names: Iterable[str]) -> tuple[Leftover, ...]:
        return (*self.leftovers, *[Leftover(name, self.created_ms) for name in names])


def first_manifest(term: int, owner: bytes, now_ms: int, segment_bytes: int) -> Manifest:
    """Manifest 0 of a set of which the bucket has nothing."""
    return Manifest(0, term << TERM_BITS, owner, now_ms, segment_bytes)


def expired(
    segments: Sequence[Segment],
    before_ms: Mapping[int, int],
    *,
    is_oldest: bool = True,
    is_newest: bool = True,
    most: int = MAX_LEFTOVERS,
) -> tuple[list[Segment], list[str]]:
    """The segments without the classes whose time is over, and the names of the objects that go.

    ``before_ms``: by class, the time before which records go; a class without a time stays. A class goes from a
    segment when the segment's newest record is older. A segment without classes stays in its place until it is the
    oldest: then it goes with its index and keys. ``is_oldest``: the first of ``segments`` is the oldest of the
    set. ``is_newest``: the last of ``segments`` is the newest of the set, which stays: it says where the bucket ends.
    Once ``most`` names are found, no further segment is changed.
    """
    kept: list[Segment] = []
    gone: list[str] = []
    for place, segment in enumerate(segments, 1):
        over = [number for number, _ in segment.classes if segment.last_ms < before_ms.get(number, segment.last_ms)]
        if over and len(gone) < most:
            gone += [stored.name for number, stored in segment.classes if number in over]
            classes = tuple([each for each in segment.classes if each[0] not in over])
            segment = replace(segment, classes=classes)
        stays = segment.classes or kept or not is_oldest or (is_newest and place == len(segments))
        if stays or len(gone) >= most:
            kept.append(segment)
        else:
            gone += [segment.index.name, segment.keys.name]
    return kept, gone


def span_of(segments: Sequence[Segment], stored: StoredObject) -> Span:
    """The span that ``stored`` (from `encode_span`) holds."""
    return Span(
        segments[0].start,
        segments[-1].end,
        min([each.first_ms for each in segments]),
        max([each.last_ms for each in segments]),
        len(segments),
        stored,
    )


def encode_manifest(manifest: Manifest) -> bytes:
    """The bytes of a manifest's object."""
    return framed(
        _MAGIC,
        _VERSION,
        [
            manifest.number,
            manifest.epoch,
            manifest.owner,
            manifest.created_ms,
            manifest.segment_bytes,
            [
                [each.start, each.end, each.first_ms, each.last_ms, each.segments, *_stored(each.stored)]
                for each in manifest.spans
            ],
            [_segment_row(each) for each in manifest.segments],
            [[each.start, each.end, *_stored(each.stored)] for each in manifest.tails],
            _stored(manifest.metadata) if manifest.metadata else None,
            [[each.topic, each.physical_offset] for each in manifest.tombstones],
            [[each.name, each.since_ms] for each in manifest.leftovers],
        ],
    )


def decode_manifest(data: bytes) -> Manifest:
    """The manifest in the bytes of its object. Raises DamagedObject."""
    value = unframed(_MAGIC, _VERSION, data, "a manifest")
    try:
        number, epoch, owner, created_ms, segment_bytes, spans, segments, tails, metadata, tombstones, leftovers = value
        return Manifest(
            number,
            epoch,
            owner,
            created_ms,
            segment_bytes,
            tuple([_span(*row) for row in spans]),
            tuple([_segment(row) for row in segments]),
            tuple([Tail(start, end, StoredObject(*stored)) for start, end, *stored in tails]),
            StoredObject(*metadata) if metadata else None,
            tuple([Tombstone(*row) for row in tombstones]),
            tuple([Leftover(*row) for row in leftovers]),
        )
    except (TypeError, ValueError) as error:
        raise DamagedObject(f"a manifest is not what this Skylark writes: {error}") from None


def encode_span(segments: Sequence[Segment]) -> bytes:
    """The bytes of a span's object."""
    return framed(_SPAN_MAGIC, _VERSION, [_segment_row(each) for each in segments])


def decode_span(data: bytes) -> tuple[Segment, ...]:
    """The segments in the bytes of a span's object. Raises DamagedObject."""
    rows = unframed(_SPAN_MAGIC, _VERSION, data, "a span")
    try:
        return tuple([_segment(row) for row in rows])
    except (TypeError, ValueError) as error:
        raise DamagedObject(f"a span is not what this Skylark writes: {error}") from None


def _stored(stored: StoredObject) -> list[Any]:
    return [stored.name, stored.size, stored.crc]


def _segment_row(segment: Segment) -> list[Any]:
    folder = segment.folder

    def inside(stored: StoredObject) -> list[Any]:
        # Most names begin with the folder: such a name is written as the rest after "/".
        name = stored.name[len(folder) :] if stored.name.startswith(f"{folder}/") else stored.name
        return [name, stored.size, stored.crc]

    return [
        segment.start,
        segment.end,
        segment.crc,
        segment.epoch,
        segment.first_ms,
        segment.last_ms,
        segment.records,
        folder,
        [[number, *inside(stored)] for number, stored in segment.classes],
        inside(segment.index),
        inside(segment.keys),
    ]


def _span(start: int, end: int, first_ms: int, last_ms: int, segments: int, *stored: Any) -> Span:
    return Span(start, end, first_ms, last_ms, segments, StoredObject(*stored))


def _segment(row: Sequence[Any]) -> Segment:
    start, end, crc, epoch, first_ms, last_ms, records, folder, classes, index, keys = row

    def whole(name: str, size: int, crc: int) -> StoredObject:
        return StoredObject(folder + name if name.startswith("/") else name, size, crc)

    return Segment(
        start,
        end,
        crc,
        epoch,
        first_ms,
        last_ms,
        records,
        folder,
        tuple([(number, whole(*stored)) for number, *stored in classes]),
        whole(*index),
        whole(*keys),
    )
