"""The Spark session of the tests that need one, and how they call it from trio.

The fixture `spark` is imported by the conftest.py of packages with such tests. A process starts one JVM and one session
for all of them: each start is seconds. So tests read and write topics and files of their own.
"""

import os
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pytest
import trio
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from skylark.spark_connector import register
from tests.support.spark_home import spark_python
from tests.support.waiting import DEADLINE_S
from tests.tidy.tree import ROOT

T = TypeVar("T")

SLOW_WORKER = "Python worker failed to connect back"
MOST_STARTS = 20


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A session whose workers run this Python and find this tree."""
    conf = {
        "spark.master": "local[2]",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "OFF",
        "spark.driver.memory": "512m",
        # How long a worker may take to say who it is; 15 s by default.
        "spark.python.authenticate.socketTimeout": "300s",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
    }
    # The JVM takes the environment when it starts; what other tests start does not get it.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", spark_python())
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])))
        session: SparkSession = SparkSession.builder.config(map=conf).getOrCreate()
    register(session)
    yield session
    # Each conftest.py has this fixture for itself; they share the session.
    if SparkContext._gateway is not None:
        session.stop()
        _end_jvm()


def _end_jvm() -> None:
    """End the JVM now: PySpark has it end with this process, which may go on for long."""
    gateway = SparkContext._gateway
    assert gateway is not None
    SparkContext._gateway = SparkContext._jvm = None
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(DEADLINE_S)


def patient(run: Callable[[], T]) -> T:
    """Run a stream to its end; once more when a busy machine had not started its worker within ten seconds.

    No option of Spark changes that time. Without its worker a stream has read and written nothing.
    """
    for _ in range(MOST_STARTS):
        try:
            return run()
        except PySparkException as error:
            if SLOW_WORKER not in str(error):
                raise
    return run()


async def in_thread(spark: SparkSession, function: Callable[[], Any]) -> Any:
    """Run ``function``; writers find the format in the session of their thread only."""

    def run() -> Any:
        assert spark._jvm is not None
        spark._jvm.SparkSession.setActiveSession(spark._jsparkSession)
        return function()

    return await trio.to_thread.run_sync(run)
