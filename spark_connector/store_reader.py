"""The batch reader of a store directory: plans on the driver from its files, reads in tasks, without any broker.

Planning is planning.py's, with store_directory.py in place of brokers; rows come from store_rows.py.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import NoReturn

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from mqcommon.errors import UserError
from mqcommon.memory import keep_freed_memory
from spark_connector.batch_reader import PushDownReader, RocketMQBatchReader
from spark_connector.choosing import with_topics
from spark_connector.offsets import LostRange
from spark_connector.one_line import one_line
from spark_connector.planning import plan, report_lost
from spark_connector.schema import arrow_schema
from spark_connector.store_directory import StoreDirectory, StorePart
from spark_connector.store_files import check_directory
from spark_connector.store_rows import StoreRows


class StoreReader(RocketMQBatchReader):
    """One partition is one range of one queue."""

    def partitions(self) -> Sequence[InputPartition]:
        """The ranges to read. What a broker adds to the directory afterwards is not read."""
        options = self._options
        with one_line():
            check_directory(options.directory)
            store = StoreDirectory(
                options.directory, options.name_of_broker, fail_on_data_loss=options.fail_on_data_loss
            )
            options = with_topics(options, lambda _: store.topics())
            return [InputPartition(store.part(one)) for one in plan(store, options, self._only)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one range."""
        part: StorePart | None = partition.value
        if part is None:  # Spark passes None when there are no partitions
            return
        keep_freed_memory()
        options = self._options
        schema = arrow_schema(self._schema, options.schema_style)
        with one_line():
            check_directory(options.directory)
            yield from StoreRows(
                options.directory, part, schema, options, partial(_lost, options.fail_on_data_loss)
            ).batches()


class PushDownStoreReader(StoreReader, PushDownReader):
    """Lets the query's filters narrow what is read."""


class NoStoreStream(DataSourceStreamReader):
    """Raises an error: a directory has no stream. An error in `streamReader` itself would be hidden by Spark's own."""

    def initialOffset(self) -> NoReturn:
        with one_line():
            raise UserError(
                "option storePath: readStream cannot read a store directory; use spark.read, or leave out storePath and"
                " give nameserver to read a stream from brokers"
            )

    def read(self, partition: InputPartition) -> NoReturn:
        """Never called: every query fails in `initialOffset`."""
        self.initialOffset()


def _lost(fail: bool, lost: LostRange) -> None:
    report_lost([lost], fail=fail)
