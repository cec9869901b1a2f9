"""A Spark data source that reads and writes topics: ``spark.read.format("rocketmq")``, ``df.write.format("rocketmq")``.

source.py      the data source; `register(spark)` checks the workers' Python first
options/       what users may write in ``option(...)``
formats/       bodies as values of Spark's types, and back
reading/       batches from brokers
store/         batches from a store directory
stream/        micro-batches
writing/       ``df.write`` and ``df.writeStream``
jobs/, lag.py  programs for ``spark-submit``; how far queries are behind
schema.py      columns, in Spark's and in Arrow's types, and in the styles of other sources
offsets.py     ranges of offsets; tasks.py groups them into tasks: pure. parallelism.py: how many tasks run at once
styles.py      columns of stored records in those styles; sdk/arrow decodes them
worker_pickle.py   pickling, with a clear error when a worker runs another Python, or another version
one_line.py    errors without the traceback of Spark's workers
"""

import sys

from skylark.mqcommon.extras import install_line
from skylark.mqcommon.version import VERSION
from skylark.sdk.last_resort import print_warnings_of

try:
    from skylark.spark_connector.source import RocketMQDataSource, register
except ModuleNotFoundError as error:
    if (error.name or "").split(".")[0] not in ("numpy", "pyarrow", "pyspark"):
        raise
    raise ModuleNotFoundError(
        f"{error}: {sys.executable} lacks it. Type {install_line('spark')} there; or, when that is a Python"
        " worker of Spark, set PYSPARK_PYTHON to a Python that has it before the session starts",
        name=error.name,
    ) from None

# The processes that Spark starts have no logging of their own. Each lost range and each broker is to be seen.
print_warnings_of("skylark.spark_connector", lines=1_000)

__all__ = ["VERSION", "RocketMQDataSource", "register"]

if __name__ == "spark_connector":
    from skylark.old_names import lend

    lend(__name__)
