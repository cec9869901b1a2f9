"""Makes the index and the keys of a segment from the sorted records of a file of the log (pure). Needs numpy and isal.

Neighbours: gather.py (sorts the records), segment_index.py and keys.py (the bytes).
"""

import sys
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import cbor2
import numpy as np
from isal.isal_zlib import crc32_combine

from skylark.mqcommon.crc import large_crc32
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.tier.bucket import BucketError
from skylark.mqcommon.tier.keys import encode_keys
from skylark.mqcommon.tier.segment_index import (
    CLASS,
    LEVEL,
    QUEUE,
    STRETCH,
    STRETCH_BYTES,
    Columns,
    IndexHead,
    QueueRow,
    QueueTable,
    class_places,
)


class DisorderedQueue(BucketError):
    """The queue offsets of records do not rise: the log is damaged, and this file of it cannot be indexed."""


@lazy_dataclass(frozen=True, slots=True)
class QueueRecords:
    """The records of one queue in a file of the log: rows ``first`` to ``end`` of `SortedRecords`.

    ``next_offset``: the queue offset after the last record. ``hidden``: no reader may see these records, so no index
    has them: the topic was deleted after them and made again in the same file, or they are in no queue. Hidden records
    are at the end of their object.
    """

    topic: str
    queue_id: int
    retention_class: int
    first: int
    end: int
    next_offset: int
    hidden: bool = False


class SortedRecords(NamedTuple):
    """Columns of int64 with a row for each record, in the order of the objects: class, topic, queue, place in the log.

    ``positions``: where each record begins in the object of its class.
    """

    physical: Columns
    sizes: Columns
    offsets: Columns
    stored_ms: Columns
    positions: Columns


class IndexBuilder:
    """Makes the index of the bytes ``start`` to ``end`` of the log.

    ``queues``: all that have rows in ``records``, in the order of the rows. ``before``: the table of the segment
    before. ``former``: rows of a former index of these bytes, of queues without rows in ``records``: retention has
    removed their records, or they had none. The queues of both are carried on: a store that is made of the bucket goes
    on at their next offsets. Left out are queues whose records are all before the physical offset that ``tombstones``
    has for their topic. Then feed the bytes of each class's object to `feed`, in pieces. Raises DisorderedQueue.
    """

    def __init__(
        self,
        start: int,
        end: int,
        records: SortedRecords,
        queues: Sequence[QueueRecords],
        *,
        before: QueueTable | None = None,
        former: Sequence[QueueRow] = (),
        tombstones: Mapping[str, int] | None = None,
    ) -> None:
        self._start, self._end = start, end
        self._records = records
        self._queues = _in_name_order([queue for queue in queues if not queue.hidden])
        carried = _carried([*(before.queues() if before else ()), *former], tombstones or {})
        self._sums: dict[int, _Sums] = {}
        by_class: dict[int, list[tuple[int, Columns, Columns]]] = {}
        rows: list[Columns] = []
        found: dict[tuple[str, int], tuple[Any, ...]] = {}
        count = 0
        for queue in self._queues:
            old = carried.pop((queue.topic, queue.queue_id), None)
            row, stretches, stretch_ends = _indexed(queue, records, old, start)
            found[queue.topic, queue.queue_id] = (*row, count, len(stretches), 0)
            by_class.setdefault(queue.retention_class, []).append((count, stretches["position"], stretch_ends))
            count += len(stretches)
            rows.append(stretches)
        self._stretches = np.concatenate(rows) if rows else np.empty(0, STRETCH)
        for number, parts in by_class.items():
            parts.sort(key=lambda part: int(part[1][0]))
            self._sums[number] = _Sums(
                np.concatenate([begins for _, begins, _ in parts]).tolist(),
                np.concatenate([stretch_ends for _, _, stretch_ends in parts]).tolist(),
                np.concatenate([np.arange(first, first + len(begins)) for first, begins, _ in parts]).tolist(),
            )
        for old in carried.values():
            found[old.topic, old.queue_id] = (
                *(old.retention_class, 0, old.next_offset, old.next_offset, 0, 0, 0, 0, old.latest_ms, old.birth),
                *(old.last_physical, old.last_physical, old.class_since, 0, 0, 0),
            )
        self._found = found

    def feed(self, retention_class: int, piece: bytes | memoryview) -> None:
        """The next bytes of the object of a class."""
        sums = self._sums.setdefault(retention_class, _Sums([], [], []))
        sums.feed(memoryview(piece), self._stretches["crc"])

    def fed(self, retention_class: int) -> tuple[int, int]:
        """(how many bytes of the object of this class were fed, their CRC-32)."""
        sums = self._sums[retention_class]
        return sums.fed, sums.crc

    def encode(
        self, rest: Iterable[tuple[int, bytes]], key_hashes: Columns, key_classes: Columns, key_positions: Columns
    ) -> tuple[bytes, bytes]:
        """(the bytes of the index, the bytes of the keys). ValueError unless all bytes of all objects have been fed.

        ``rest``: (physical offset, bytes) of the bytes that are in no record. A row for each key: its hash
        (`key_hash.key_hash`), and the class and position of its record.
        """
        if unfed := [number for number, sums in self._sums.items() if not sums.is_whole]:
            raise ValueError(f"the objects of classes {unfed} were not fed whole")
        order = sorted(self._found)
        topics = sorted({topic for topic, _ in order})
        numbers = {topic: number for number, topic in enumerate(topics)}
        fields = [(numbers[topic], queue_id, *self._found[topic, queue_id]) for topic, queue_id in order]
        table = np.array(fields, QUEUE)
        stretches = self._stretches.tobytes()
        step = STRETCH.itemsize
        table["rows_crc"] = [
            large_crc32(stretches[first * step : (first + rows) * step])
            for first, rows in zip(table["first_row"].tolist(), table["rows"].tolist(), strict=True)
        ]
        class_bytes = [(number, sums.fed) for number, sums in sorted(self._sums.items())]
        places = key_positions.copy()
        for number, begin in class_places(class_bytes).items():
            places[key_classes == number] += begin
        physical, queue_numbers = self._shown(order)
        pages, keys = encode_keys(key_hashes, places, self._start, physical, queue_numbers)
        names = [topic.encode() for topic in topics]
        lengths = np.array([len(name) for name in names], "<u2").tobytes()
        classes = np.array(class_bytes, CLASS).tobytes()
        queues = zlib.compress(lengths + b"".join(names) + table.tobytes() + classes, LEVEL)
        last = zlib.compress(cbor2.dumps([list(piece) for piece in rest]), LEVEL)
        head = IndexHead(
            self._start,
            self._end,
            len(queues),
            len(topics),
            len(table),
            len(self._stretches),
            len(last),
            large_crc32(queues),
            large_crc32(last),
            *pages,
            len(class_bytes),
        )
        return b"".join((head.encode(), queues, stretches, last)), keys

    def _shown(self, order: list[tuple[str, int]]) -> tuple[Columns, Columns]:
        """(physical offset, number of the queue) of all records with a queue; ``order``: the queues."""
        numbers = {name: number for number, name in enumerate(order)}
        of_queue = np.full(len(self._records.sizes), -1, np.int64)
        for queue in self._queues:
            of_queue[queue.first : queue.end] = numbers[queue.topic, queue.queue_id]
        is_shown = of_queue >= 0
        return self._records.physical[is_shown], of_queue[is_shown]


class _Sums:
    """The CRCs of one class's object and of its stretches, made as its bytes go by.

    ``begins`` and ``ends``: of the stretches in the object, in order; ``rows``: the row of each stretch. ``fed``,
    ``crc``: how many bytes went by, and their CRC-32.
    """

    def __init__(self, begins: list[int], ends: list[int], rows: list[int]) -> None:
        self._begins, self._ends, self._rows = begins, ends, rows
        self._next = 0
        # Of the bytes that went by of the stretch ``_next``.
        self._crc = 0
        self.fed = self.crc = 0

    @property
    def is_whole(self) -> bool:
        return self._next == len(self._ends)

    def feed(self, piece: memoryview, crcs: Columns) -> None:
        at, end = self.fed, self.fed + len(piece)
        while at < end:
            stop, is_in_stretch = self._part_at(at)
            part = piece[: min(stop, end) - at]
            # Each byte is summed once, in parts that the processor's cache holds.
            crc = large_crc32(part)
            self.crc = crc32_combine(self.crc, crc, len(part))
            self._crc = crc32_combine(self._crc, crc, len(part)) if is_in_stretch else 0
            at, piece = at + len(part), piece[len(part) :]
            if is_in_stretch and at == stop:
                crcs[self._rows[self._next]] = self._crc
                self._next += 1
                self._crc = 0
        self.fed = end

    def _part_at(self, at: int) -> tuple[int, bool]:
        """(where the stretch, or the bytes between stretches, about the byte ``at`` end, whether it is a stretch)."""
        if self.is_whole:
            return sys.maxsize, False
        begin = self._begins[self._next]
        return (self._ends[self._next], True) if begin <= at else (begin, False)


def _in_name_order(queues: Sequence[QueueRecords]) -> list[QueueRecords]:
    return sorted(queues, key=lambda queue: (queue.topic, queue.queue_id))


def _carried(rows: Sequence[QueueRow], tombstones: Mapping[str, int]) -> dict[tuple[str, int], QueueRow]:
    return {(row.topic, row.queue_id): row for row in rows if row.last_physical >= tombstones.get(row.topic, 0)}


def _indexed(
    queue: QueueRecords, records: SortedRecords, old: QueueRow | None, start: int
) -> tuple[tuple[Any, ...], Columns, Columns]:
    """(fields of the row of `QUEUE` from the class to the physical offsets, stretches, where each stretch ends)."""
    physical, sizes, offsets, stored_ms, positions = [column[queue.first : queue.end] for column in records]
    first, birth, class_since, latest_ms = int(offsets[0]), int(physical[0]), int(physical[0]), 0
    if old is not None and first >= old.next_offset:
        birth, latest_ms = old.birth, old.latest_ms
        if queue.retention_class == old.retention_class:
            class_since = old.class_since
    elif old is not None and (first or (len(offsets) > 1 and offsets[1] >= old.next_offset > 1)):
        raise DisorderedQueue(
            f"queue {queue.queue_id} of {queue.topic} has offset {first} at physical offset {birth}, "
            f"after offset {old.next_offset - 1}"
        )
    if len(offsets) > 1 and not (np.diff(offsets) > 0).all():
        place = int(np.argmin(np.diff(offsets) > 0)) + 1
        raise DisorderedQueue(
            f"queue {queue.queue_id} of {queue.topic} has offset {offsets[place]} at physical offset "
            f"{physical[place]}, after offset {offsets[place - 1]}"
        )
    position = int(positions[0])
    # The record that reaches a multiple of STRETCH_BYTES is the last of its stretch.
    bands = (positions - position) // STRETCH_BYTES
    begins = np.flatnonzero(np.concatenate(([True], bands[1:] != bands[:-1])))
    times = np.maximum.accumulate(np.maximum(stored_ms, latest_ms))
    lasts = np.concatenate((begins[1:], [len(positions)])) - 1
    stretches = np.zeros(len(begins), STRETCH)
    stretches["first_offset"] = offsets[begins]
    stretches["latest_ms"] = times[lasts]
    stretches["position"] = positions[begins]
    stretches["physical"] = physical[begins] - start
    ends = positions[lasts] + sizes[lasts]
    row = (
        queue.retention_class,
        len(offsets),
        first,
        queue.next_offset,
        position,
        int(ends[-1]) - position,
        int(stored_ms.min()),
        int(stored_ms.max()),
        int(times[-1]),
        birth,
        int(physical[0]),
        int(physical[-1]),
        class_since,
    )
    return row, stretches, ends
