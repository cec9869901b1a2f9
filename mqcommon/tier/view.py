"""What readers need of a set in a bucket: which segment and which bytes of it have a message. Needs numpy.

`TierView` may be used by many threads; its calls block while they read the bucket. A view keeps the indexes that it
has read, up to some bytes. A call never reads a record twice, and a view keeps no records: a caller that wants a cache
of records has its own.
Raises the errors of bucket.py; DamagedObject where bytes are not as they were written. Where the queues in an index, or
a span, cannot be read, `BucketError.object_name` is its name.
Neighbours: manifests.py, segment_index.py, keys.py.
"""

import heapq
import threading
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from itertools import chain, filterfalse, islice, pairwise
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np

from skylark.mqcommon.crc import large_crc32
from skylark.mqcommon.message.ids import parse_unique_key
from skylark.mqcommon.tier.bucket import Bucket, BucketError, DamagedObject, NoSuchObject
from skylark.mqcommon.tier.key_hash import key_hash
from skylark.mqcommon.tier.keys import Directory, directory_size, page_range, places_of, places_of_more
from skylark.mqcommon.tier.manifest import Manifest, Segment, decode_span
from skylark.mqcommon.tier.manifests import ManifestLog
from skylark.mqcommon.tier.metadata import MetadataCopy, decode_metadata
from skylark.mqcommon.tier.records import StoredRecord, stored_records
from skylark.mqcommon.tier.segment_index import (
    HEAD_BYTES,
    Columns,
    IndexHead,
    QueueRow,
    QueueStretches,
    QueueTable,
    named,
)

# The first read of an index: enough for the head and the queues of most indexes.
_FIRST_READ_BYTES: Final = 64 * 1024
#: Spans whose segments are kept in memory: some 1 MB each.
_SPANS_KEPT: Final = 16
#: The most records that one query by key reads.
MAX_RECORDS_OF_QUERY: Final = 500
#: A query by unique key first looks into this many segments on either side of the time in the key.
NEAR_SEGMENTS: Final = 64
# The segments whose keys a query reads at a time, once it has looked into the first few.
_KEY_THREADS: Final = 8
# What the head of an index takes in memory.
_HEAD_MEMORY: Final = 1_000

T = TypeVar("T")


class Located(NamedTuple):
    """A segment with records of a queue, and the queue's row in its index."""

    segment: Segment
    row: QueueRow


class KeyRecords(NamedTuple):
    """Records that may have a key, newest first. ``cut``: why not all was searched; "" if all was.

    ``next_end_ms``: what is left are the messages that were stored until this time; None if the search cannot go on.
    """

    records: list[bytes]
    cut: str = ""
    next_end_ms: int | None = None


class TierView:
    """Reads the set ``set_name``; ``cache_bytes`` bounds the memory of indexes. `refresh` must be called first."""

    def __init__(self, bucket: Bucket, set_name: str, cache_bytes: int) -> None:
        self._bucket = bucket
        self._log = ManifestLog(bucket, set_name)
        self._refreshing = threading.Lock()
        self._using = threading.Lock()
        self._cache = _Cache(cache_bytes)
        self._spans = _Cache(_SPANS_KEPT)
        self._segments = _Segments(None, self._span)
        self._manifest: Manifest | None = None
        # By topic and queue, the number of the segment that was located last.
        self._hints = _Cache(10_000)
        #: Called, by any thread, with the name of an index whose queues were right when they were read just now from
        #: the bucket, or of such a span.
        self.on_read: Callable[[str], None] = _ignored

    @property
    def manifest(self) -> Manifest | None:
        """The manifest of the last `refresh`."""
        return self._manifest

    def refresh(self) -> Manifest | None:
        """Read the newest manifest; None while the bucket has none."""
        with self._refreshing:
            manifest = self._log.newest()
            if manifest is not None:
                self.use(manifest)
            return manifest

    def use(self, manifest: Manifest) -> None:
        """Read as ``manifest`` says from now on, if it is not older than the manifest in use.

        For an owner, which has created ``manifest``, and for a task of Spark, which got it from the driver.
        """
        with self._using:
            if self._manifest is None or manifest.number >= self._manifest.number:
                self._segments = _Segments(manifest, self._span)
                self._manifest = manifest

    @property
    def count(self) -> int:
        """How many segments there are."""
        return len(self._segments)

    def segment(self, number: int) -> Segment:
        """The segment with this number; 0 is the oldest."""
        return self._segments.at(number)

    def hides(self, topic: str, physical: int) -> bool:
        """Whether a record at this place of the log belongs to an earlier topic of its name, which was deleted."""
        return self._segments.hides(topic, physical)

    def segment_at(self, physical: int) -> Segment | None:
        """The segment with this byte of the log."""
        segments = self._segments
        number = segments.number_at(physical)
        return None if number is None else segments.at(number)

    def table(self, segment: Segment) -> QueueTable:
        """The queues of a segment."""
        return self._cache.get(segment.index.name, lambda: self._read_table(segment), _table_bytes)

    def check(self, segment: Segment) -> None:
        """Read the queues of a segment from the bucket, also if they are in memory."""
        self._read_table(segment)

    def queues(self) -> list[tuple[str, int]]:
        """(topic, queue id) of all queues of which the bucket has, or had, records."""
        segments = self._segments
        if not len(segments):
            return []
        rows = self.table(segments.at(len(segments) - 1)).queues()
        return [(row.topic, row.queue_id) for row in rows if not segments.is_deleted(row)]

    def metadata(self) -> MetadataCopy | None:
        """The newest copy of topics, groups and offsets; None if there is none."""
        stored = self._manifest.metadata if self._manifest else None
        return None if stored is None else decode_metadata(self._bucket.get(stored.name))

    def bounds(self, topic: str, queue_id: int, *, passes_damage: bool = False) -> tuple[int, int] | None:
        """(first offset, next offset) of the queue's records in the bucket; None if there are none.

        ``passes_damage``: as for `locate`.
        """
        newest = self._newest(self._segments, topic, queue_id)
        if newest is None:
            return None
        first = self.locate(topic, queue_id, 0, passes_damage=passes_damage)
        return None if first is None else (first.row.first_offset, newest.next_offset)

    def locate(self, topic: str, queue_id: int, offset: int, *, passes_damage: bool = False) -> Located | None:
        """The segment with the first record of the queue at or after ``offset``; None if the bucket has none.

        ``passes_damage``: segments whose indexes cannot be read count as if they had no such record.
        """
        segments = self._segments
        newest = self._newest(segments, topic, queue_id)
        if newest is None:
            return None
        hint = self._hints.get((topic, queue_id), lambda: 0)
        if (near := self._located_at(segments, hint, newest, offset)) is not None:
            return near
        while offset < newest.next_offset:
            number = self._first_with(segments, newest, _next_offset, offset + 1, hint, passes_damage=passes_damage)
            row = self._row(segments, number, newest)
            if segments.is_there(segments.at(number), row):
                self._hints.put((topic, queue_id), number)
                return Located(segments.at(number), row)
            hint = segments.next_with_class(number + 1, row.retention_class)
            if newest.class_since > row.class_since:
                change = self._first_with(
                    segments, newest, _class_since, row.class_since + 1, number + 1, passes_damage=passes_damage
                )
                hint = min(hint, change)
            if hint == len(segments):
                return None
            if passes_damage:
                hint = self._readable_from(segments, hint)
            offset = max(offset + 1, self._row(segments, hint, newest).first_offset)
        return None

    def _located_at(self, segments: "_Segments", number: int, newest: QueueRow, offset: int) -> Located | None:
        """The segment with this number, if it has the message at ``offset``: a reader is mostly where it was before."""
        if number >= len(segments):
            return None
        segment = segments.at(number)
        with suppress(DamagedObject, NoSuchObject):
            row = self.table(segment).find(newest.topic, newest.queue_id)
            if (
                row is not None
                and row.birth >= newest.birth
                and row.first_offset <= offset < row.next_offset
                and segments.is_there(segment, row)
            ):
                return Located(segment, row)
        return None

    def stretches(self, located: Located, first_offset: int, end_offset: int) -> range:
        """The numbers of the stretches with the records of these offsets, ``end_offset`` not included."""
        return self.stretches_of(located).numbers(first_offset, end_offset)

    def stretches_of(self, located: Located) -> QueueStretches:
        """All stretches of the queue in the segment."""
        segment, row = located
        head = self.table(segment).head
        name = segment.index.name

        def read() -> QueueStretches:
            with named(name):
                return QueueStretches.decode(head, row, self._bucket.get_range(name, *head.rows_at(row)))

        return self._cache.get((name, row.first_row), read, _stretches_bytes)

    def read(self, located: Located, numbers: range) -> bytes:
        """The bytes of the stretches with these numbers: one request to the bucket. Raises DamagedObject."""
        found = self.stretches_of(located)
        name = class_object(located)
        positions = found.positions[numbers.start : numbers.stop + 1].tolist()
        start = positions[0]
        data = self._bucket.get_range(name, start, positions[-1] - start)
        whole = memoryview(data)
        crcs = found.crcs[numbers.start : numbers.stop].tolist()
        for (begin, end), crc in zip(pairwise(positions), crcs, strict=True):
            if large_crc32(whole[begin - start : end - start]) != crc:
                raise DamagedObject(f"{name}: the {end - begin} bytes from {begin} on are damaged")
        return data

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int) -> int | None:
        """The first offset with this store time or a later one; None if the bucket has none."""
        segments = self._segments
        newest = self._newest(segments, topic, queue_id)
        if newest is None or newest.latest_ms < timestamp_ms:
            return None
        number = self._first_with(segments, newest, _latest_ms, timestamp_ms, 0)
        located = self.locate(topic, queue_id, self._row(segments, number, newest).first_offset)
        # Mostly the first stretch has the record. A later stretch has it if retention has removed the first record of
        # this time, and store times went back after that record.
        while located is not None:
            found = self.stretches_of(located)
            first = found.at_time(timestamp_ms) if located.row.last_ms >= timestamp_ms else len(found)
            for number in range(first, len(found)):
                for record in stored_records(self.read(located, range(number, number + 1))):
                    if record.store_ms >= timestamp_ms:
                        return record.queue_offset
            located = self.locate(topic, queue_id, located.row.next_offset)
        return None

    def record_at(self, physical: int) -> bytes | None:
        """The record at this place of the log; None if none begins there, or retention has removed it."""
        segment = self.segment_at(physical)
        if segment is None:
            return None
        table = self.table(segment)
        directory = self._cache.get(("places", segment.keys.name), lambda: self._directory(segment), _directory_bytes)
        place = physical - segment.start
        block = directory.block_range(place)
        number = directory.queue_number(place, self._bucket.get_range(segment.keys.name, *block)) if block else None
        if number is None:
            return None
        located = Located(segment, table.row(number))
        if not has_class(segment, located.row) or self._segments.hides(located.row.topic, physical):
            return None
        found = self.stretches_of(located)
        records = self._records(located, found.at_physical(physical), physical=physical)
        return records[0][1] if records else None

    def with_key(
        self,
        topic: str,
        key: str,
        begin_ms: int,
        end_ms: int,
        limit: int,
        *,
        unique: bool = False,
        now_ms: int = 0,
        before: int | None = None,
        is_over: Callable[[], bool] = lambda: False,
    ) -> KeyRecords:
        """Records of ``topic`` whose key has the hash of ``key``, stored in this time, newest first: compare the keys.

        An inner batch with such a message is one record. ``unique``: ``key`` is a unique key, which tells when
        it was made: the segments of this time are searched first (``now_ms``: the present), then all others, as the key
        does not tell its month, and some keys have no time. The search ends with the segment that has the key.
        ``before``: only records before this place of the log. ``is_over``: whether the time for the search is over.
        Segments whose keys, index or records are damaged are passed by.
        """
        hash_ = key_hash(topic, key.encode())
        segments = self._segments
        numbers = segments.of_time(begin_ms, end_ms, before)
        near: Sequence[int] = ()
        if unique and (made_ms := _made_ms(key, now_ms)) is not None:
            near = segments.nearest_first(made_ms, begin_ms, end_ms, before)
            numbers = chain(near, filterfalse(frozenset(near).__contains__, numbers))
        found: list[bytes] = []
        looked, last_ms, damaged = 0, end_ms, 0

        def ended(why: str, left_ms: int) -> KeyRecords:
            # Newest first, an earlier end of the time goes on with the search; nearest first, it would not.
            if is_near:
                return KeyRecords(found, f"{why}; ask again")
            return KeyRecords(found, f"{why}; to go on ask for messages stored until {left_ms}", left_ms)

        for count, (number, places) in enumerate(self._places_in(segments, numbers, hash_)):
            segment = segments.at(number)
            is_near = count < len(near)
            if is_over():
                return ended("the time was over", last_ms)
            if not is_near:
                last_ms = segment.first_ms
            try:
                if isinstance(places, BucketError):
                    raise places
                for physical, store_ms, record in self._at_places(segments, segment, topic, places):
                    looked += 1
                    is_early = before is None or physical < before
                    if is_early and begin_ms <= store_ms <= end_ms:
                        found.append(record)
                    if len(found) == limit:
                        return KeyRecords(found)
                    if looked == MAX_RECORDS_OF_QUERY:
                        return ended(f"{looked} messages were read", store_ms)
            except (DamagedObject, NoSuchObject):
                damaged += 1
            if unique and found:
                break
        if damaged:
            return KeyRecords(found, f"{damaged} files of the log in the bucket are damaged: see mqadmin tierVerify")
        return KeyRecords(found)

    def _places_in(
        self, segments: "_Segments", numbers: Iterator[int], hash_: int
    ) -> Iterator[tuple[int, Columns | DamagedObject | NoSuchObject]]:
        """(number of a segment, places of the keys with this hash, or why they cannot be read), in this order."""

        def places(number: int, *, is_likely: bool) -> Columns | DamagedObject | NoSuchObject:
            segment = segments.at(number)
            try:
                # Of a segment with the key, all queues are needed; of others, the 96 bytes of the head are enough.
                head = self.table(segment).head if is_likely else self._head(segment)
                return self._key_places(segment, head, hash_)
            except (DamagedObject, NoSuchObject) as error:
                return error

        # The first segments have the key, as a rule.
        count = 1
        with ThreadPoolExecutor(_KEY_THREADS, "keys") as pool:
            while some := list(islice(numbers, count)):
                is_likely = count < _KEY_THREADS
                yield from zip(some, pool.map(partial(places, is_likely=is_likely), some), strict=True)
                count = min(2 * count, _KEY_THREADS)

    def _at_places(
        self, segments: "_Segments", segment: Segment, topic: str, places: Columns
    ) -> Iterator[tuple[int, int, bytes]]:
        """(place in the log, store time, bytes) of the records of a topic at these places of keys, newest first."""
        if not len(places):
            return iter(())
        queues = [
            self._at_positions(Located(segment, row), positions)
            for row, positions in self.table(segment).at_places(places)
            if row.topic == topic and segments.is_there(segment, row)
        ]
        return heapq.merge(*queues, reverse=True)

    def _key_places(self, segment: Segment, head: IndexHead, hash_: int) -> Columns:
        """The places of the keys with this hash in a segment; ``head``: of its index."""
        page = page_range(head.keys, hash_)
        if page is None:
            return np.empty(0, np.int64)
        name = segment.keys.name
        places, more = places_of(self._bucket.get_range(name, *page), hash_)
        if more is None:
            return places
        return np.concatenate((places, places_of_more(self._bucket.get_range(name, *more), hash_)))

    def _at_positions(self, located: Located, positions: Columns) -> Iterator[tuple[int, int, bytes]]:
        """As `_at_places`, of the records of a queue that begin at these positions, newest first."""
        found = self.stretches_of(located)
        numbers = found.at_positions(positions)
        for number in np.unique(numbers)[::-1].tolist():
            at = set((positions[numbers == number] - found.positions[number]).tolist())
            for record, raw in reversed(self._records(located, number, at=at)):
                yield record.physical_offset, record.store_ms, raw

    def _records(
        self, located: Located, number: int, *, at: Collection[int] = (), physical: int | None = None
    ) -> list[tuple[StoredRecord, bytes]]:
        """The records ``at`` these bytes of stretch ``number``, or at this place of the log, with their bytes.

        Records that a tombstone hides are left out.
        """
        data = self.read(located, range(number, number + 1))
        return [
            (record, data[record.at : record.at + record.size])
            for record in stored_records(data)
            if (record.at in at or record.physical_offset == physical)
            and not self._segments.hides(located.row.topic, record.physical_offset)
        ]

    def _newest(self, segments: "_Segments", topic: str, queue_id: int) -> QueueRow | None:
        """The row of a queue in the newest segment; None if the queue never had records, or its topic was deleted."""
        if not len(segments):
            return None
        row = self.table(segments.at(len(segments) - 1)).find(topic, queue_id)
        return None if row is None or segments.is_deleted(row) else row

    def _readable_from(self, segments: "_Segments", number: int) -> int:
        """The number of the first segment from ``number`` on whose index can be read; the newest if there is none."""
        newest = len(segments) - 1
        for each in range(number, newest):
            with suppress(DamagedObject, NoSuchObject):
                self.table(segments.at(each))
                return each
        return newest

    def _row(self, segments: "_Segments", number: int, queue: QueueRow) -> QueueRow:
        """The row of a queue in a segment in which the queue has one."""
        segment = segments.at(number)
        row = self.table(segment).find(queue.topic, queue.queue_id)
        if row is None:
            raise DamagedObject(f"{segment.index.name} lacks queue {queue.queue_id} of {queue.topic}")
        return row

    def _first_with(
        self,
        segments: "_Segments",
        newest: QueueRow,
        value_of: Callable[[QueueRow], int],
        least: int,
        hint: int,
        *,
        passes_damage: bool = False,
    ) -> int:
        """The number of the first segment in which ``value_of`` the row of this life of the queue is ``least`` or more.

        The value never falls from one segment to the next, and is ``least`` or more in the newest segment.
        ``hint``: where to look first. An index that cannot be read is skipped, unless the answer may be its segment:
        then the error of the read is raised, or with ``passes_damage`` the answer is the next segment.
        """
        errors: dict[int, DamagedObject | NoSuchObject] = {}

        def is_at(number: int) -> bool | None:
            if number in errors:
                return None
            try:
                row = self.table(segments.at(number)).find(newest.topic, newest.queue_id)
            except (DamagedObject, NoSuchObject) as error:
                errors[number] = error
                return None
            return row is not None and row.birth >= newest.birth and value_of(row) >= least

        low, high = -1, len(segments) - 1
        for near in (hint, hint + 1, hint - 1):
            if low < near < high and (found := is_at(near)) is not None:
                low, high = (low, near) if found else (near, high)
        while high - low > 1:
            middle = (low + high) // 2
            for number in chain(range(middle, high), range(middle - 1, low, -1)):
                if (found := is_at(number)) is not None:
                    low, high = (low, number) if found else (number, high)
                    break
            else:
                # The offsets of a queue ascend: if `high` begins before ``least``, no segment before `high` has it.
                if passes_damage or (
                    value_of is _next_offset and self._row(segments, high, newest).first_offset < least
                ):
                    break
                raise errors[high - 1]
        return high

    def _read_table(self, segment: Segment) -> QueueTable:
        index = segment.index
        with self._reading(index.name):
            data = self._bucket.get_range(index.name, 0, min(index.size, _FIRST_READ_BYTES))
            head = _head_of(segment, data)
            if len(data) < head.queues_end:
                data += self._bucket.get_range(index.name, len(data), head.queues_end - len(data))
            with named(index.name):
                return QueueTable.decode(head, data[HEAD_BYTES : head.queues_end])

    def _head(self, segment: Segment) -> IndexHead:
        """The head of the index of a segment."""
        name = segment.index.name

        def read() -> IndexHead:
            table: QueueTable | None = self._cache.kept(name)
            return _head_of(segment, self._bucket.get_range(name, 0, HEAD_BYTES)) if table is None else table.head

        return self._cache.get(("head", name), read, lambda head: _HEAD_MEMORY)

    def _directory(self, segment: Segment) -> Directory:
        name, size = segment.keys.name, segment.keys.size
        tail = min(directory_size(segment.start, segment.end), size)
        return Directory(size, self._bucket.get_range(name, size - tail, tail))

    def _span(self, name: str) -> tuple[Segment, ...]:
        def read() -> tuple[Segment, ...]:
            with self._reading(name):
                return decode_span(self._bucket.get(name))

        return self._spans.get(name, read)

    @contextmanager
    def _reading(self, name: str) -> Iterator[None]:
        """The block reads the object ``name``: give its error the name, or tell `on_read`."""
        try:
            yield
        except BucketError as error:
            error.object_name = name
            raise
        self.on_read(name)


def _head_of(segment: Segment, data: bytes) -> IndexHead:
    """The head in the first bytes of the index of a segment. Raises DamagedObject."""
    with named(segment.index.name):
        head = IndexHead.decode(data)
    if (head.start, head.end) != (segment.start, segment.end):
        raise DamagedObject(f"{segment.index.name} is the index of bytes {head.start} to {head.end}")
    return head


def class_object(located: Located) -> str:
    """The name of the object with the records of the queue."""
    for number, stored in located.segment.classes:
        if number == located.row.retention_class:
            return stored.name
    raise NoSuchObject(f"the records of {located.row.topic} in {located.segment.folder} are no longer there")


def has_class(segment: Segment, row: QueueRow) -> bool:
    """Whether retention has left the records of the row's class in the segment."""
    return any(number == row.retention_class for number, _ in segment.classes)


def _ignored(name: str) -> None:
    """Does nothing: the default of `TierView.on_read`."""


def _next_offset(row: QueueRow) -> int:
    return row.next_offset


def _class_since(row: QueueRow) -> int:
    return row.class_since


def _latest_ms(row: QueueRow) -> int:
    return row.latest_ms


def _table_bytes(table: QueueTable) -> int:
    return table.nbytes


def _stretches_bytes(stretches: QueueStretches) -> int:
    return stretches.nbytes


def _directory_bytes(directory: Directory) -> int:
    return directory.nbytes


def _made_ms(key: str, now_ms: int) -> int | None:
    """When a unique key was made; None if ``key`` is not as clients make them."""
    try:
        return parse_unique_key(key, now_ms).made_at_ms
    except ValueError:
        return None


class _Segments:
    """The segments of one manifest, numbered from the oldest on. A span is read when one of its segments is needed."""

    def __init__(self, manifest: Manifest | None, read_span: Callable[[str], Sequence[Segment]]) -> None:
        self._spans = manifest.spans if manifest else ()
        self._last = manifest.segments if manifest else ()
        self._read_span = read_span
        # By topic: the physical offset before which its records are deleted.
        self._tombstones = {each.topic: each.physical_offset for each in manifest.tombstones} if manifest else {}
        # The number of the first segment of each span, and of the first segment that is in no span.
        self._firsts = [0]
        for span in self._spans:
            self._firsts.append(self._firsts[-1] + span.segments)

    def __len__(self) -> int:
        return self._firsts[-1] + len(self._last)

    def at(self, number: int) -> Segment:
        """The segment with this number."""
        if number >= self._firsts[-1]:
            return self._last[number - self._firsts[-1]]
        span = bisect_right(self._firsts, number) - 1
        return self._read_span(self._spans[span].stored.name)[number - self._firsts[span]]

    def number_at(self, physical: int) -> int | None:
        """The number of the segment with this byte of the log."""
        if self._last and self._last[0].start <= physical < self._last[-1].end:
            return self._firsts[-1] + bisect_right(self._last, physical, key=lambda each: each.start) - 1
        for span, first in zip(self._spans, self._firsts, strict=False):
            if span.start <= physical < span.end:
                segments = self._read_span(span.stored.name)
                return first + bisect_right(segments, physical, key=lambda each: each.start) - 1
        return None

    def of_time(self, begin_ms: int, end_ms: int, before: int | None) -> Iterator[int]:
        """The numbers of the segments with records of this time, newest first, that begin before ``before``.

        Spans of other times are not read.
        """
        spans = list(zip(self._firsts, [*self._spans, None], strict=True))
        for first, span in reversed(spans):
            if span is not None and (span.first_ms > end_ms or span.last_ms < begin_ms):
                continue
            for number in reversed(range(first, first + (span.segments if span else len(self._last)))):
                if _is_of_time(self.at(number), begin_ms, end_ms, before):
                    yield number

    def nearest_first(self, time_ms: int, begin_ms: int, end_ms: int, before: int | None) -> Sequence[int]:
        """As `of_time`, of the segments around ``time_ms``, in the order of their distance from it.

        One span is read, or two.
        """
        span = bisect_left(self._spans, time_ms, key=lambda each: each.last_ms)
        low, high = self._firsts[span], self._firsts[span + 1] if span < len(self._spans) else len(self)
        middle = bisect_left(range(high), time_ms, low, key=lambda number: self.at(number).last_ms)
        first = max(middle - NEAR_SEGMENTS, 0)
        end = min(middle + NEAR_SEGMENTS + 1, len(self))

        def distance(number: int) -> int:
            segment = self.at(number)
            return max(segment.first_ms - time_ms, time_ms - segment.last_ms, 0)

        near = [
            number for number in reversed(range(first, end)) if _is_of_time(self.at(number), begin_ms, end_ms, before)
        ]
        return sorted(near, key=distance)

    def hides(self, topic: str, physical: int) -> bool:
        """Whether a record at this place belongs to an earlier topic of its name, which was deleted."""
        return physical < self._tombstones.get(topic, 0)

    def is_deleted(self, row: QueueRow) -> bool:
        """Whether all records up to this row's last one are of a deleted topic."""
        return self.hides(row.topic, row.last_physical)

    def is_there(self, segment: Segment, row: QueueRow) -> bool:
        """Whether the segment has records of the row, and not all are of a deleted topic."""
        return row.records > 0 and not self.is_deleted(row) and has_class(segment, row)

    def next_with_class(self, number: int, retention_class: int) -> int:
        """The first segment from ``number`` on that still has records of a class; the count if there is none."""
        while number < len(self) and all(each != retention_class for each, _ in self.at(number).classes):
            number += 1
        return number


def _is_of_time(segment: Segment, begin_ms: int, end_ms: int, before: int | None) -> bool:
    is_early = before is None or segment.start < before
    return is_early and segment.first_ms <= end_ms and segment.last_ms >= begin_ms


class _Cache:
    """The values that were used last, up to ``most`` units of memory; without a size a value is one unit."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._found: OrderedDict[Any, tuple[Any, int]] = OrderedDict()
        self._used = 0

    def get(self, key: Any, read: Callable[[], T], size_of: Callable[[T], int] = lambda value: 1) -> T:
        """The value of ``key``, from ``read`` if it is not kept. Several threads may read the same value at once."""
        kept: T | None = self.kept(key)
        if kept is not None:
            return kept
        value = read()
        self.put(key, value, size_of(value))
        return value

    def kept(self, key: Any) -> Any:
        """The value of ``key``; None if it is not kept."""
        with self._lock:
            if key not in self._found:
                return None
            self._found.move_to_end(key)
            return self._found[key][0]

    def put(self, key: Any, value: Any, size: int = 1) -> None:
        """Keep ``value``; the values that were not used for the longest time go."""
        with self._lock:
            if (old := self._found.pop(key, None)) is not None:
                self._used -= old[1]
            self._found[key] = value, size
            self._used += size
            while self._used > self._most and len(self._found) > 1:
                _, (_, gone) = self._found.popitem(last=False)
                self._used -= gone
