"""The writers of ``df.write`` and ``df.writeStream``: each task sends the rows of its partition as messages.

A message is in its topic as soon as it is sent: there is nothing to commit or to take back on the driver.
Writers are pickled, so they hold only options and columns; producers are opened where rows are.
Neighbours: rows.py (rows to messages), target.py (producers), task.py (which query, epoch and partition).
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import pyarrow as pa
from pyspark.sql import Row, datasource
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from mqcommon.daemons.malloc import keep_freed_memory
from mqcommon.errors import SkylarkError
from spark_connector.landing import pack
from spark_connector.one_line import one_line
from spark_connector.options.write import WriteOptions
from spark_connector.writing.columns import Layout, layout_of
from spark_connector.writing.once import WriteFailed
from spark_connector.writing.rows import lots_of
from spark_connector.writing.target import Deduplicated, Plain, Target
from spark_connector.writing.task import this_task

logger = logging.getLogger(__name__)

# PySpark 4.0 has no Arrow writer for streams.
_STREAM_WRITER: Any = getattr(datasource, "DataSourceStreamArrowWriter", DataSourceStreamWriter)
# Rows that are made an Arrow batch where PySpark does not pass Arrow batches.
BATCH_ROWS = 10_000
# What `Plain` sends as one table: all of it is acknowledged before more is sent.
TOGETHER_ROWS = 64_000
TOGETHER_BYTES = 32 * 1024 * 1024


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
        self._layout = layout_of(schema, options)

    def __reduce__(self) -> tuple[Any, ...]:
        return pack(self)

    def write(self, iterator: Iterator[pa.RecordBatch] | Iterator[Row]) -> Written:
        """Runs in the task: send all rows."""
        keep_freed_memory()
        with one_line():
            task = this_task(self._options, is_stream=self._is_stream)
            kind = Deduplicated if self._options.dedup else Plain
            with kind(self._options, task) as target:
                batches = arrow_batches(iterator, self._schema)
                return send_batches(batches, self._layout, self._options.topic, target, Written(task.partition))


def send_batches(
    batches: Iterable[pa.RecordBatch], layout: Layout, topic: str, target: Target, written: Written
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
    """The batches, so many together that they have ``least_rows`` or TOGETHER_BYTES; fewer at the end."""
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
    """The Arrow batches that Spark passes; or, of an older PySpark, its rows in such."""
    first: Any = next(items, None)
    rest: Iterator[Any] = chain([] if first is None else [first], items)
    if isinstance(first, pa.RecordBatch):
        yield from rest
        return
    types = to_arrow_schema(schema)
    while some := list(islice(rest, BATCH_ROWS)):
        columns = [pa.array([row[n] for row in some], field.type) for n, field in enumerate(types)]
        yield pa.RecordBatch.from_arrays(columns, schema=types)


def note_commit(messages: Sequence[Written | None], what: str) -> None:
    """Log what was written."""
    done = [message for message in messages if message is not None]
    rows, sent = sum(one.rows for one in done), sum(one.sent for one in done)
    logger.info("%s: %d rows written, %d of them were there already", what, rows, rows - sent)


def note_abort(messages: Sequence[Written | None], what: str) -> None:
    """Log what stays in the topic: messages cannot be taken back."""
    done = [message for message in messages if message is not None]
    logger.warning(
        "%s failed: %d of %d tasks ended, and the %d messages that they sent stay in the topic; so do those that the"
        " others sent before they failed",
        what,
        len(done),
        len(messages),
        sum(one.sent for one in done),
    )


class RocketMQBatchWriter(_Writing, DataSourceArrowWriter):
    """For ``df.write``."""

    def commit(self, messages: list[Any]) -> None:
        note_commit(messages, "batch")

    def abort(self, messages: list[Any]) -> None:
        note_abort(messages, "batch")


class RocketMQStreamWriter(_Writing, _STREAM_WRITER):  # type: ignore[misc]
    """For ``df.writeStream``."""

    _is_stream = True

    def commit(self, messages: list[Any], batchId: int) -> None:
        note_commit(messages, f"epoch {batchId}")

    def abort(self, messages: list[Any], batchId: int) -> None:
        note_abort(messages, f"epoch {batchId}")
