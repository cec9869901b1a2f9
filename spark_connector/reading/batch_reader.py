"""The batch reader: plans tasks on the driver, reads and decodes their ranges in workers, as streams do, too.

Readers are pickled, so they hold only options and types; consumers are opened where they are used.
Neighbours: planning.py (ranges and tasks), stream/reader.py (streams), pulling.py (bytes), styles.py (record batches).
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from skylark.mqcommon.daemons.malloc import keep_freed_memory
from skylark.mqcommon.message.columns import DamagedRecord
from skylark.mqcommon.message.queue import MessageQueue
from skylark.sdk.arrow.decode import TooMuchContent, check_bodies, check_order, has_tag, holds_batches, unwrapped
from skylark.sdk.arrow.records import Records
from skylark.spark_connector.offsets import OffsetRange
from skylark.spark_connector.one_line import one_line
from skylark.spark_connector.options.read import ReadOptions
from skylark.spark_connector.reading.data_loss import report_lost
from skylark.spark_connector.reading.dead_letters import check_dead_letter_topics
from skylark.spark_connector.reading.planning import QueueDirectory, list_topics, plan, sampled, tasks_of, with_topics
from skylark.spark_connector.reading.pulling import (
    JOIN_BYTES,
    Buffer,
    FirstAnswers,
    QueuesReader,
    ReadFailed,
    ahead,
    at_once,
    joined,
    pulls,
)
from skylark.spark_connector.reading.pushdown import ALL, wanted_by
from skylark.spark_connector.reading.read_columns import ReadColumns
from skylark.spark_connector.styles import decode
from skylark.spark_connector.tasks import ReadTask
from skylark.spark_connector.worker_pickle import pack

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter  # PySpark 4.0 has none


class Consumer(QueuesReader, QueueDirectory, Protocol):
    """The methods of a consumer that readers use; ``skylark.blocking.PullConsumer`` has them."""

    def commit_offset(self, mq: MessageQueue, offset: int) -> None: ...


#: Reads files of the broker where that is possible: yields rows of the range, and returns the offset from which on the
#: broker must be asked. See store/local.py.
LocalRows = Callable[[ReadOptions, OffsetRange, pa.Schema, Consumer], Generator[pa.RecordBatch, None, int]]
Connect = Callable[[ReadOptions], AbstractContextManager[Consumer]]
ListTopics = Callable[[ReadOptions], Sequence[str]]


class RocketMQBatchReader(DataSourceReader):
    """One partition is a task: ranges of one or more queues."""

    def __init__(
        self,
        options: ReadOptions,
        schema: StructType,
        connect: Connect | None = None,
        topics: ListTopics = list_topics,
        local: LocalRows | None = None,
    ) -> None:
        self._options = options
        self._connect = connect or open_consumer
        self._list_topics = topics
        self._local = local
        self._only = ALL
        self._columns = ReadColumns(options, schema)  # raises for an unusable schema before anything is planned

    def __reduce__(self) -> tuple[Any, ...]:
        return pack(self)

    def partitions(self) -> Sequence[InputPartition]:
        """Ask the brokers for the ranges to read. Their ends do not change afterwards."""
        with one_line(), self._connect(self._options) as consumer:
            options = with_topics(self._options, self._list_topics)
            check_dead_letter_topics(options, consumer)
            ranges = plan(consumer, options, self._only)
            return [InputPartition(one) for one in tasks_of(ranges, options, sampled(consumer))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        return rows_of(partition, self._options, self._columns, self._connect, self._local)


class PushDownReader(RocketMQBatchReader):
    """Lets the query's filters narrow what is read. Spark refuses readers with `pushFilters` unless that is enabled."""

    def pushFilters(self, filters: "list[Filter]") -> "Iterable[Filter]":
        """Read only what ``filters`` need.

        Returns all of them: Spark applies them again, so reading too much is harmless.
        """
        with one_line():
            self._only = wanted_by(filters, self._options.schema_style)
            self._options = self._only.with_tags(self._options)
        return filters


def rows_of(
    partition: InputPartition,
    options: ReadOptions,
    columns: ReadColumns,
    connect: Connect,
    local: LocalRows | None = None,
) -> Iterator[pa.RecordBatch]:
    """The rows of one task, range after range, read in a worker."""
    task: ReadTask | None = partition.value
    if task is None:  # Spark passes None when there are no partitions
        return
    keep_freed_memory()
    with one_line(), connect(options) as consumer:
        yield from columns.finished(_stored_rows(task, options, columns.stored, consumer, local))


def _stored_rows(
    task: ReadTask, options: ReadOptions, schema: pa.Schema, consumer: Consumer, local: LocalRows | None
) -> Iterator[pa.RecordBatch]:
    if local is None:
        yield from _pulled_rows(task.ranges, options, schema, consumer)
        return
    for wanted in task.ranges:
        rest = wanted._replace(start=(yield from local(options, wanted, schema, consumer)))
        yield from _pulled_rows((rest,), options, schema, consumer)


def _pulled_rows(
    ranges: Sequence[OffsetRange], options: ReadOptions, schema: pa.Schema, consumer: QueuesReader
) -> Iterator[pa.RecordBatch]:
    """The rows of ``ranges``; while some buffers are decoded the next ones are pulled, also of the next ranges."""

    def pieces() -> Iterator[Piece]:
        for some in at_once(ranges, options.max_records_per_batch):
            reader = FirstAnswers(consumer, some, options) if len(some) > 1 else consumer
            for wanted in some:
                for buffer in joined(pulls(reader, wanted, options, lambda lost: report_lost([lost], options))):
                    yield Piece(wanted, buffer)

    yield from decode_pieces(ahead(together(pieces(), options.max_records_per_batch)), schema, options)


def decode_pieces(
    pieces: "Iterable[Sequence[Piece]]", schema: pa.Schema, options: ReadOptions
) -> Iterator[pa.RecordBatch]:
    """The rows of ``pieces``, which `together` has put in lists."""
    for some in pieces:
        batch = decode_together(some, schema, options) if len(some) > 1 else None
        if batch is not None:
            yield batch
            continue
        for wanted, buffer in some:
            yield from decode_buffer(buffer, wanted, schema, options)


class Piece(NamedTuple):
    """A buffer of a range."""

    wanted: OffsetRange
    buffer: Buffer


def together(pieces: Iterable[Piece], max_rows: int) -> Iterator[list[Piece]]:
    """``pieces`` in lists, each of one broker; a list of several pieces has at most ``max_rows`` rows."""
    some: list[Piece] = []
    rows = size = 0
    for piece in pieces:
        most = piece.wanted.end - piece.wanted.start
        is_other = bool(some) and some[0].wanted.queue.broker_name != piece.wanted.queue.broker_name
        if is_other or (some and rows + most > max_rows):
            yield some
            some, rows, size = [], 0, 0
        some.append(piece)
        rows, size = rows + most, size + len(piece.buffer.data)
        if size >= JOIN_BYTES:
            yield some
            some, rows, size = [], 0, 0
    if some:
        yield some


def decode_together(pieces: Sequence[Piece], schema: pa.Schema, options: ReadOptions) -> pa.RecordBatch | None:
    """One batch of the rows of all ``pieces``, which are of one broker; None when they need to be decoded one by one.

    A batch costs more than a hundred rows, here and in Spark, and thousands of queues have few rows each.
    """
    try:
        records = Records(b"".join(piece.buffer.data for piece in pieces))
        if holds_batches(records) or not _are_whole(records, pieces):
            return None
        if options.check_crc:
            check_bodies(records)
        batch = decode(records, pieces[0].wanted.queue.broker_name, schema)
    except (DamagedRecord, TooMuchContent):  # one by one: then the error names the queue and the offset
        return None
    if options.tags and not (passed := has_tag(records, options.tags)).all():
        batch = batch.filter(pa.array(passed))
    return batch


def _are_whole(records: Records, pieces: Sequence[Piece]) -> bool:
    """Whether the records of each piece are in its range, in order, and none is in two pieces."""
    offsets = records.column("queue_offset")
    begin_at = np.cumsum([0, *(len(piece.buffer.data) for piece in pieces[:-1])])
    firsts = np.searchsorted(records.starts, begin_at)
    if firsts[-1] == len(records) or not np.array_equal(records.starts[firsts], begin_at):
        return False
    lasts = np.append(firsts[1:], len(records)) - 1
    ascends = offsets[1:] > offsets[:-1]
    ascends[lasts[:-1]] = True  # where one piece follows another
    starts = np.array([piece.wanted.start for piece in pieces])
    ends = np.array([piece.wanted.end for piece in pieces])
    return bool(ascends.all() and (offsets[firsts] >= starts).all() and (offsets[lasts] < ends).all())


def decode_buffer(
    buffer: Buffer, wanted: OffsetRange, schema: pa.Schema, options: ReadOptions
) -> Iterator[pa.RecordBatch]:
    """The rows of ``buffer`` that are in ``wanted``, in batches of about equal size."""
    try:
        records = Records(buffer.data, buffer.starts)
    except DamagedRecord as error:
        raise _cannot_decode(error, buffer.offset + error.row, buffer, wanted) from error
    # A stack of row ranges. A range that holds too much is halved, the first half on top, so rows come in order.
    waiting = [(0, len(records))]
    while waiting:
        low, high = waiting.pop()
        some = records.part(low, high)
        try:
            yield from _rows(some, buffer, wanted, schema, options)
        except TooMuchContent:
            middle = (low + high) // 2
            waiting += [(middle, high), (low, middle)]


def _rows(
    records: Records, buffer: Buffer, wanted: OffsetRange, schema: pa.Schema, options: ReadOptions
) -> Iterator[pa.RecordBatch]:
    """The rows of these records. Raises TooMuchContent before there is one, if whole batches hold too much."""
    messages, rows_before, check_crc = records, 0, options.check_crc
    try:
        if holds_batches(records):
            check_order(records)
            # Before batches are taken apart: the CRC covers the whole batch.
            if check_crc:
                check_bodies(records)
            messages, _ = unwrapped(records)
            check_crc = False
        low, high = np.searchsorted(check_order(messages), [wanted.start, wanted.end])
        # A pull may have records before and after the range, as brokers give whole batches. The rest is divided evenly.
        rows = int(high - low)
        count = -(-rows // options.max_records_per_batch)
        cuts = [int(low) + rows * part // count for part in range(count + 1)]
        waiting = list(pairwise(cuts))[::-1]
        while waiting:
            rows_before, upto = waiting.pop()
            some = messages.part(rows_before, upto)
            if check_crc:
                check_bodies(some)
            try:
                batch = decode(some, wanted.queue.broker_name, schema)
            except TooMuchContent:
                middle = (rows_before + upto) // 2
                waiting += [(middle, upto), (rows_before, middle)]
                continue
            if options.tags and not (passed := has_tag(some, options.tags)).all():
                batch = batch.filter(pa.array(passed))
            yield batch
    except DamagedRecord as error:
        offset = int(messages.column("queue_offset")[rows_before + error.row])
        raise _cannot_decode(error, offset, buffer, wanted) from error


def _cannot_decode(error: DamagedRecord, offset: int, buffer: Buffer, wanted: OffsetRange) -> ReadFailed:
    topic, broker, queue = wanted.queue
    return ReadFailed(
        f"topic {topic}, broker {broker}, queue {queue}: the message at offset {offset}"
        f" (byte {error.at} of {len(buffer.data)} pulled) cannot be decoded: {error.reason}"
    )


def open_consumer(options: ReadOptions) -> AbstractContextManager[Consumer]:
    """A consumer of the SDK; imported here, since checking a schema does not need the event loop."""
    from skylark.sdk.blocking import PullConsumer

    return PullConsumer(
        **options.client,
        group=options.consumer_group,
        timeout_ms=options.pull_timeout_ms,
        heartbeat=False,
        # A task reads at once, and the read raises the error.
        start_timeout_ms=None,
    )
