"""The records of one file of the log, sorted by retention class, topic, queue and place in the log.

A queue's records are then side by side, so a reader of one topic reads no other's bytes. Bytes of records are
unchanged. Needs numpy and pyarrow: all work is done by columns; only rare rows are looked at one by one.
Neighbours: file_rows.py (finds the records), segment_index.py and keys.py (get the columns), restore.py (the way back).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from skylark.mqcommon.crc import large_crc32
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.tier.file_rows import Ints, Queue, View, file_rows, texts_and_gaps
from skylark.mqcommon.tier.index_builder import DisorderedQueue, QueueRecords

#: The retention class of a topic: how many hours its records are kept; 0: as the broker's default says.
ClassOf = Callable[[str], int]
# So few MiB at a time that sorting a file takes little memory besides its columns.
PIECE_BYTES = 4 * 1024 * 1024


@lazy_dataclass(frozen=True, slots=True)
class Gathered:
    """Columns of all sound records, one row each, in the order of the objects.

    ``physical`` (place in the log), ``sizes``, ``offsets`` (of the queue), ``stored_ms``; ``positions``: where each
    begins in the object of its class. ``queues`` in the order of their rows. ``rest``: (physical offset, bytes) of
    what is neither a record nor zeros. ``key_hashes``, ``key_classes``, ``key_positions``: a row for each key of a
    record that is not hidden: the key's hash, and where the record is. ``crc``: CRC-32 of the whole file. ``texts``
    has the records at ``numbers``.
    """

    start: int
    end: int
    physical: Ints
    sizes: Ints
    offsets: Ints
    stored_ms: Ints
    positions: Ints
    queues: tuple[QueueRecords, ...]
    key_hashes: NDArray[np.uint64]
    key_classes: Ints
    key_positions: Ints
    rest: tuple[tuple[int, bytes], ...]
    crc: int
    texts: pa.LargeBinaryArray
    numbers: Ints

    @property
    def classes(self) -> list[int]:
        """The retention classes that have records."""
        return sorted({queue.retention_class for queue in self.queues})

    def pieces(self, retention_class: int) -> Iterator[memoryview]:
        """The bytes of the object of this class, in pieces of some MiB."""
        rows = [queue for queue in self.queues if queue.retention_class == retention_class]
        at, end = rows[0].first, rows[-1].end
        while at < end:
            begin = int(self.positions[at])
            stop = at + max(int(np.searchsorted(self.positions[at:end], begin + PIECE_BYTES)), 1)
            size = int(self.positions[stop - 1] + self.sizes[stop - 1]) - begin
            taken = self.texts.take(pa.array(self.numbers[at:stop]))
            yield memoryview(taken.buffers()[2])[:size]
            at = stop


def gather(
    view: View,
    start: int,
    class_of: ClassOf,
    unproved: Sequence[tuple[int, int]] | None = None,
    starts: Ints | None = None,
    crc: int | None = None,
) -> Gathered:
    """Sort the file whose bytes ``view`` are, and whose first byte is at ``start`` of the log.

    Raises TooDamaged and DisorderedQueue.

    ``unproved``: the parts (from, to; by default the whole file) whose bytes were compared with no sum, so that bodies
    are compared with their CRCs there. ``starts``: where the records begin in the file, if that is known: all other
    bytes of the file are ignored then. ``crc``: CRC-32 of the file, if that is known.
    """
    rows = file_rows(view, start, [(0, len(view))] if unproved is None else unproved, starts)
    by_class = {topic: class_of(topic) for topic in {queue.topic for queue in rows.queues}}

    def place(number: int) -> tuple[int, bytes, int, bool]:
        queue = rows.queues[number]
        return by_class[queue.topic], queue.topic.encode(), queue.queue_id, not queue.is_shadow

    in_order = sorted(range(len(rows.queues)), key=place)
    rank = np.empty(len(in_order), np.uint16 if len(in_order) < 1 << 16 else np.int64)
    rank[in_order] = np.arange(len(in_order))
    ranks = rank[rows.queue]
    order = np.argsort(ranks, kind="stable")  # rows are in the order of the log
    bounds = [0, *np.cumsum(np.bincount(ranks, minlength=len(in_order))).tolist()]
    offsets, ends = rows.offsets.take(order), (rows.offsets + rows.counts).take(order)
    goes_back = np.flatnonzero(offsets[1:] < ends[:-1]) + 1
    queues: list[QueueRecords] = []
    for number, first, end in zip(in_order, bounds[:-1], bounds[1:], strict=True):
        of_queue = rows.queues[number]
        queues += _queue_records(of_queue, by_class[of_queue.topic], first, end, goes_back, offsets, ends)
    if any(queue.hidden for queue in queues):
        order, queues = _hidden_last(order, queues)
        offsets = rows.offsets.take(order)
    sizes = rows.sizes.take(order)
    positions = np.cumsum(sizes) - sizes
    for queue, before in zip(queues[1:], queues, strict=False):
        if queue.retention_class != before.retention_class:
            positions[queue.first :] -= positions[queue.first]
    # The class of each row of the file, or -1 for a row that is hidden.
    kinds, positions_of = np.empty(len(order), np.int64), np.empty(len(order), np.int64)
    for queue in queues:
        kinds[order[queue.first : queue.end]] = -1 if queue.hidden else queue.retention_class
    positions_of[order] = positions
    key_classes, key_positions = kinds.take(rows.key_rows), positions_of.take(rows.key_rows)
    key_hashes = rows.key_hashes
    if any(queue.hidden for queue in queues):
        is_shown = key_classes >= 0
        key_classes, key_positions, key_hashes = key_classes[is_shown], key_positions[is_shown], key_hashes[is_shown]
    texts, numbers = texts_and_gaps(pa.py_buffer(view), rows.starts, rows.sizes)
    return Gathered(
        start,
        start + len(view),
        rows.starts.take(order) + start,
        sizes,
        offsets,
        rows.stored_ms.take(order),
        positions,
        tuple(queues),
        key_hashes,
        key_classes,
        key_positions,
        rows.rest,
        large_crc32(view) if crc is None else crc,
        texts,
        numbers.take(order),
    )


def _hidden_last(order: Ints, queues: list[QueueRecords]) -> tuple[Ints, list[QueueRecords]]:
    """``order`` and ``queues`` with the hidden rows at the end of their class."""
    parts, moved, at = [], [], 0
    for queue in sorted(queues, key=lambda queue: (queue.retention_class, queue.hidden)):
        parts.append(order[queue.first : queue.end])
        moved.append(replace(queue, first=at, end=at + len(parts[-1])))
        at += len(parts[-1])
    return np.concatenate(parts), moved


def _queue_records(
    queue: Queue, retention_class: int, first: int, end: int, goes_back: Ints, offsets: Ints, ends: Ints
) -> Iterator[QueueRecords]:
    """The records of one queue: first the hidden ones, then the others."""

    def made(first: int, end: int, *, hidden: bool) -> QueueRecords:
        next_offset = int(ends[end - 1])
        return QueueRecords(queue.topic, queue.queue_id, retention_class, first, end, next_offset, hidden)

    if queue.is_shadow:
        yield made(first, end, hidden=True)
        return
    again = first
    for row in goes_back[np.searchsorted(goes_back, first, "right") : np.searchsorted(goes_back, end)].tolist():
        if offsets[row]:
            raise DisorderedQueue(
                f"queue {queue.queue_id} of {queue.topic} has offset {offsets[row]} after {offsets[row - 1]}"
            )
        again = row  # the topic was made again
    if again > first:
        yield made(first, again, hidden=True)
    yield made(again, end, hidden=False)
