"""The writers of ``df.write`` and ``df.writeStream``: each task sends the rows of its partition as messages.

A message is in its topic as soon as it is sent: there is nothing to commit or to take back on the driver.
Writers are pickled, so they hold only options and columns. `Plain` and `Deduplicated` open the producer of a task; they
import the SDK, since checking columns on the driver does not need the event loop.
Neighbours: rows.py (rows to messages), once.py and topic_io.py (each row once).
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, NamedTuple, Self
from uuid import uuid4

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import Row, datasource
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from skylark.mqcommon.daemons.malloc import keep_freed_memory
from skylark.mqcommon.errors import InvalidArgument, SkylarkError, UserError
from skylark.spark_connector.one_line import one_line
from skylark.spark_connector.options.formats import value_spec
from skylark.spark_connector.options.write import WriteOptions
from skylark.spark_connector.reading.pulling import when_back
from skylark.spark_connector.worker_pickle import pack
from skylark.spark_connector.writing.bodies import Bodies
from skylark.spark_connector.writing.once import Once, SendLimits, WriteFailed
from skylark.spark_connector.writing.rows import (
    BODY,
    FLAG,
    KEYS,
    TAGS,
    TOGETHER,
    Layout,
    Lot,
    RowKeys,
    layout_of,
    lots_of,
)

logger = logging.getLogger(__name__)

# PySpark 4.0 has no Arrow writer for streams.
_STREAM_WRITER: Any = getattr(datasource, "DataSourceStreamArrowWriter", DataSourceStreamWriter)
# Rows that are made an Arrow batch where PySpark does not pass Arrow batches.
BATCH_ROWS = 10_000
# The most bytes that `Plain` sends as one table: a table is acknowledged before the next is sent.
TOGETHER_ROWS = 64_000
TOGETHER_BYTES = 32 * 1024 * 1024


# Properties that Spark gives to tasks. The query's id is in its checkpoint: restarts do not change it.
QUERY_ID = "sql.streaming.queryId"
EPOCH = "streaming.sql.batchId"
APPLICATION_ID = "spark.app.id"
EXECUTION_ID = "spark.sql.execution.id"


class Task(NamedTuple):
    """A task that is run again has the same query, epoch and partition, and the next ``attempt`` in this run.

    No attempt of it began before ``since_ms``, nor before ``epoch_before`` had ended; "": no such epoch is known.
    """

    query: str
    epoch: str
    partition: int
    attempt: int = 0
    epoch_before: str = ""
    since_ms: int = 0


def this_task(options: WriteOptions, *, is_stream: bool) -> Task:
    """The task that runs in this process."""
    context = TaskContext.get()
    assert context is not None  # every task has a context
    task = task_of(context.getLocalProperty, context.partitionId(), options, is_stream=is_stream)
    return task._replace(attempt=context.attemptNumber())


def task_of(
    property_of: Callable[[str], str | None], partition: int, options: WriteOptions, *, is_stream: bool
) -> Task:
    """The task with these properties; UserError when Spark does not say what `dedup` has to know.

    A batch is one query in one epoch. Unless the user gives it an id, it is known as the same batch in this run only.
    """
    if is_stream:
        query, epoch = options.query_id or property_of(QUERY_ID), property_of(EPOCH)
    elif options.query_id:
        query, epoch = options.query_id, "batch"
    else:
        query, epoch = property_of(APPLICATION_ID), property_of(EXECUTION_ID)
    if options.dedup and not (query and epoch):
        raise UserError(
            "this version of Spark does not tell which query and epoch is written, so that messages cannot be"
            ' recognised; use .option("dedup", "false")'
        )
    before = str(int(epoch) - 1) if is_stream and epoch and epoch.isdecimal() and int(epoch) else ""
    return Task(query or "", epoch or "", partition, epoch_before=before)


class Plain:
    """Sends every message, with the producer's retries."""

    def __init__(self, options: WriteOptions, task: Task) -> None:
        self._options = options
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        from skylark.sdk.blocking import Producer

        options = self._options
        self._producer = self._stack.enter_context(
            Producer(
                **options.client,
                group=options.producer_group,
                send_timeout_ms=options.send_timeout_ms,
                retries=options.num_retries,
                # Sends find NameServers that were away for a moment when the task began.
                start_timeout_ms=options.broker_wait_ms or None,
            )
        )
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def send_table(self, batches: Sequence[pa.RecordBatch], layout: Layout, topic: str) -> bool:
        """Send the rows without making messages of them.

        False, and nothing is sent, when the rows have columns that need messages, or a row is refused: `lots_of` says
        which row and why.
        """
        # Rows with properties, times or queues of their own need a message each. A table of bodies, tags, keys and
        # flags is encoded by columns, several times as fast.
        positions = layout.positions
        if not topic or not TOGETHER.issuperset(positions):
            return False
        given = pa.Table.from_batches(batches)
        table = pa.table({name: given.column(position) for name, position in positions.items()})
        tags, keys, flag = [name if name in positions else None for name in (TAGS, KEYS, FLAG)]
        try:
            self._producer.send_arrow(topic, table, body=BODY, tags=tags, keys=keys, flag=flag)
        except InvalidArgument:
            # Raised before anything is sent; `lots_of` then finds the row, and names it in its error.
            return False
        return True

    def send(self, lot: Lot) -> int:
        from skylark.spark_connector.writing.topic_io import send_all

        send_all(self._producer, lot.topic, lot.messages, lot.places)
        return len(lot.messages)


class Deduplicated:
    """Sends the rows of this task that the topic does not have; see once.py."""

    def __init__(self, options: WriteOptions, task: Task) -> None:
        self._options = options
        self._task = task
        self._stack = ExitStack()
        self._attempt = uuid4().hex[:16]
        self._topics: dict[str, Once] = {}

    def __enter__(self) -> Self:
        from skylark.sdk.blocking import Admin, Client, Producer, PullConsumer

        options, enter = self._options, self._stack.enter_context
        client = enter(Client(**options.client))
        self._producer = enter(
            Producer(
                client,
                group=options.producer_group,
                send_timeout_ms=options.send_timeout_ms,
                # A failed send may have stored its messages: `Once` reads the topic before it sends again.
                retries=0,
                start_timeout_ms=None,
            )
        )
        self._admin = enter(Admin(client))
        self._consumer = enter(
            PullConsumer(client, group=options.producer_group, heartbeat=False, start_timeout_ms=None)
        )
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def send(self, lot: Lot) -> int:
        once = self._topics.get(lot.topic)
        if once is None:
            once = self._topics[lot.topic] = self._once(lot.topic)
        return once.send(lot.messages, lot.places)

    def _once(self, topic: str) -> Once:
        from skylark.spark_connector.writing.topic_io import RealTime, TopicIO, create_missing

        task, options = self._task, self._options
        if options.create_topic:
            when_back(
                lambda: create_missing(topic, self._admin, self._consumer, options.send_timeout_ms),
                options.broker_wait_ms,
            )
        keys = RowKeys(task.query, task.epoch, task.partition, topic)
        limits = SendLimits(options.send_timeout_ms, options.num_retries, options.broker_wait_ms)
        io = TopicIO(topic, keys.scope, options, self._producer, self._admin, self._consumer)
        before = RowKeys(task.query, task.epoch_before, task.partition, topic).claim(0) if task.epoch_before else None
        return Once(
            io,
            keys,
            self._attempt,
            limits,
            RealTime(),
            is_retry=task.attempt > 0,
            since_ms=task.since_ms,
            claim_before=before,
        )


@dataclass
class Written(WriterCommitMessage):
    """What one task did: it had ``rows`` rows, and sent ``sent`` of them; the others were in the topic already."""

    partition: int
    rows: int = 0
    sent: int = 0


class _Writing:
    """What all writers share."""

    _is_stream = False

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        # A batch without an id of its own is known in this run only. A stream, or a batch with an id, may have begun
        # before this writer was made.
        self._since_ms = 0 if self._is_stream or options.query_id else int(time.time() * 1000)
        spec = value_spec(options)
        self._layout = layout_of(schema, options, spec)
        self._bodies = Bodies(spec, schema, self._layout)

    def __reduce__(self) -> tuple[Any, ...]:
        return pack(self)

    def write(self, iterator: Iterator[pa.RecordBatch] | Iterator[Row]) -> Written:
        """Runs in the task: send all rows."""
        keep_freed_memory()
        with one_line():
            task = this_task(self._options, is_stream=self._is_stream)._replace(since_ms=self._since_ms)
            # Rows are counted while they are sent, so that an error can say what stays in the topic.
            kind = Deduplicated if self._options.dedup else Plain
            with kind(self._options, task) as target:
                batches = self._bodies.made(arrow_batches(iterator, self._schema))
                return send_batches(batches, self._layout, self._options.topic, target, Written(task.partition))

    def _log_commit(self, messages: Sequence[Written | None], what: str) -> None:
        done = [message for message in messages if message is not None]
        rows, sent = sum(one.rows for one in done), sum(one.sent for one in done)
        logger.info("%s: %d rows written, %d of them were there already", what, rows, rows - sent)

    def _log_abort(self, messages: Sequence[Written | None], what: str) -> None:
        """Log that messages cannot be taken back."""
        done = [message for message in messages if message is not None]
        logger.warning(
            "%s failed: %d of %d tasks ended, and the %d messages that they sent stay in the topic; so do those that"
            " the others sent before they failed",
            what,
            len(done),
            len(messages),
            sum(one.sent for one in done),
        )


def send_batches(
    batches: Iterable[pa.RecordBatch], layout: Layout, topic: str, target: Plain | Deduplicated, written: Written
) -> Written:
    """Send the rows of ``batches``, and count them in ``written``."""
    try:
        for some in gathered(batches, TOGETHER_ROWS if isinstance(target, Plain) else 1):
            if isinstance(target, Plain) and target.send_table(some, layout, topic):
                rows = sum(batch.num_rows for batch in some)
                written.sent += rows
                written.rows += rows
                continue
            for batch in some:
                for lot in lots_of(batch, layout, topic, written.rows):
                    written.sent += target.send(lot)
                written.rows += batch.num_rows
    except SkylarkError as error:
        raise WriteFailed(
            f"{error} (partition {written.partition}; the {written.sent} messages sent before stay in the topic, and"
            " some of the last rows may, too)"
        ) from error
    return written


def gathered(batches: Iterable[pa.RecordBatch], least_rows: int) -> Iterator[list[pa.RecordBatch]]:
    """The batches, put together until they have ``least_rows`` rows or TOGETHER_BYTES; fewer at the end."""
    some: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        some.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= least_rows or size >= TOGETHER_BYTES:
            yield some
            some, rows, size = [], 0, 0
    if some:
        yield some


def arrow_batches(items: Iterator[pa.RecordBatch] | Iterator[Row], schema: StructType) -> Iterator[pa.RecordBatch]:
    """The Arrow batches that Spark passes; rows that an older PySpark passes are put into Arrow batches."""
    # PySpark before 4.1 passes rows to stream writers; only the first item shows which it is.
    first: Any = next(items, None)
    rest: Iterator[Any] = chain([] if first is None else [first], items)
    if isinstance(first, pa.RecordBatch):
        yield from rest
        return
    types = to_arrow_schema(schema)
    while some := list(islice(rest, BATCH_ROWS)):
        columns = [pa.array([row[n] for row in some], field.type) for n, field in enumerate(types)]
        yield pa.RecordBatch.from_arrays(columns, schema=types)


class RocketMQBatchWriter(_Writing, DataSourceArrowWriter):
    """Writes the rows of ``df.write``."""

    def commit(self, messages: list[Any]) -> None:
        self._log_commit(messages, "batch")

    def abort(self, messages: list[Any]) -> None:
        self._log_abort(messages, "batch")


class RocketMQStreamWriter(_Writing, _STREAM_WRITER):  # type: ignore[misc]
    """Writes the rows of ``df.writeStream``, epoch by epoch."""

    _is_stream = True

    def commit(self, messages: list[Any], batchId: int) -> None:
        self._log_commit(messages, f"epoch {batchId}")

    def abort(self, messages: list[Any], batchId: int) -> None:
        self._log_abort(messages, f"epoch {batchId}")
