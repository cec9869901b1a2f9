"""The batch reader of a store directory: plans on the driver from its files, reads in tasks, without any broker.

Planning is reading/planning.py's, with directory.py in place of brokers; rows come from rows.py.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from mqcommon.daemons.malloc import keep_freed_memory
from spark_connector.landing import pack
from spark_connector.one_line import one_line
from spark_connector.options.read import FAIL, ReadOptions
from spark_connector.reading.choosing import with_topics
from spark_connector.reading.data_loss import report_lost
from spark_connector.reading.planning import plan
from spark_connector.reading.pushdown import ALL, wanted_by
from spark_connector.schema import arrow_schema
from spark_connector.store.files import reading
from spark_connector.store.queue import StorePart
from spark_connector.store.rows import StoreRows

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
        # Here, since tasks do without it, and it imports much of the broker's store.
        from spark_connector.store.directory import StoreDirectory

        options = self._options
        with one_line(), reading(options.directory):
            store = StoreDirectory(
                options.directory, options.name_of_broker, fail_on_data_loss=options.when_lost == FAIL
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
        with one_line(), reading(options.directory):
            yield from StoreRows(
                options.directory, part, schema, options, lambda lost: report_lost([lost], options)
            ).batches()


class PushDownStoreReader(StoreReader):
    """Lets the query's filters narrow what is read, as `PushDownReader` does."""

    def pushFilters(self, filters: "list[Filter]") -> "Iterable[Filter]":
        """All filters are returned: Spark applies them again, so reading too much does no harm."""
        with one_line():
            self._only = wanted_by(filters, self._options.schema_style)
            self._options = self._only.with_tags(self._options)
        return filters
