"""The batch reader of a store directory: plans on the driver from its files, reads in tasks, without any broker.

Planning is planning.py's, with store_directory.py in place of brokers; rows come from store_rows.py.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from mqcommon.memory import keep_freed_memory
from spark_connector.choosing import with_topics
from spark_connector.landing import pack
from spark_connector.offsets import LostRange
from spark_connector.one_line import one_line
from spark_connector.options import ReadOptions
from spark_connector.planning import plan, report_lost
from spark_connector.pushdown import ALL, wanted_by
from spark_connector.schema import arrow_schema
from spark_connector.store_directory import StoreDirectory, StorePart
from spark_connector.store_files import check_directory
from spark_connector.store_rows import StoreRows

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter  # PySpark 4.0 has none


class StoreReader(DataSourceReader):
    """One partition is one range of one queue."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._only = ALL
        arrow_schema(schema, options.schema_style)  # raises for an unusable schema before anything is planned

    def __reduce__(self) -> tuple[Any, ...]:
        return pack(self)

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


class PushDownStoreReader(StoreReader):
    """Lets the query's filters narrow what is read, as `PushDownReader` does."""

    def pushFilters(self, filters: "list[Filter]") -> "Iterable[Filter]":
        """All filters are returned: Spark applies them again, so reading too much does no harm."""
        with one_line():
            self._only = wanted_by(filters, self._options.schema_style)
            self._options = self._only.with_tags(self._options)
        return filters


def _lost(fail: bool, lost: LostRange) -> None:
    report_lost([lost], fail=fail)
