"""The stream reader of every PySpark 4: offsets and micro-batches on the driver; workers read ranges as of a batch.

Spark runs the driver's part in one Python process for as long as the query runs, and a copy of the reader in each
worker. Since 4.2 Spark passes the start of a micro-batch, and knows limits: admitting_reader.py.
Neighbours: driver.py (decides), reading/batch_reader.py (reads).
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from skylark.mqcommon.errors import SkylarkError
from skylark.spark_connector.one_line import one_line
from skylark.spark_connector.options.read import ReadOptions
from skylark.spark_connector.reading.batch_reader import Connect, ListTopics, open_consumer, rows_of
from skylark.spark_connector.reading.dead_letters import check_dead_letter_topics
from skylark.spark_connector.reading.planning import list_clusters, list_topics
from skylark.spark_connector.reading.read_columns import ReadColumns
from skylark.spark_connector.store.local import local_rows
from skylark.spark_connector.stream.driver import IDLE_S, StreamDriver
from skylark.spark_connector.stream.offsets import StreamOffsets
from skylark.spark_connector.worker_pickle import pack

logger = logging.getLogger(__name__)

# The driver asks all brokers in each trigger: a broker that hangs must not hold up the others for long.
ASK_TIMEOUT_MS = 3_000


class MicroBatches(NamedTuple):
    """How micro-batches are read, besides the offsets at which they begin and end.

    ``tasks`` makes the tasks of a micro-batch, on the driver; ``rows`` reads the rows of one task, in a worker.
    """

    tasks: Callable[[StreamDriver, StreamOffsets, StreamOffsets], Sequence[Any]]
    rows: Callable[[InputPartition, ReadOptions, ReadColumns, Connect], Iterator[pa.RecordBatch]]


def _rows_of_brokers(
    partition: InputPartition, options: ReadOptions, columns: ReadColumns, connect: Connect
) -> Iterator[pa.RecordBatch]:
    return rows_of(partition, options, columns, connect, local_rows if options.local_store_path else None)


class RocketMQStreamReader(DataSourceStreamReader):
    """A micro-batch has all messages that exist; one partition is a task: ranges of one or more queues."""

    def __init__(
        self,
        options: ReadOptions,
        schema: StructType,
        connect: Connect | None = None,
        topics: ListTopics = list_topics,
        clusters: ListTopics = list_clusters,
        now: Callable[[], float] = time.monotonic,
        idle_s: float = IDLE_S,
        reading: "MicroBatches | None" = None,
    ) -> None:
        self._options = options
        self._columns = ReadColumns(options, schema)  # raises for an unusable schema before anything is planned
        self._connect = connect or open_consumer
        self._asking = replace(options, pull_timeout_ms=min(options.pull_timeout_ms, ASK_TIMEOUT_MS))
        self._driver_args = (topics, clusters, now, idle_s)
        self._reading = reading or MicroBatches(StreamDriver.tasks, _rows_of_brokers)
        self._driver: StreamDriver | None = None
        self._opened: ExitStack | None = None
        self._reached: StreamOffsets | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return pack(self)

    def initialOffset(self) -> dict[str, Any]:
        """Where a query without a checkpoint starts."""
        with one_line():
            start = self._driving().initial()
            self._reached = self._reached or start
            return start.to_dict()

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]
        """The end of the next micro-batch; after a restart, when Spark does not say the start, all queues are new."""
        with one_line():
            driver = self._driving()
            self._reached = driver.after(self._reached or driver.unknown(), is_limited=False)
            return self._reached.to_dict()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks that read the messages between two offsets."""
        with one_line():
            first, last = StreamOffsets.from_dict(start), StreamOffsets.from_dict(end)
            self._reached = self._reached or last
            forgotten = sorted(set(first.at).difference(last.at))
            if forgotten:
                logger.warning(
                    "%s was away when the query was restarted: when it is back, it is read from the beginning (PySpark"
                    " 4.2 and later go on where they were)",
                    ", ".join(sorted({queue.broker_name for queue in forgotten})),
                )
            return [InputPartition(one) for one in self._reading.tasks(self._driving(), first, last)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        return self._reading.rows(partition, self._options, self._columns, self._connect)

    def commit(self, end: dict[str, Any]) -> None:
        """Called when the micro-batch up to ``end`` is done."""
        with one_line():
            driver = self._driving()
            driver.batch_done()
            driver.commit(StreamOffsets.from_dict(end))

    def stop(self) -> None:
        """Called when the query ends."""
        if self._driver is not None:
            self._driver.close()
        if self._opened is not None:
            self._opened.close()
        self._opened = self._driver = None

    def _driving(self) -> StreamDriver:
        """The driver's part; not made in the constructor, since workers have readers, too."""
        if self._driver is None:
            self._opened = ExitStack()
            consumer = self._opened.enter_context(self._connect(self._asking))
            check_dead_letter_topics(self._options, consumer)
            self._driver = StreamDriver(consumer, self._asking, *self._driver_args)
        return self._driver


class RefusedStreamReader(DataSourceStreamReader):
    """Raises ``error`` when it is used; an error of `streamReader` itself would be hidden by one of Spark's."""

    def __init__(self, error: SkylarkError) -> None:
        self._error = error

    def initialOffset(self) -> dict[str, Any]:
        """Raises the error, for a new query."""
        with one_line():
            raise self._error

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]
        """Raises the error, for a query with a checkpoint."""
        return self.initialOffset()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Raises the error, for a micro-batch that is run again."""
        self.initialOffset()
        return []

    def read(self, partition: InputPartition) -> Any:
        """Not called, since there are no partitions."""
        return iter(())
