"""What the owner of a set writes to the bucket besides the objects of segments: manifests, tails, metadata, deletions.

Every call blocks; one thread at a time. An object that a new manifest no longer names is removed from the bucket 24 h
later: readers by an older manifest still find the object. Each commit creates the manifest with the next number, and
reads it back: a deposed owner changes nothing, however late it comes.
Neighbours: tier.py (says when), mqcommon/tier/manifest.py (the changes), mqcommon/tier/manifests.py (creates).
"""

import logging
import os
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Protocol

from skylark.broker.store.retention import HOUR_MS
from skylark.mqcommon.clock import Clock
from skylark.mqcommon.crc import large_crc32
from skylark.mqcommon.errors import SkylarkError
from skylark.mqcommon.tier.bucket import Bucket, BucketAway, DamagedObject, NoSuchObject
from skylark.mqcommon.tier.layout import MANIFESTS, metadata_name, span_name, tail_name
from skylark.mqcommon.tier.manifest import (
    MAX_LEFTOVERS,
    Manifest,
    Segment,
    Span,
    StoredObject,
    Tail,
    Tombstone,
    decode_span,
    encode_span,
    expired,
    span_of,
)
from skylark.mqcommon.tier.manifests import ArrivedLate, Deposed, ManifestLog

logger = logging.getLogger(__name__)

#: Objects that no manifest names are removed at this age.
ORPHAN_MS = 48 * HOUR_MS
_PIECE_BYTES = 1024 * 1024
_NAMES_AT_ONCE = 1_000


class Disagrees(SkylarkError):
    """The log on this disk is not the log in the bucket: an administrator has to say which of both is wanted."""


class LocalLog(Protocol):
    """The log on this disk, for any thread."""

    @property
    def start(self) -> int:
        """Where its first file begins."""

    @property
    def end(self) -> int:
        """Where its last record ends."""

    @property
    def segment_bytes(self) -> int:
        """The size of its files."""

    def read(self, offset: int, size: int) -> bytes:
        """``size`` bytes; fewer where the log has no more."""


class SetOwner:
    """One ownership of ``broker_set``: `claim` first. Then `manifest` is the newest manifest, and this owner's."""

    def __init__(self, bucket: Bucket, broker_set: str, log: LocalLog, clock: Clock) -> None:
        self._bucket = bucket
        self._set = broker_set
        self._log = log
        self._clock = clock
        self._manifests = ManifestLog(bucket, broker_set)
        self._owner = os.urandom(16)
        # The outcome of the last commit is not known.
        self._is_unsure = False
        self.manifest: Manifest

    # --- ownership

    def claim(
        self,
        term: int | None,
        restored: tuple[int, int] | None = None,
        anew: bool = False,
        is_known: bool = False,
    ) -> None:
        """Become the owner. ``term``: of the Controllers or the group; None: the brokers elect nobody.

        ``restored``: as `RestoredFrom.manifest`. ``anew``: own the set whatever term the last owner had. ``is_known``:
        manifests of the set were seen before, so an empty bucket has lost them.
        Raises Deposed when the set has an owner of a later term, Disagrees when the bucket has another log.
        """
        newest = self._manifests.newest_or_stand_in()
        if newest is None and is_known:
            raise self._gone()
        if newest is not None:
            # Before anybody is deposed.
            self._compare(newest)
        anew_after = None if restored is None else self._begins_after(newest, *restored)
        if anew and newest is not None:
            anew_after = newest.number
        known = newest.term if newest is not None and anew_after is None else 0
        manifest = self._manifests.claim(
            known if term is None else term,
            self._owner,
            self._clock.now_ms(),
            self._log.segment_bytes,
            anew_after=anew_after,
        )
        if newest is None or manifest.end != newest.end:
            self._compare(manifest)  # another owner has written meanwhile
        self.manifest, self._is_unsure = manifest, False
        if not self._tails_agree():
            # The log ended earlier when its new master was chosen: these bytes are in no log of the set.
            logger.info("tier: copies of the open file end after this log, or differ from it: they are dropped")
            self.commit(lambda base: base.without_tails())

    def _begins_after(self, newest: Manifest | None, number: int, generation: int) -> int | None:
        """The number of the manifest that a new generation follows; None if the new generation has begun already."""
        if newest is not None and newest.generation > generation:
            return None
        if newest is None or newest.number != number:
            raise Disagrees(
                f"{self._bucket.url}, set {self._set}, was written after this store was made from it: another broker of"
                " the set is alive. Stop this broker, and start it with an empty directory as a slave of the other one;"
                " or stop the other one, and make this store again: mqadmin tierRestore"
            )
        return number

    def check(self) -> None:
        """Read the newest manifest. Raises Deposed when it is another owner's."""
        newest = self._manifests.newest()
        if newest is None:
            raise self._gone()
        if newest.owner != self._owner:
            raise Deposed(newest)
        self.manifest, self._is_unsure = newest, False

    def _gone(self) -> Disagrees:
        return Disagrees(
            f"the manifests of {self._set} are gone from {self._bucket.url}: bring the objects back from their versions"
            " or a copy of the bucket. A restart of this broker begins the set anew there"
        )

    def commit(self, change: Callable[[Manifest], Manifest]) -> None:
        """Create the next manifest, as ``change`` makes it of the present one; none if ``change`` changes nothing.

        ``change`` may be called several times. After BucketAway the outcome is unknown; the next commit learns it.
        """
        if self._is_unsure:
            self.check()
        while True:
            base = self.manifest.successor(self._clock.now_ms())
            wanted = change(base)
            if wanted == base:
                return
            self._is_unsure = True
            try:
                self._manifests.append(wanted)
            except ArrivedLate as late:
                self.manifest = late.newer
                continue
            self.manifest, self._is_unsure = wanted, False
            return

    # --- what the log has

    def next_start(self) -> int:
        """Where the next segment begins."""
        manifest = self.manifest
        return manifest.end if manifest.segments or manifest.spans else self._log.start

    def add_segment(self, segment: Segment) -> None:
        """List a segment whose objects are in the bucket and were read back."""

        def change(base: Manifest) -> Manifest:
            if (base.segments or base.spans) and base.end >= segment.end:
                return base  # an earlier try has listed it
            if not (base.segments or base.spans) and base.tails and base.tails[0].start != segment.start:
                base = base.without_tails()
            return base.with_segment(segment)

        self.commit(change)
        while some := self.manifest.next_span():
            self._make_span(some)

    def _make_span(self, segments: Sequence[Segment]) -> None:
        stored = self._put_span(segments)

        def change(base: Manifest) -> Manifest:
            return base.with_span(span_of(segments, stored)) if base.next_span() == segments else base

        self.commit(change)

    def _put_span(self, segments: Sequence[Segment]) -> StoredObject:
        name = span_name(self._set, segments[0].start, secrets.token_hex(4))
        return self._put(name, [encode_span(segments)])

    def tail_to(self) -> int:
        """Where the bytes of the log end that the bucket has, in segments or in tails."""
        manifest = self.manifest
        return manifest.tails[-1].end if manifest.tails else self.next_start()

    def put_tail(self, limit: int, tail_bytes: int) -> None:
        """Copy the open file up to ``limit``. A last tail of less than ``tail_bytes`` is replaced by a longer one."""
        tails, start = self.manifest.tails, self.next_start()
        end = min(limit, start + self._log.segment_bytes)
        if end <= self.tail_to():
            return
        begin = start
        if tails:
            last = tails[-1]
            begin = last.start if last.end - last.start < tail_bytes else last.end
        name = tail_name(self._set, begin, self.manifest.epoch, secrets.token_hex(4))
        stored = self._put(name, self._bytes_of(begin, end))
        tail = Tail(begin, end, stored)
        self.commit(lambda base: base if base.tails and base.tails[-1].end >= end else base.with_tail(tail))

    def put_metadata(self, data: bytes) -> None:
        """Replace the copy of the metadata."""
        stored = self._put(metadata_name(self._set, self.manifest.epoch, secrets.token_hex(4)), [data])
        self.commit(lambda base: base if base.metadata == stored else base.with_metadata(stored))

    def _put(self, name: str, pieces: Iterable[bytes]) -> StoredObject:
        """Write an object, and compare its size."""
        crc = size = 0

        def counted() -> Iterator[bytes]:
            nonlocal crc, size
            for piece in pieces:
                crc, size = large_crc32(piece, crc), size + len(piece)
                yield piece

        self._bucket.put(name, counted())
        if (found := self._bucket.head(name).size) != size:
            raise DamagedObject(f"{name} has {found} bytes, and {size} were written")
        return StoredObject(name, size, crc)

    def _bytes_of(self, start: int, end: int) -> Iterator[bytes]:
        for at in range(start, end, _PIECE_BYTES):
            size = min(_PIECE_BYTES, end - at)
            piece = self._log.read(at, size)
            if len(piece) != size:
                raise BucketAway(f"the log has no bytes at {at} any more: it was cut")
            yield piece

    # --- what is deleted

    def segment_after(self, offset: int) -> tuple[Segment | None, Segment | None]:
        """The first segment that ends after ``offset``, and the one before it."""
        last: Segment | None = None
        for span in self.manifest.spans:
            segments = decode_span(self._bucket.get(span.stored.name))
            if span.end > offset:
                return _after(segments, offset, last)
            last = segments[-1]
        return _after(self.manifest.segments, offset, last)

    def replace_segment(self, old: Segment, new: Segment) -> None:
        """List ``new``, whose objects are in the bucket and were read back, in place of ``old``."""
        gone = [old.index.name, old.keys.name, *(stored.name for _, stored in old.classes)]

        def changed(segments: Sequence[Segment]) -> list[Segment]:
            return [new if each == old else each for each in segments]

        for number, span in enumerate(self.manifest.spans):
            if span.start <= old.start < span.end:
                segments = changed(decode_span(self._bucket.get(span.stored.name)))
                made = span_of(segments, self._put_span(segments))
                self.commit(partial(_with_span, number=number, old=span, new=made, gone=gone))
                return

        def change(base: Manifest) -> Manifest:
            return base.with_segments_changed(changed(base.segments), gone) if old in base.segments else base

        self.commit(change)

    def note_deletions(self, deleted: Mapping[str, int]) -> None:
        """Hide the messages of deleted topics: topic -> the end of the log at its deletion."""

        def change(base: Manifest) -> Manifest:
            known = {each.topic: each.physical_offset for each in base.tombstones}
            for topic, offset in deleted.items():
                if offset > max(base.start, known.get(topic, 0)):
                    base = base.with_tombstone(Tombstone(topic, offset))
            return base

        self.commit(change)

    def forget_purged(self, purged: Collection[Tombstone]) -> None:
        """Take tombstones out of the manifest of which no object has bytes any more."""
        self.commit(lambda base: base.without_purged_tombstones(purged))

    def expire(self, default_hours: int) -> None:
        """Take objects out of the manifest that are older than their retention class.

        ``default_hours``: of class 0; 0: never. A manifest has at most some `MAX_LEFTOVERS`: later calls take out more.
        """
        now_ms = self._clock.now_ms()

        def before_ms(segments: Iterable[Segment]) -> dict[int, int]:
            numbers = {number for segment in segments for number, _ in segment.classes}
            hours = {number: number or default_hours for number in numbers}
            return {number: now_ms - each * HOUR_MS for number, each in hours.items() if each}

        number = 0
        while number < len(self.manifest.spans):
            span = self.manifest.spans[number]
            segments = decode_span(self._bucket.get(span.stored.name))
            most = MAX_LEFTOVERS - len(self.manifest.leftovers)
            kept, gone = expired(segments, before_ms(segments), is_oldest=not number, is_newest=False, most=most)
            if gone:
                new = span_of(kept, self._put_span(kept)) if kept else None
                self.commit(partial(_with_span, number=number, old=span, new=new, gone=gone))
                if not kept:
                    continue
            number += 1

        def change(base: Manifest) -> Manifest:
            most = MAX_LEFTOVERS - len(base.leftovers)
            kept, gone = expired(base.segments, before_ms(base.segments), is_oldest=not base.spans, most=most)
            return (base.with_segments_changed(kept, gone) if gone else base).without_idle_tombstones()

        self.commit(change)

    def remove_leftovers(self) -> int:
        """Remove objects that were taken out of the manifest some time ago; returns how many."""
        names = self.manifest.due_leftovers(self._clock.now_ms())
        if names:
            self.check()
        for at in range(0, len(names), _NAMES_AT_ONCE):
            some = names[at : at + _NAMES_AT_ONCE]
            self._bucket.delete(some)
            self.commit(partial(Manifest.without_leftovers, names=some))
        return len(names)

    def sweep(self) -> int:
        """Remove objects older than `ORPHAN_MS` that no manifest names; returns how many."""
        self.check()
        named = self._named()
        before_ms = self._clock.now_ms() - ORPHAN_MS
        manifests = f"{self._set}/{MANIFESTS}/"
        orphans = [
            info.name
            for info in self._bucket.list(f"{self._set}/")
            if info.modified_ms < before_ms and info.name not in named and not info.name.startswith(manifests)
        ]
        # A list may take long: nothing is removed that another owner has listed meanwhile.
        self.check()
        for at in range(0, len(orphans), _NAMES_AT_ONCE):
            self._bucket.delete(orphans[at : at + _NAMES_AT_ONCE])
        return len(orphans)

    def _named(self) -> set[str]:
        manifest = self.manifest
        segments = [*manifest.segments]
        for span in manifest.spans:
            segments += decode_span(self._bucket.get(span.stored.name))
        stored = [span.stored for span in manifest.spans] + [tail.stored for tail in manifest.tails]
        for segment in segments:
            stored += [segment.index, segment.keys, *(each for _, each in segment.classes)]
        names = {each.name for each in stored} | {leftover.name for leftover in manifest.leftovers}
        return names | ({manifest.metadata.name} if manifest.metadata else set())

    # --- the log on this disk

    def _compare(self, manifest: Manifest) -> None:
        """Raise Disagrees if the log on this disk is not the one whose segments the bucket has."""
        log, where = self._log, f"{self._bucket.url}, set {self._set}"
        _check_file_size(manifest, log, where)
        if not (manifest.segments or manifest.spans):
            return
        if log.end < manifest.end:
            raise Disagrees(
                f"the log on this disk ends at {log.end}, and {where} has it up to {manifest.end}. If this disk was"
                " lost, stop the broker and run: mqadmin tierRestore; otherwise give this broker another tierPath"
            )
        if log.start > manifest.end:
            raise Disagrees(
                f"the log on this disk begins at {log.start}, and {where} ends at {manifest.end}: what was between is"
                " in neither. If a line before says that a manifest is damaged, bring that object back from its"
                " versions or a copy of the bucket. Otherwise give this broker another tierPath to begin anew; the old"
                " one can still be restored"
            )
        if (last := _last_before(self._bucket, manifest, manifest.end)) is not None:
            _is_same(last, log, where)

    def _tails_agree(self) -> bool:
        tails = self.manifest.tails
        if not tails:
            return True
        if tails[0].start != self.next_start() or tails[-1].end > self._log.end:
            return False
        return all(_crc(self._log, tail.start, tail.end) == tail.stored.crc for tail in tails)


def is_same_log(bucket: Bucket, broker_set: str, manifest: Manifest, log: LocalLog) -> bool:
    """Whether the newest file that both ``log`` and the bucket have is the same; False if they have no file in common.

    Raises Disagrees if the bucket's file differs. Blocks for a second a gigabyte.
    """
    where = f"{bucket.url}, set {broker_set}"
    _check_file_size(manifest, log, where)
    last = _last_before(bucket, manifest, log.end)
    return last is not None and _is_same(last, log, where)


def _check_file_size(manifest: Manifest, log: LocalLog, where: str) -> None:
    if manifest.segment_bytes != log.segment_bytes:
        raise Disagrees(
            f"{where} has files of {manifest.segment_bytes} bytes, and this broker has mappedFileSizeCommitLog="
            f"{log.segment_bytes}: set it to {manifest.segment_bytes}, or give this broker another tierPath"
        )


def _last_before(bucket: Bucket, manifest: Manifest, end: int) -> Segment | None:
    """The newest segment that ends at or before ``end``."""
    spans = [span.stored.name for span in reversed(manifest.spans) if span.start < end]
    for some in chain((manifest.segments,), (decode_span(bucket.get(name)) for name in spans)):
        for segment in reversed(some):
            if segment.end <= end:
                return segment
    return None


def _is_same(segment: Segment, log: LocalLog, where: str) -> bool:
    """Whether ``log`` has the bytes of ``segment``; False if they are not on this disk. Raises Disagrees."""
    if segment.start < log.start:
        return False
    if _crc(log, segment.start, segment.end) == segment.crc:
        return True
    if segment.start < log.start or log.end < segment.end:
        return False  # the file was removed meanwhile
    raise Disagrees(
        f"bytes {segment.start} to {segment.end} of the log on this disk are not those in {where}: see broker"
        " verifyStore; if the bucket has another log, give this broker another tierPath"
    )


def _crc(log: LocalLog, start: int, end: int) -> int:
    crc = 0
    for at in range(start, end, _PIECE_BYTES):
        crc = large_crc32(log.read(at, min(_PIECE_BYTES, end - at)), crc)
    return crc


def stored_bytes(bucket: Bucket, manifest: Manifest, spans: dict[str, tuple[int, int]]) -> tuple[int, int]:
    """(segments, bytes of their objects) in the bucket. ``spans`` keeps both figures of each span, by its name."""

    def of(segments: Iterable[Segment]) -> int:
        return sum(
            [each.index.size + each.keys.size + sum([stored.size for _, stored in each.classes]) for each in segments]
        )

    for name in [span.stored.name for span in manifest.spans if span.stored.name not in spans]:
        try:
            found = decode_span(bucket.get(name))
        except NoSuchObject:
            found = ()  # a newer manifest has another span in its place
        spans[name] = len(found), of(found)
    known = [spans[span.stored.name] for span in manifest.spans]
    total = of(manifest.segments) + sum([size for _, size in known])
    return len(manifest.segments) + sum([count for count, _ in known]), total


def _with_span(base: Manifest, *, number: int, old: Span, new: Span | None, gone: Sequence[str]) -> Manifest:
    """``base`` with ``new`` in place of the span ``old``; ``base`` if it has no such span any more."""
    if number < len(base.spans) and base.spans[number] == old:
        return base.with_span_changed(number, new, gone)
    return base


def _after(segments: Sequence[Segment], offset: int, before: Segment | None) -> tuple[Segment | None, Segment | None]:
    for segment in segments:
        if segment.end > offset:
            return segment, before
        before = segment
    return None, before
