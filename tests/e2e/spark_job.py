"""Jobs of Spark in processes of their own, which tests kill, and what they have written to topics."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from random import Random

from pyspark.sql import SparkSession

from mqcommon.errors import SkylarkError
from sdk import PullConsumer
from spark_connector import register
from tests.support.daemons import Cluster
from tests.tidy.tree import ROOT

# Each question opens a client.
POLL_S = 0.2


class Job:
    """The job's processes: the driver, its JVM and, as their children, the workers; all in one session."""

    def __init__(self, home: Path, module: str, *args: str) -> None:
        self._log = home / "job.log"
        self._command = [sys.executable, "-m", f"tests.e2e.{module}", *args]
        self._process = self._start()

    def _start(self) -> "subprocess.Popen[bytes]":
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        with self._log.open("ab") as log:
            return subprocess.Popen(
                self._command, stdout=log, stderr=log, cwd=ROOT, env=environment, start_new_session=True
            )

    @property
    def ended_well(self) -> bool:
        """Whether it has written all; started again when it has failed, as the broker was away too long."""
        code = self._process.poll()
        if code:
            self._process = self._start()
        return code == 0

    def kill(self) -> None:
        """kill -9 the driver and its JVM; the workers find their pipes closed."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def kill_and_start(self) -> None:
        self.kill()
        self._process = self._start()

    def kill_a_worker(self, random: Random) -> None:
        """kill -9 one of Spark's Python processes, if there is one now."""
        workers = [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if self._has_worker(pid)]
        if workers:
            os.kill(random.choice(sorted(workers)), signal.SIGKILL)

    def _has_worker(self, pid: int) -> bool:
        try:
            is_ours = os.getsid(pid) == self._process.pid
            return is_ours and b"\0pyspark." in Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:  # it has ended
            return False


def job_session(master: str = "local[2]") -> SparkSession:
    """The session of a job."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark: SparkSession = (
        SparkSession.builder.master(master)
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "512m")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    register(spark)
    return spark


async def count(cluster: Cluster, topic: str) -> int:
    """How many messages there are; 0 while the broker is away."""
    try:
        async with PullConsumer(cluster.nameserver, heartbeat=False) as consumer:
            return sum([await consumer.max_offset(mq) for mq in await consumer.message_queues(topic)])
    except SkylarkError:
        return 0


async def bodies(cluster: Cluster, topic: str) -> list[bytes]:
    """The bodies of all messages of the topic."""
    found: list[bytes] = []
    async with PullConsumer(cluster.nameserver, heartbeat=False) as consumer:
        for mq in await consumer.message_queues(topic):
            async with consumer.stream(mq, 0, await consumer.max_offset(mq)) as batches:
                found += [message.body async for batch in batches for message in batch]
    return found
