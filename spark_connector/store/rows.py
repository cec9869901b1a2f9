"""The messages of a part of a store directory, as record batches. For tasks: no broker, no consumer.

Records are decoded where they lie in the mapped log. What an entry says is compared with the record before anything of
it is used. A message that is not what its entry says is lost: it is reported, and never returned.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from broker.store.queue.entry import BLANK_SIZE
from mqcommon.arrow.decode import TooMuchContent, check_bodies, has_tag
from mqcommon.arrow.records import Ints, Mask, Records, heads_at, physical_offsets
from mqcommon.message.columns import DamagedRecord
from mqcommon.message.layout import MAGIC_V1, MAGIC_V2, MIN_RECORD
from spark_connector.decoding.styles import decode
from spark_connector.offsets import LostRange
from spark_connector.options.read import ReadOptions
from spark_connector.store.files import QUEUES, LogBytes, ReadOnlyFiles
from spark_connector.store.queue import ENTRIES, Entries, QueueFiles, StorePart

OnLost = Callable[[LostRange], None]


class StoreRows:
    """Reads ``part`` of the store in ``directory``."""

    def __init__(
        self, directory: str, part: StorePart, schema: pa.Schema, options: ReadOptions, on_lost: OnLost
    ) -> None:
        files = ReadOnlyFiles()
        topic, _, queue_id = part.wanted.queue
        self._part = part
        self._schema = schema
        self._options = options
        self._on_lost = on_lost
        self._log = LogBytes(files, directory)
        self._queue = QueueFiles(files, f"{directory}/{QUEUES}/{topic}/{queue_id}")

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, in batches of at most `maxRecordsPerBatch`."""
        _, start, end = self._part.wanted
        entries, step = self._entries(), self._options.max_records_per_batch
        for low in range(0, end - start, step):
            some = entries[low : low + step]
            yield from self._decoded(some, np.arange(start + low, start + low + len(some)))

    def _entries(self) -> Entries:
        """The entries of all wanted messages."""
        _, start, end = self._part.wanted
        tail = np.frombuffer(self._part.tail, ENTRIES)
        return np.concatenate([self._queue.entries(start, min(end, self._part.tail_start)), tail])

    def _decoded(self, entries: Entries, offsets: Ints) -> Iterator[pa.RecordBatch]:
        """The rows of these entries, each file of the log for itself."""
        is_message = entries["size"] != BLANK_SIZE  # a blank is a hole that was found before
        if not is_message.all():
            entries, offsets = entries[is_message], offsets[is_message]
        physical, sizes = entries["physical"].astype(np.int64), entries["size"].astype(np.int64)
        numbers = np.searchsorted(self._log.bases, physical, side="right") - 1
        known = np.maximum(numbers, 0)
        at = physical - self._log.bases[known]
        fits = (sizes >= MIN_RECORD) & (numbers >= 0) & (at + sizes <= self._log.sizes[known])
        self._lose(offsets[~fits], physical[~fits], "the log has no such bytes")
        edges = np.flatnonzero(np.diff(numbers)) + 1
        for rows in np.split(np.arange(len(numbers)), edges):
            rows = rows[fits[rows]]
            if not len(rows):
                continue
            number = int(numbers[rows[0]])
            view = self._log.view(number)
            if view is None:
                self._lose(offsets[rows], physical[rows], "the file of the log was removed")
            else:
                yield from self._of_file(number, view, at[rows], sizes[rows], offsets[rows])

    def _of_file(self, number: int, view: memoryview, at: Ints, sizes: Ints, offsets: Ints) -> Iterator[pa.RecordBatch]:
        heads = heads_at(view, at)
        right = self._as_said(number, heads, at, sizes, offsets)
        if not right.all():
            base = self._log.bases[number]
            self._lose(offsets[~right], base + at[~right], "the record is not that of the queue's entry")
            at, offsets, heads = at[right], offsets[right], heads[right]
        waiting = [(at, offsets, heads)]
        while waiting:
            at, offsets, heads = waiting.pop()
            if not len(at):
                continue
            try:
                yield self._batch(view, at, heads)
            except TooMuchContent:
                half = len(at) // 2
                waiting += [(at[half:], offsets[half:], heads[half:]), (at[:half], offsets[:half], heads[:half])]
            except DamagedRecord as error:
                bad = slice(error.row, error.row + 1)
                self._lose(offsets[bad], self._log.bases[number] + at[bad], error.reason)
                waiting.append((np.delete(at, error.row), np.delete(offsets, error.row), np.delete(heads, error.row)))

    def _as_said(self, number: int, heads: NDArray[Any], at: Ints, sizes: Ints, offsets: Ints) -> Mask:
        """Whether each record is that of its entry."""
        magic = heads["magic"]
        right: Mask = (
            (heads["size"] == sizes)
            & ((magic == MAGIC_V1) | (magic == MAGIC_V2))
            & (physical_offsets(heads) == at + self._log.bases[number])
            & (heads["queue_id"] == self._part.wanted.queue.queue_id)
            & (heads["queue_offset"] == offsets)
        )
        return right

    def _batch(self, view: memoryview, at: Ints, heads: NDArray[Any]) -> pa.RecordBatch:
        records = Records(view, at, heads)
        if self._options.check_crc:
            check_bodies(records)
        queue, tags = self._part.wanted.queue, self._options.tags
        batch = decode(records, queue.broker_name, self._schema)
        if tags and not (passed := has_tag(records, tags)).all():
            batch = batch.filter(pa.array(passed))
        return batch

    def _lose(self, offsets: Ints, physical: Ints, reason: str) -> None:
        """Report these messages, in ranges of consecutive ones."""
        if not len(offsets):
            return
        edges = np.flatnonzero(np.diff(offsets) != 1) + 1
        for run, places in zip(np.split(offsets, edges), np.split(physical, edges), strict=True):
            where = int(places[0])
            why = f"damaged at byte {where} of the log: {reason}"
            if where < self._part.log_start:
                why = f"deleted: the log starts at {self._part.log_start}"
            self._on_lost(LostRange(self._part.wanted.queue, int(run[0]), int(run[-1]) + 1, why))
