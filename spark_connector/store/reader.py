"""The batch reader of a store directory: plans on the driver from its files, reads in tasks, without any broker.

Planning is reading/planning.py's, with directory.py in place of brokers. Records are decoded
where they lie in the mapped log. What an entry says is compared with the record before anything of the record is used:
a message that does not fit its entry is lost; it is reported, and never returned.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from skylark.broker.store.queue.entry import BLANK_SIZE
from skylark.mqcommon.daemons.malloc import keep_freed_memory
from skylark.mqcommon.message.columns import DamagedRecord
from skylark.mqcommon.message.layout import MAGIC_V1, MAGIC_V2, MIN_RECORD
from skylark.sdk.arrow.decode import TooMuchContent, check_bodies, check_order, has_tag, holds_batches, unwrapped
from skylark.sdk.arrow.records import Ints, Mask, Records, heads_at, physical_offsets
from skylark.spark_connector.offsets import MADE_AGAIN, LostRange
from skylark.spark_connector.one_line import one_line
from skylark.spark_connector.options.read import FAIL, ReadOptions
from skylark.spark_connector.reading.data_loss import report_lost
from skylark.spark_connector.reading.planning import plan, tasks_of, with_topics
from skylark.spark_connector.reading.pushdown import ALL, wanted_by
from skylark.spark_connector.reading.read_columns import ReadColumns
from skylark.spark_connector.store.files import (
    ENTRIES,
    KINDS,
    NOT_IN_FILES,
    Entries,
    LogBytes,
    ReadOnlyFiles,
    StorePart,
    reading,
)
from skylark.spark_connector.styles import decode
from skylark.spark_connector.worker_pickle import pack

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter  # PySpark 4.0 has none


class StoreReader(DataSourceReader):
    """One partition is a task: parts of one or more queues."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._only = ALL
        self._columns = ReadColumns(options, schema)  # raises for an unusable schema before anything is planned

    def __reduce__(self) -> tuple[Any, ...]:
        return pack(self)

    def partitions(self) -> Sequence[InputPartition]:
        """The ranges to read. What a broker adds to the directory afterwards is not read."""
        # Imported here: tasks do not need it, and it imports much of the broker's store.
        from skylark.spark_connector.store.directory import StoreDirectory

        options = self._options
        with one_line(), reading(options.directory):
            store = StoreDirectory(
                options.directory, options.name_of_broker, fail_on_data_loss=options.when_lost == FAIL
            )
            options = with_topics(options, lambda _: store.topics())
            tasks = tasks_of(plan(store, options, self._only), options, store.size_of)
            return [InputPartition(tuple(map(store.part, task.ranges))) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task, part after part."""
        parts: tuple[StorePart, ...] | None = partition.value
        if parts is None:  # Spark passes None when there are no partitions
            return
        keep_freed_memory()
        with one_line(), reading(self._options.directory):
            yield from self._columns.finished(self._stored_rows(parts))

    def _stored_rows(self, parts: Sequence[StorePart]) -> Iterator[pa.RecordBatch]:
        options, schema = self._options, self._columns.stored
        log = LogBytes(ReadOnlyFiles(), options.directory)
        for some in together(parts, options.max_records_per_batch):
            rows = [
                StoreRows(options.directory, log, part, schema, options, lambda lost: report_lost([lost], options))
                for part in some
            ]
            if len(rows) > 1 and (batches := decode_together(log, rows, schema, options)) is not None:
                yield from batches
                continue
            for each in rows:
                yield from each.batches()


class PushDownStoreReader(StoreReader):
    """Lets the query's filters narrow what is read, as `PushDownReader` does."""

    def pushFilters(self, filters: "list[Filter]") -> "Iterable[Filter]":
        """Read only what ``filters`` need.

        Returns all of them: Spark applies them again, so reading too much is harmless.
        """
        with one_line():
            self._only = wanted_by(filters, self._options.schema_style)
            self._options = self._only.with_tags(self._options)
        return filters


OnLost = Callable[[LostRange], None]


def together(parts: Iterable[StorePart], max_rows: int) -> Iterator[list[StorePart]]:
    """``parts`` in lists; a list of several parts has at most ``max_rows`` rows."""
    some: list[StorePart] = []
    rows = 0
    for part in parts:
        most = part.wanted.end - part.start
        if some and rows + most > max_rows:
            yield some
            some, rows = [], 0
        some.append(part)
        rows += most
    if some:
        yield some


def decode_together(
    log: LogBytes, parts: Sequence["StoreRows"], schema: pa.Schema, options: ReadOptions
) -> list[pa.RecordBatch] | None:
    """A batch of the rows of all ``parts`` in each file of the log; None when parts need to be read one by one.

    A batch costs more than a hundred rows, here and in Spark, and thousands of queues have few rows each.
    """
    found = [each.plain_entries() for each in parts]
    plain = [each for each in found if each is not None]
    if len(plain) < len(parts):
        return None
    entries = np.concatenate(plain)
    queues = np.repeat([each.part.wanted.queue.queue_id for each in parts], [len(each) for each in plain])
    offsets = np.concatenate([np.arange(len(each)) + rows.part.start for rows, each in zip(parts, plain, strict=True)])
    # Records have to be given in the order of the log, in which the messages of each queue follow one another, too.
    order = np.argsort(entries["physical"], kind="stable")
    offsets, queues = offsets[order], queues[order]
    _, sizes, numbers, at, fits = located(log, entries[order])
    if not fits.all():
        return None
    batches = []
    for rows in by_file(numbers):
        view = log.view(int(numbers[rows[0]]))
        if view is None:
            return None
        heads, base = heads_at(view, at[rows]), int(log.bases[numbers[rows[0]]])
        if not as_said(base, heads, at[rows], sizes[rows], offsets[rows], queues[rows]).all():
            return None
        try:
            records = Records(view, at[rows], heads)
            if options.check_crc:
                check_bodies(records)
            batches.append(decode_tagged(records, parts[0].part.wanted.queue.broker_name, schema, options))
        except (DamagedRecord, TooMuchContent):  # one by one: this finds the message that is lost
            return None
    return batches


class Located(NamedTuple):
    """Where the records of entries are: places in the log; sizes; numbers of files, and places in these.

    ``fits``: whether the log has these bytes.
    """

    physical: Ints
    sizes: Ints
    numbers: Ints
    at: Ints
    fits: Mask


def located(log: LogBytes, entries: Entries) -> Located:
    """Where the log has the records of ``entries``."""
    physical, sizes = entries["physical"].astype(np.int64), entries["size"].astype(np.int64)
    numbers = np.searchsorted(log.bases, physical, side="right") - 1
    known = np.maximum(numbers, 0)
    at = physical - log.bases[known]
    return Located(
        physical, sizes, numbers, at, (sizes >= MIN_RECORD) & (numbers >= 0) & (at + sizes <= log.sizes[known])
    )


def by_file(numbers: Ints) -> list[Ints]:
    """The rows whose records are one after another in the same file; at least one row in each list."""
    runs: list[Ints] = np.split(np.arange(len(numbers)), np.flatnonzero(np.diff(numbers)) + 1)
    return [rows for rows in runs if len(rows)]


def as_said(base: int, heads: NDArray[Any], at: Ints, sizes: Ints, offsets: Ints, queue_ids: Ints | int) -> Mask:
    """Whether each record, in the file that begins at ``base`` of the log, fits its entry."""
    magic = heads["magic"]
    right: Mask = (
        (heads["size"] == sizes)
        & ((magic == MAGIC_V1) | (magic == MAGIC_V2))
        & (physical_offsets(heads) == at + base)
        & (heads["queue_id"] == queue_ids)
        & (heads["queue_offset"] == offsets)
    )
    return right


def decode_tagged(records: Records, broker_name: str, schema: pa.Schema, options: ReadOptions) -> pa.RecordBatch:
    """The rows of ``records`` that have one of the tags, if tags are asked for."""
    batch = decode(records, broker_name, schema)
    if options.tags and not (passed := has_tag(records, options.tags)).all():
        batch = batch.filter(pa.array(passed))
    return batch


class StoreRows:
    """Reads ``part`` of the store in ``directory``, whose log is ``log``."""

    def __init__(
        self, directory: str, log: LogBytes, part: StorePart, schema: pa.Schema, options: ReadOptions, on_lost: OnLost
    ) -> None:
        files = ReadOnlyFiles()
        topic, _, queue_id = part.wanted.queue
        self.part = part
        self._schema = schema
        self._options = options
        self._on_lost = on_lost
        self._log = log
        (kind,) = [each for each in KINDS if each.folder == part.folder]
        self._queue = kind(files, f"{directory}/{part.folder}/{topic}/{queue_id}")
        #: Whether a blank entry is a missing message. A message that planning has reported does not count.
        self.blanks_are_lost = False
        # Where the batches of a batch queue begin.
        self._firsts: Ints = np.zeros(0, dtype=np.int64)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, in batches of at most `maxRecordsPerBatch`."""
        for _, batches in self._chunks():
            yield from batches

    def chunks(self) -> Iterator[tuple[int, list[pa.RecordBatch]]]:
        """As `batches`, with the offset after each: what ``on_lost`` raises comes before the rows of that chunk."""
        for end, batches in self._chunks():
            yield end, list(batches)

    def plain_entries(self) -> Entries | None:
        """The entries, if each has a message and the topic is the planned topic; else None."""
        if self.part.is_batch:
            return None
        entries = self._entries()
        return entries if (entries["size"] != BLANK_SIZE).all() and self._are_planned(entries) else None

    def _chunks(self) -> Iterator[tuple[int, Iterator[pa.RecordBatch]]]:
        start, end = self.part.start, self.part.wanted.end
        entries, step = self._entries(), self._options.max_records_per_batch
        if not self._are_planned(entries):
            wanted = self.part.wanted
            self._on_lost(LostRange(wanted.queue, wanted.start, end, f"{MADE_AGAIN} since this range was planned"))
            return
        if self.part.is_batch:
            self._firsts = np.flatnonzero(entries["size"] != BLANK_SIZE) + start
        for low in range(0, end - start, step):
            some = entries[low : low + step]
            yield start + low + len(some), self._decoded(some, np.arange(start + low, start + low + len(some)))

    def _entries(self) -> Entries:
        """The entries of all wanted messages."""
        part = self.part
        tail = np.frombuffer(part.tail, ENTRIES)
        return np.concatenate([self._queue.entries(part.start, min(part.wanted.end, part.tail_start)), tail])

    def _are_planned(self, entries: Entries) -> bool:
        """Whether these are entries of the topic that was planned."""
        part = self.part
        if part.last_at == NOT_IN_FILES:
            return True
        last = self._queue.first_of(min(part.wanted.end, part.tail_start) - 1)
        return last >= part.start and int(entries["physical"][last - part.start]) == part.last_at

    def _decoded(self, entries: Entries, offsets: Ints) -> Iterator[pa.RecordBatch]:
        """The rows of these entries, each file of the log for itself."""
        # A blank is a hole that was reported before, or a message within a batch.
        is_message = entries["size"] != BLANK_SIZE
        if not is_message.all():
            if self.blanks_are_lost:
                self._lose(offsets[~is_message], entries["physical"][~is_message].astype(np.int64), "a blank entry")
            entries, offsets = entries[is_message], offsets[is_message]
        physical, sizes, numbers, at, fits = located(self._log, entries)
        self._lose(offsets[~fits], physical[~fits], "the log has no such bytes")
        for rows in by_file(numbers):
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
        base = int(self._log.bases[number])
        right = as_said(base, heads, at, sizes, offsets, self.part.wanted.queue.queue_id)
        if not right.all():
            self._lose(offsets[~right], base + at[~right], "the record does not fit the queue's entry")
            at, offsets, heads = at[right], offsets[right], heads[right]
        waiting = [(at, offsets, heads)]
        while waiting:
            at, offsets, heads = waiting.pop()
            if not len(at):
                continue
            try:
                yield from self._batches(view, at, heads)
            except TooMuchContent:
                half = len(at) // 2
                waiting += [(at[half:], offsets[half:], heads[half:]), (at[:half], offsets[:half], heads[:half])]
            except DamagedRecord as error:
                bad = slice(error.row, error.row + 1)
                self._lose(offsets[bad], self._log.bases[number] + at[bad], error.reason)
                waiting.append((np.delete(at, error.row), np.delete(offsets, error.row), np.delete(heads, error.row)))

    def _batches(self, view: memoryview, at: Ints, heads: NDArray[Any]) -> list[pa.RecordBatch]:
        """The rows of these records, all of them or an error."""
        records = Records(view, at, heads)
        if self._options.check_crc:
            check_bodies(records)
        if not self.part.is_batch:
            return [self._decode(records)]
        messages, rows = unwrapped(records) if holds_batches(records) else (records, np.arange(len(records)))
        wanted, step, low = self.part.wanted, self._options.max_records_per_batch, 0
        found: list[pa.RecordBatch] = []
        try:
            low, end = map(int, np.searchsorted(check_order(messages), [wanted.start, wanted.end]))
            while low < end:
                found.append(self._decode(messages.part(low, min(low + step, end))))
                low += step
        except DamagedRecord as error:
            raise DamagedRecord(int(rows[low + error.row]), error.at, error.reason) from None
        return found

    def _decode(self, messages: Records) -> pa.RecordBatch:
        return decode_tagged(messages, self.part.wanted.queue.broker_name, self._schema, self._options)

    def _lose(self, offsets: Ints, physical: Ints, reason: str) -> None:
        """Report these messages, in ranges of consecutive ones."""
        if not len(offsets):
            return
        ends, wanted = offsets + 1, self.part.wanted
        if self.part.is_batch:
            ends = np.append(self._firsts, wanted.end)[np.searchsorted(self._firsts, offsets, side="right")]
        edges = np.flatnonzero(offsets[1:] != ends[:-1]) + 1
        for run, over, places in zip(*(np.split(each, edges) for each in (offsets, ends, physical)), strict=True):
            low, high, where = max(int(run[0]), wanted.start), min(int(over[-1]), wanted.end), int(places[0])
            why = f"damaged at byte {where} of the log: {reason}"
            if where < self.part.log_start:
                why = f"deleted: the log starts at {self.part.log_start}"
            self._on_lost(LostRange(wanted.queue, low, high, why))
