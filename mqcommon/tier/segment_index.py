"""The index of a segment: where each queue's records are in the objects of the classes. Needs numpy.

A queue has a row of `QUEUE`, and for each 64 KiB of its records a row of `STRETCH`. A stretch has whole records, whose
CRC-32 is compared when they are read. The table has all queues of the set that were ever seen, also those without
records in this segment: so bisection over segments finds an offset, and a queue that is missing begins later.
A queue has a life: its topic may be deleted and made again, and its offsets begin with 0 again. ``birth`` is the
physical offset of the first record of the life. Of two lives the one with the greater birth counts.
Neighbours: index_builder.py (makes it), keys.py, view.py (reads).
"""

import struct
import zlib
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, Final, NamedTuple

import cbor2
import numpy as np
from numpy.typing import NDArray

from skylark.mqcommon.crc import large_crc32
from skylark.mqcommon.tier.bucket import DamagedObject, NewerFormat

Columns = NDArray[Any]
#: A stretch ends with the record that reaches a multiple of this many bytes of its queue.
STRETCH_BYTES: Final = 64 * 1024
HEAD_BYTES: Final = 96
#: A file of the log has at most this many bytes: a place in the file has 4 bytes here and in the keys.
MAX_SEGMENT_BYTES: Final = (1 << 32) - 1
_MAGIC: Final = b"SKTI"
_VERSION: Final = 1
_ZLIB: Final = 1
# The parts of an index: head | queues (zlib) | stretches | rest (zlib). Numbers are little-endian.
# head: magic 4, version 2, codec 2, start 8, end 8, bytes of queues 4, topics 4, rows of queues 4, rows of stretches 4,
#   bytes of rest 4, CRC of queues 4, CRC of rest 4, rows in a page of keys 4, pages of keys 4,
#   objects of classes 4, zeros 28, CRC of the head 4.
# queues: the lengths of the topics 2 each, the topics, rows of QUEUE sorted by topic and queue id, a row of CLASS for
#   each object.
# stretches: rows of STRETCH. Each queue's rows have a CRC of their own, so a reader fetches its queue's rows only.
# rest: bytes of the file that are neither sound records nor zeros, so that the file can be made again byte for byte.
_HEAD = struct.Struct("<4sHHqqIIIIIIIIII28x")
_CRC = struct.Struct("<I")
LEVEL: Final = 1
_MAX_TABLE_BYTES: Final = 1024 * 1024 * 1024
QUEUE: Final = np.dtype(
    [
        ("topic", "<u4"),
        ("queue_id", "<i4"),
        ("retention_class", "<i4"),
        ("records", "<u4"),
        ("first_offset", "<i8"),
        ("next_offset", "<i8"),
        ("position", "<u8"),
        ("size", "<u8"),
        ("first_ms", "<i8"),
        ("last_ms", "<i8"),
        ("latest_ms", "<i8"),
        ("birth", "<i8"),
        ("first_physical", "<i8"),
        ("last_physical", "<i8"),
        ("class_since", "<i8"),
        ("first_row", "<u4"),
        ("rows", "<u4"),
        ("rows_crc", "<u4"),
    ]
)
STRETCH: Final = np.dtype(
    [
        ("first_offset", "<i8"),
        ("latest_ms", "<i8"),
        ("position", "<u8"),
        ("physical", "<u4"),
        ("crc", "<u4"),
    ]
)
CLASS: Final = np.dtype([("retention_class", "<i4"), ("bytes", "<u8")])


class QueueRow(NamedTuple):
    """One queue in one segment.

    ``first_offset`` and ``next_offset``: of the records here; when ``records`` is 0, both are the next offset of the
    segments before. ``position`` and ``size``: its records' bytes in the object of ``retention_class``.
    ``first_ms`` and ``last_ms``: least and greatest store time here. ``latest_ms``: greatest store time of the life up
    to the end of this segment. ``birth``: the physical offset of the first record of the life. ``first_physical``,
    ``last_physical``: of the first and the last record here; when ``records`` is 0, both are of the last record of the
    segments before. ``class_since``: the physical offset from which on the queue's records are in this class.
    ``first_row``, ``rows``, ``rows_crc``: its stretches.
    """

    topic: str
    queue_id: int
    retention_class: int
    records: int
    first_offset: int
    next_offset: int
    position: int
    size: int
    first_ms: int
    last_ms: int
    latest_ms: int
    birth: int
    first_physical: int
    last_physical: int
    class_since: int
    first_row: int
    rows: int
    rows_crc: int


class Stretch(NamedTuple):
    """Some 64 KiB of a queue's records. ``position``: in the object of the class. ``crc``: CRC-32 of the bytes.

    ``first_offset``: the queue offset of its first record. ``first_physical``: that record's place in the log.
    ``latest_ms``: the greatest store time of the queue's life up to the end of the stretch.
    """

    position: int
    size: int
    crc: int
    first_offset: int
    first_physical: int
    latest_ms: int


class KeyPages(NamedTuple):
    """How the object with the keys is divided: see keys.py."""

    page_rows: int
    pages: int


class IndexHead(NamedTuple):
    """The first `HEAD_BYTES` of an index: where its parts are, and how the object with the keys is divided."""

    start: int
    end: int
    queues_bytes: int
    topics: int
    queue_rows: int
    stretch_rows: int
    rest_bytes: int
    queues_crc: int
    rest_crc: int
    key_page_rows: int
    key_pages: int
    classes: int

    @property
    def keys(self) -> KeyPages:
        """How the object with the keys is divided."""
        return KeyPages(self.key_page_rows, self.key_pages)

    @property
    def queues_end(self) -> int:
        """Where the queues end, and the stretches begin."""
        return HEAD_BYTES + self.queues_bytes

    def rows_at(self, row: QueueRow) -> tuple[int, int]:
        """(start, bytes) of the stretches of a queue in the object."""
        return self.queues_end + row.first_row * STRETCH.itemsize, row.rows * STRETCH.itemsize

    @property
    def stretches_end(self) -> int:
        """Where the stretches end, and the rest begins."""
        return self.queues_end + self.stretch_rows * STRETCH.itemsize

    def encode(self) -> bytes:
        """The bytes of the head."""
        head = _HEAD.pack(_MAGIC, _VERSION, _ZLIB, *self)
        return head + _CRC.pack(large_crc32(head))

    @classmethod
    def decode(cls, data: bytes) -> "IndexHead":
        """The head in the first bytes of an index. Raises DamagedObject."""
        if len(data) < HEAD_BYTES or data[:4] != _MAGIC:
            raise DamagedObject("an index does not begin as one")
        if large_crc32(data[: _HEAD.size]) != _CRC.unpack_from(data, _HEAD.size)[0]:
            raise DamagedObject("the head of an index is damaged")
        _, version, codec, *fields = _HEAD.unpack_from(data)
        if version > _VERSION or codec != _ZLIB:
            raise NewerFormat(f"an index has format {version} and codec {codec}: use a newer Skylark, which reads it")
        return cls(*fields)


class QueueTable:
    """The queues of an index."""

    __slots__ = ("_queue_ids", "_topic_numbers", "_topics", "class_bytes", "head", "rows")

    def __init__(
        self, head: IndexHead, topics: Sequence[str], rows: Columns, class_bytes: Sequence[tuple[int, int]]
    ) -> None:
        self.head = head
        self._topics = topics
        self.rows = rows
        # Columns of their own are searched faster.
        self._topic_numbers = rows["topic"].astype(np.int64)
        self._queue_ids = rows["queue_id"].astype(np.int64)
        #: (class, bytes of its object), in the order in which places of keys count them.
        self.class_bytes = class_bytes

    @classmethod
    def decode(cls, head: IndexHead, data: bytes) -> "QueueTable":
        """The table in the bytes between the head and the stretches. Raises DamagedObject."""
        if len(data) != head.queues_bytes or large_crc32(data) != head.queues_crc:
            raise DamagedObject("the queues of an index are damaged")
        data = _decompressed(data)
        lengths_end = 2 * head.topics
        lengths = np.frombuffer(data, "<u2", head.topics)
        ends = np.cumsum(lengths, dtype=np.int64) + lengths_end
        names_end = int(ends[-1]) if head.topics else lengths_end
        if len(data) != names_end + head.queue_rows * QUEUE.itemsize + head.classes * CLASS.itemsize:
            raise DamagedObject("the queues of an index have another size than its head says")
        starts = (ends - lengths).tolist()
        topics = [data[start:end].decode() for start, end in zip(starts, ends.tolist(), strict=True)]
        rows = np.frombuffer(data, QUEUE, head.queue_rows, names_end)
        classes = np.frombuffer(data, CLASS, head.classes, names_end + rows.nbytes)
        return cls(head, topics, rows, classes.tolist())

    @property
    def nbytes(self) -> int:
        """Some bytes of memory that the table takes."""
        columns = self.rows.nbytes + self._topic_numbers.nbytes + self._queue_ids.nbytes
        return int(columns) + sum([60 + len(topic) for topic in self._topics]) + 500

    def find(self, topic: str, queue_id: int) -> QueueRow | None:
        """The row of a queue; None if no segment up to this one has a record of it."""
        first, end = self._of_topic(topic)
        place = first + int(self._queue_ids[first:end].searchsorted(queue_id))
        if place == end or self._queue_ids[place] != queue_id:
            return None
        return self.row(place)

    def row(self, place: int) -> QueueRow:
        """The row with this number."""
        topic, *fields = self.rows[place].item()
        return QueueRow(self._topics[topic], *fields)

    def at_places(self, places: Columns) -> list[tuple[QueueRow, Columns]]:
        """The queues that have these places (see keys.py), each with the positions of its places in its object."""
        with_records = np.flatnonzero(self.rows["records"])
        rows = self.rows[with_records]
        begins = rows["position"].astype(np.int64)
        class_begins = class_places(self.class_bytes)
        for number, begin in class_begins.items():
            begins[rows["retention_class"] == number] += begin
        order = np.argsort(begins)
        at = np.searchsorted(begins[order], places, "right") - 1
        found: list[tuple[QueueRow, Columns]] = []
        for number in np.unique(at[at >= 0]).tolist():
            row = self.row(int(with_records[order[number]]))
            positions = places[at == number] - class_begins[row.retention_class]
            found.append((row, positions[positions < row.position + row.size]))
        return found

    def queues(self) -> list[QueueRow]:
        """All rows, sorted by topic and queue."""
        return [QueueRow(self._topics[topic], *fields) for topic, *fields in self.rows.tolist()]

    def _of_topic(self, topic: str) -> tuple[int, int]:
        number = bisect_left(self._topics, topic)
        if number == len(self._topics) or self._topics[number] != topic:
            return 0, 0
        first, end = self._topic_numbers.searchsorted((number, number + 1)).tolist()
        return first, end


def class_places(class_bytes: Sequence[tuple[int, int]]) -> dict[int, int]:
    """By class, where its object begins among all objects' bytes; ``class_bytes`` in the order of the classes."""
    found: dict[int, int] = {}
    at = 0
    for number, size in class_bytes:
        found[number] = at
        at += size
    return found


class SegmentIndex:
    """The whole index of a segment, in memory."""

    __slots__ = ("_stretches", "rest", "table")

    def __init__(self, table: QueueTable, stretches: bytes, rest: Sequence[tuple[int, bytes]]) -> None:
        self.table = table
        self._stretches = stretches
        #: (physical offset, bytes) of what is neither a sound record nor zeros.
        self.rest = rest

    @classmethod
    def decode(cls, data: bytes) -> "SegmentIndex":
        """The index in the bytes of its object. Raises DamagedObject."""
        head = IndexHead.decode(data)
        rest = decode_rest(data)
        table = QueueTable.decode(head, data[HEAD_BYTES : head.queues_end])
        return cls(table, data[head.queues_end : head.stretches_end], rest)

    def queues(self) -> list[QueueRow]:
        """All queues, sorted by topic and queue id."""
        return self.table.queues()

    def find(self, topic: str, queue_id: int) -> QueueRow | None:
        """The row of a queue; None if no segment up to this one has a record of it."""
        return self.table.find(topic, queue_id)

    def stretches(self, row: QueueRow, first_offset: int, end_offset: int) -> list[Stretch]:
        """The stretches with the records of these offsets, ``end_offset`` not included. Raises DamagedObject."""
        at = row.first_row * STRETCH.itemsize
        data = self._stretches[at : at + row.rows * STRETCH.itemsize]
        return QueueStretches.decode(self.table.head, row, data).between(first_offset, end_offset)

    def begins(self, retention_class: int) -> NDArray[np.int64]:
        """Where the stretches begin in the object of this class, in ascending order. No CRC proves these rows.

        The object may have records after the last stretch: hidden records.
        """
        queues = self.table.rows
        queues = queues[(queues["records"] > 0) & (queues["retention_class"] == retention_class)]
        positions = np.frombuffer(self._stretches, STRETCH)["position"].astype(np.int64)
        parts = [
            positions[first : first + count]
            for first, count in zip(queues["first_row"].tolist(), queues["rows"].tolist(), strict=True)
        ]
        return np.sort(np.concatenate([np.empty(0, np.int64), *parts]))


def decode_rest(data: bytes) -> list[tuple[int, bytes]]:
    """`SegmentIndex.rest` in the bytes of an index, whose other parts may be damaged. Raises DamagedObject."""
    head = IndexHead.decode(data)
    if len(data) != head.stretches_end + head.rest_bytes:
        raise DamagedObject(f"an index has {len(data)} bytes, not those that its head says")
    rest = data[head.stretches_end :]
    if large_crc32(rest) != head.rest_crc:
        raise DamagedObject("the rest in an index is damaged")
    try:
        return [(int(start), bytes(piece)) for start, piece in cbor2.loads(_decompressed(rest))]
    except (cbor2.CBORDecodeError, ValueError, TypeError) as error:
        raise DamagedObject(f"the rest in an index cannot be read: {error}") from None


class QueueStretches:
    """The stretches of one queue in a segment, numbered from 0 on.

    ``positions`` and ``offsets``: where each stretch begins in the object of the class, and with which queue offset;
    both end with the end of the last stretch. ``crcs``: CRC-32 of the bytes of each.
    """

    __slots__ = ("_rows", "_start", "crcs", "offsets", "positions", "row")

    def __init__(self, start: int, row: QueueRow, rows: Columns) -> None:
        self.row = row
        self._rows = rows
        self.positions = np.append(rows["position"].astype(np.int64), row.position + row.size)
        self.offsets = np.append(rows["first_offset"], row.next_offset)
        self.crcs = rows["crc"]
        self._start = start

    @classmethod
    def decode(cls, head: IndexHead, row: QueueRow, data: bytes) -> "QueueStretches":
        """The stretches in the bytes at `IndexHead.rows_at`. Raises DamagedObject."""
        if len(data) != row.rows * STRETCH.itemsize or large_crc32(data) != row.rows_crc:
            raise DamagedObject(f"the index of queue {row.queue_id} of {row.topic} is damaged")
        return cls(head.start, row, np.frombuffer(data, STRETCH))

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def nbytes(self) -> int:
        """Some bytes of memory that the stretches take."""
        return 500 + int(self._rows.nbytes + self.positions.nbytes + self.offsets.nbytes)

    def stretch(self, number: int) -> Stretch:
        """The stretch with this number."""
        return self._listed(range(number, number + 1))[0]

    def between(self, first_offset: int, end_offset: int) -> list[Stretch]:
        """The stretches with the records of these offsets, ``end_offset`` not included."""
        return self._listed(self.numbers(first_offset, end_offset))

    def _listed(self, numbers: range) -> list[Stretch]:
        rows = self._rows[numbers.start : numbers.stop].tolist()
        ends = self.positions[numbers.start + 1 : numbers.stop + 1].tolist()
        return [
            Stretch(position, end - position, crc, first_offset, self._start + physical, latest_ms)
            for (first_offset, latest_ms, position, physical, crc), end in zip(rows, ends, strict=True)
        ]

    def numbers(self, first_offset: int, end_offset: int) -> range:
        """The numbers of the stretches with the records of these offsets, ``end_offset`` not included."""
        if first_offset >= min(end_offset, self.row.next_offset):
            return range(0)
        first = max(int(self.offsets[:-1].searchsorted(first_offset, "right")) - 1, 0)
        return range(first, int(self.offsets[:-1].searchsorted(end_offset)))

    def pieces(self, numbers: range, piece_bytes: int) -> list[tuple[int, int]]:
        """(position, bytes) of the pieces of the queue's records in the segment that have these stretches.

        A stretch is in the piece in whose multiple of ``piece_bytes`` the stretch begins, so all readers see the same
        pieces, whatever they ask for.
        """
        if not numbers:
            return []
        begins = self.positions[:-1]
        first, last = (begins[[numbers[0], numbers[-1]]] - self.row.position) // piece_bytes
        multiples = self.row.position + piece_bytes * np.arange(first, last + 2)
        edges = self.positions[begins.searchsorted(multiples)].tolist()
        return [(begin, end - begin) for begin, end in pairwise(edges) if begin < end]

    def fitting(self, first: int, most_bytes: int, piece_bytes: int) -> range:
        """The numbers from ``first`` on of whole `pieces`, ``most_bytes`` in all, but at least one piece."""
        begins, base = self.positions[:-1], self.row.position
        piece = (int(begins[first]) - base) // piece_bytes
        begin = int(begins[begins.searchsorted(base + piece * piece_bytes)])
        end = int(self.positions.searchsorted(begin + most_bytes, "right")) - 1
        if end < len(begins):
            last = max((int(begins[end]) - base) // piece_bytes, piece + 1)
            end = int(begins.searchsorted(base + last * piece_bytes))
        return range(first, end)

    def at_time(self, timestamp_ms: int) -> int:
        """The number of the first stretch with a record of this store time or later; the count if there is none."""
        return int(np.searchsorted(self._rows["latest_ms"], timestamp_ms))

    def at_positions(self, positions: Columns) -> Columns:
        """For each byte of the object of the class the number of the stretch that has it."""
        numbers: Columns = self.positions[:-1].searchsorted(positions, "right") - 1
        return numbers

    def at_physical(self, physical: int) -> int:
        """The number of the stretch that has the record at this place of the log, if the queue has that record."""
        return max(int(np.searchsorted(self._rows["physical"], physical - self._start, "right")) - 1, 0)


@contextmanager
def named(name: str) -> Iterator[None]:
    """Let a DamagedObject of the block say that the object ``name`` is damaged."""
    try:
        yield
    except DamagedObject as error:
        raise type(error)(f"{name}: {error}") from None


def _decompressed(data: bytes) -> bytes:
    try:
        unpack = zlib.decompressobj()
        found = unpack.decompress(data, _MAX_TABLE_BYTES)
    except zlib.error as error:
        raise DamagedObject(f"a part of an index cannot be decompressed: {error}") from None
    if not unpack.eof or unpack.unused_data:
        raise DamagedObject("a part of an index does not end where it should")
    return found
