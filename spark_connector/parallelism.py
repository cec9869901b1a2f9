"""How many tasks the cluster runs at the same time.

Spark plans Python data sources in processes that know neither the session nor its configuration. So `register` puts the
number into the environment that Spark gives to these processes. Without it, as where Spark has found the format itself,
the driver's machine stands for the cluster.
"""

import os

from pyspark import SparkContext

#: Set for Spark's Python processes by `publish`.
VARIABLE = "SKYLARK_SPARK_PARALLELISM"
#: Spark's own value for "no limit".
_UNLIMITED = 2**31 - 1


def publish(context: SparkContext) -> None:
    """Let planning know how many tasks the cluster of ``context`` runs at the same time."""
    conf = context.getConf()
    cores = int(conf.get("spark.executor.cores", "1"))
    # Executors may register after the session has started, and with dynamic allocation they are started for waiting
    # tasks: then the configured number says more than the present one.
    numbers = ("spark.executor.instances", "spark.dynamicAllocation.maxExecutors")
    executors = [int(conf.get(name, "0")) for name in numbers]
    asked_for = [cores * count for count in executors if count < _UNLIMITED]
    told = max(context.defaultParallelism, int(conf.get("spark.cores.max", "0")), *asked_for)
    context.environment[VARIABLE] = str(told)


def parallelism() -> int:
    """How many tasks run at the same time, as far as this process can know."""
    return int(os.environ.get(VARIABLE, "0")) or os.cpu_count() or 1
