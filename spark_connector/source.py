"""The data source behind ``spark.read.format("rocketmq")``, and its registration with a session."""

import subprocess
import sys
from typing import Any, NoReturn

from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType
from pyspark.sql.utils import is_remote

from skylark.mqcommon.errors import SkylarkError, UserError
from skylark.spark_connector.one_line import one_line
from skylark.spark_connector.options.read import ReadOptions, only_of_streams
from skylark.spark_connector.options.write import WriteOptions
from skylark.spark_connector.parallelism import publish
from skylark.spark_connector.reading.batch_reader import PushDownReader, RocketMQBatchReader
from skylark.spark_connector.reading.read_columns import default_columns
from skylark.spark_connector.store.local import local_rows
from skylark.spark_connector.store.reader import PushDownStoreReader, StoreReader
from skylark.spark_connector.stream.reader import RefusedStreamReader, RocketMQStreamReader
from skylark.spark_connector.worker_pickle import pack
from skylark.spark_connector.writing.writer import RocketMQBatchWriter, RocketMQStreamWriter

_PROBE = """
import sys, importlib.util as util
print("%d.%d" % sys.version_info[:2])
print(*[name for name in ("pyarrow", "numpy", "trio", "skylark") if util.find_spec(name) is None])
"""
_PROBE_S = 30
_LIMITS = "maxOffsetsPerTrigger, minOffsetsPerTrigger and maxBytesPerTrigger"


class RocketMQDataSource(DataSource):
    """Topics of a RocketMQ or Skylark cluster as a DataFrame; one row per message."""

    @classmethod
    def name(cls) -> str:
        return "rocketmq"

    def schema(self) -> StructType | str:
        """All columns of a message; ``properties`` only with ``includeProperties=true``."""
        with one_line():
            return default_columns(ReadOptions.parse(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader for ``spark.read``."""
        with one_line():
            if only := only_of_streams(self.options):
                raise UserError(f"option {only[0]} is for spark.readStream; leave it out, or read a stream")
            options = ReadOptions.parse(self.options)
            if options.pushdown and not hasattr(DataSourceReader, "pushFilters"):
                raise UserError("option pushdown=true needs PySpark 4.1 or later")
            if options.store_path:
                return PushDownStoreReader(options, schema) if options.pushdown else StoreReader(options, schema)
            if options.tier_path:
                from skylark.spark_connector.tier.reader import PushDownTierReader, TierReader

                return PushDownTierReader(options, schema) if options.pushdown else TierReader(options, schema)
            kind = PushDownReader if options.pushdown else RocketMQBatchReader
            return kind(options, schema, local=local_rows if options.local_store_path else None)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """The reader for ``spark.readStream``; Spark asks when the query starts, on the driver and for workers."""
        try:
            options = ReadOptions.of_stream(self.options)
            kind = RocketMQStreamReader
            if hasattr(DataSourceStreamReader, "getDefaultReadLimit"):
                from skylark.spark_connector.stream.admitting_reader import AdmittingStreamReader

                kind = AdmittingStreamReader
            elif options.has_limits:
                raise UserError(f"options {_LIMITS} need PySpark 4.2 or later")
            if options.tier_path:
                from skylark.spark_connector.tier.reader import tier_stream_reader

                return tier_stream_reader(kind, options, schema)
            return kind(options, schema)
        except SkylarkError as error:
            return RefusedStreamReader(error)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """The writer for ``write``."""
        if overwrite:
            _refuse('messages of a topic cannot be overwritten; use .mode("append")')
        with one_line():
            options = WriteOptions.parse(self.options)
            writer = RocketMQBatchWriter(options, schema)
            if options.topic and not options.create_topic:
                # Imported here: it imports the event loop, which reading workers do not need.
                from skylark.spark_connector.writing.topic_io import check_topic_exists

                check_topic_exists(options)
            return writer

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """The writer for ``writeStream``; Spark asks for it before each epoch, and after it."""
        if overwrite:
            _refuse('messages of a topic cannot be overwritten; use .outputMode("append") or "update"')
        with one_line():
            return RocketMQStreamWriter(WriteOptions.parse(self.options), schema)

    def __reduce__(self) -> tuple[Any, ...]:
        return pack(self)


def _refuse(text: str) -> NoReturn:
    with one_line():
        raise UserError(text)


def register(spark: SparkSession) -> None:
    """Register ``format("rocketmq")`` with ``spark``; UserError when its Python workers cannot run it."""
    if not is_remote():  # a Spark Connect client does not see the workers' Python
        check_worker_python(spark.sparkContext.pythonExec)
        publish(spark.sparkContext)
    spark.dataSource.register(RocketMQDataSource)


def check_worker_python(python: str) -> None:
    """Raise UserError unless ``python``, the workers' Python, has the driver's version and the required modules."""
    ours = "{}.{}".format(*sys.version_info[:2])
    remedy = f"set PYSPARK_PYTHON={sys.executable} before the session starts"
    try:
        probe = subprocess.run([python, "-c", _PROBE], capture_output=True, text=True, timeout=_PROBE_S, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise UserError(f"Spark's Python workers cannot run {python!r}: {error}; {remedy}") from None
    version, missing = probe.stdout.splitlines()
    if version != ours:
        raise UserError(f"Spark's Python workers run {python!r}, Python {version}, the driver {ours}; {remedy}")
    if missing:
        raise UserError(f"Spark's Python workers run {python!r}, which lacks {missing.replace(' ', ', ')}; {remedy}")
