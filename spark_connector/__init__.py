"""A Spark data source that reads and writes topics: ``spark.read.format("rocketmq")``, ``df.write.format("rocketmq")``.

source.py         the data source; `register(spark)` checks the workers' Python first
options.py        options of reading, with select_options.py, stream_options.py; connection_options.py: of writing, too
schema.py         columns, in Spark's and in Arrow's types, and in the styles of other sources
planning.py       plans ranges: asks brokers, then calls offsets.py (pure); with choosing.py and pushdown.py (filters)
batch_reader.py   partitions on the driver, record batches in the workers, with pulling.py (bytes), data_loss.py
stream_reader.py  streams: with admitting_reader.py (PySpark 4.2), stream_driver.py, stream_queues.py (asks brokers),
                  stream_offsets.py (the checkpoint), admission.py (limits)
decode.py         decodes bytes to a record batch, with records.py, property_pairs.py, columns.py and json_text.py
writer.py         writers of batches and streams, with write_options.py, write_columns.py, write_rows.py, target.py
once.py           sends each row once, with row_keys.py, task.py, topic_io.py and sending.py
landing.py        pickling, with a clear error when a worker runs another Python, or another version (version.py);
                  one_line.py: errors without the traceback of Spark's workers
jobs/             programs for spark-submit: copy_topic and audit_topic
"""

import sys

from spark_connector.version import VERSION

try:
    from spark_connector.source import RocketMQDataSource, register
except ModuleNotFoundError as error:
    if (error.name or "").split(".")[0] not in ("numpy", "pyarrow", "pyspark"):
        raise
    raise ModuleNotFoundError(
        f"{error}: {sys.executable} lacks it. Install Skylark with its extra spark there; or, when that is a Python"
        " worker of Spark, set PYSPARK_PYTHON to a Python that has it before the session starts",
        name=error.name,
    ) from None

__all__ = ["VERSION", "RocketMQDataSource", "register"]
