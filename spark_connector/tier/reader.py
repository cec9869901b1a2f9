"""The readers of a bucket: they plan on the driver as readers of brokers do, and read objects in tasks.

A bucket is opened where it is used, with the credentials of the process: workers do not get the driver's.
Neighbours: directory.py (planning), fetching.py (reading), reading/batch_reader.py (decoding).
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from skylark.mqcommon.daemons.malloc import keep_freed_memory
from skylark.mqcommon.tier.bucket import Bucket, DamagedObject, NoSuchObject
from skylark.mqcommon.tier.manifest import Segment
from skylark.mqcommon.tier.view import TierView
from skylark.spark_connector.offsets import LostRange
from skylark.spark_connector.one_line import one_line
from skylark.spark_connector.options.read import ReadOptions
from skylark.spark_connector.reading.batch_reader import decode_pieces, together
from skylark.spark_connector.reading.data_loss import report_lost
from skylark.spark_connector.reading.planning import count_of, plan, with_topics
from skylark.spark_connector.reading.pulling import ahead, when_back
from skylark.spark_connector.reading.pushdown import ALL, wanted_by
from skylark.spark_connector.reading.read_columns import ReadColumns
from skylark.spark_connector.stream.driver import StreamDriver
from skylark.spark_connector.stream.offsets import StreamOffsets
from skylark.spark_connector.stream.reader import MicroBatches, RocketMQStreamReader
from skylark.spark_connector.tier.directory import TierDirectory, TierTask, open_tier, opened_bucket
from skylark.spark_connector.tier.fetching import ReadableSegment, fetches, read_all
from skylark.spark_connector.tier.segment_rows import SegmentRows, Unreadable
from skylark.spark_connector.worker_pickle import pack

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter  # PySpark 4.0 has none

logger = logging.getLogger(__name__)

#: How often an idle stream looks whether it is time for a discovery: new messages come with new segments only.
IDLE_S = 1.0
# A task reads one segment after the other, and needs few indexes at a time.
_TASK_INDEX_BYTES = 16 * 1024 * 1024


class TierReader(DataSourceReader):
    """One partition is a task: ranges of the queues of one broker, in consecutive segments of its log."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._only = ALL
        self._columns = ReadColumns(options, schema)  # raises for an unusable schema before anything is planned

    def __reduce__(self) -> tuple[Any, ...]:
        return pack(self)

    def partitions(self) -> Sequence[InputPartition]:
        """The ranges to read. What is uploaded afterwards is not read."""
        with one_line(), open_tier(self._options) as tier:
            options = with_topics(self._options, lambda _: tier.topics())
            ranges = plan(tier, options, self._only)
            tasks = tier.tasks(ranges, count_of(ranges, options, tier.size_of), options.splitting)
            return [InputPartition(one) for one in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        return rows_of_task(partition, self._options, self._columns)


class PushDownTierReader(TierReader):
    """Lets the query's filters narrow what is read, as `PushDownReader` does."""

    def pushFilters(self, filters: "list[Filter]") -> "Iterable[Filter]":
        """Read only what ``filters`` need.

        Returns all of them: Spark applies them again, so reading too much is harmless.
        """
        with one_line():
            self._only = wanted_by(filters, self._options.schema_style)
            self._options = self._only.with_tags(self._options)
        return filters


def tier_stream_reader(
    kind: type[RocketMQStreamReader], options: ReadOptions, schema: StructType, idle_s: float = IDLE_S
) -> RocketMQStreamReader:
    """A stream reader of the bucket of ``options``. Its offsets are offsets of queues, as brokers have them.

    ``kind``: what this version of PySpark can do.
    """
    return kind(
        options,
        schema,
        # With the timeout of the options: a broker is asked with a shorter one.
        lambda _: open_tier(options),
        _topics,
        lambda _: [],  # a bucket does not say to which cluster its brokers belong
        idle_s=idle_s,
        reading=MicroBatches(_tasks, lambda partition, options, columns, _: rows_of_task(partition, options, columns)),
    )


def _topics(options: ReadOptions) -> Sequence[str]:
    """The topics in the bucket."""
    with open_tier(options) as tier:
        return tier.topics()


def _tasks(driver: StreamDriver, first: StreamOffsets, last: StreamOffsets) -> Sequence[TierTask]:
    tier = driver.consumer
    assert isinstance(tier, TierDirectory)  # the result of `open_tier`
    ranges = driver.ranges(first, last)
    # Offsets without a number of tasks were written by an older version, which read from brokers.
    return tier.tasks(ranges, last.tasks or len(ranges), driver.options.splitting)


def rows_of_task(partition: InputPartition, options: ReadOptions, columns: ReadColumns) -> Iterator[pa.RecordBatch]:
    """The rows of one task, read in a worker."""
    task: TierTask | None = partition.value
    if task is None:  # Spark passes None when there are no partitions
        return
    keep_freed_memory()
    with one_line(), opened_bucket(options) as bucket:
        yield from columns.finished(stored_rows(bucket, task, options, columns.stored))


def stored_rows(bucket: Bucket, task: TierTask, options: ReadOptions, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of ``task``, with the columns of ``schema``."""

    def on_lost(lost: LostRange) -> None:
        report_lost([lost], options)

    wait_ms = options.broker_wait_ms
    segments = ahead(_segments(bucket, task, wait_ms))
    pieces = read_all(bucket, fetches(segments, task.ranges, on_lost), wait_ms, on_lost)
    yield from decode_pieces(together(pieces, options.max_records_per_batch), schema, options)


def _segments(bucket: Bucket, task: TierTask, wait_ms: float) -> Iterator[ReadableSegment]:
    """The segments of the task, oldest first."""
    view = TierView(bucket, task.folder, _TASK_INDEX_BYTES)

    def rows_of(segment: Segment) -> ReadableSegment:
        try:
            table = view.table(segment)
            found = {queue: table.find(queue.topic, queue.queue_id) for queue in task.births}
            rows = {queue: row for queue, row in found.items() if row is not None and row.birth == task.births[queue]}
            return SegmentRows(bucket, segment, table, rows)
        except (DamagedObject, NoSuchObject) as error:
            return Unreadable(str(error))

    for segment in task.segments:
        yield when_back(partial(rows_of, segment), wait_ms)
