"""Jobs of Spark in processes of their own, which tests kill, and what they have written to topics."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Set
from contextlib import suppress
from pathlib import Path
from random import Random

from pyspark.sql import SparkSession

from skylark import PullConsumer
from skylark.mqcommon.errors import SkylarkError
from skylark.spark_connector import register
from tests.support.daemons import Cluster
from tests.support.spark_home import SPARK_PYTHON, spark_python
from tests.tidy.tree import ROOT

# Each question opens a client.
POLL_S = 0.2


class Job:
    """The job's processes: the driver and its JVM in one session, and the workers, which are forks of a warm Python."""

    def __init__(self, home: Path, module: str, *args: str, environment: Mapping[str, str] | None = None) -> None:
        self._log = home / "job.log"
        self._command = [sys.executable, "-m", module, *args]
        spark_python = os.environ[SPARK_PYTHON]
        self._environment = {
            **os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": spark_python, **(environment or {})
        }  # fmt: skip
        self._process = self._start()

    def _start(self) -> "subprocess.Popen[bytes]":
        with self._log.open("ab") as log:
            return subprocess.Popen(
                self._command, stdout=log, stderr=log, cwd=ROOT, env=self._environment, start_new_session=True
            )

    @property
    def ended_well(self) -> bool:
        """Whether it has written all; started again when it has failed, as the broker was away too long."""
        code = self._process.poll()
        if code:
            self._process = self._start()
        return code == 0

    def kill(self) -> None:
        """kill -9 the driver and its JVM, and by that what the JVM has started; tasks find their pipes closed."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def kill_and_start(self) -> None:
        self.kill()
        self._process = self._start()

    def kill_a_worker(self, random: Random) -> None:
        """kill -9 one of Spark's Python processes, if there is one now."""
        forks = self._forks("pyspark.")
        _kill_one([*forks, *_children(forks)], random)

    def kill_a_task(self, random: Random) -> None:
        """kill -9 one of the processes that run tasks, if there is one now. Spark runs the task again."""
        # Queries fail without the process that forks those that run tasks.
        _kill_one(_children(self._forks("pyspark.daemon\0pyspark.worker")), random)

    def kill_a_planner(self, random: Random) -> None:
        """kill -9 one of the processes that plan micro-batches, if there is one now. Its query fails, and the job."""
        _kill_one(self._forks("pyspark.sql.streaming.python_streaming_source_runner"), random)

    def _forks(self, module: str) -> set[int]:
        """The processes that stand behind this job's processes of tests/support/like_python.py with ``module``."""
        found = [self._fork(pid, module) for pid in _processes()]
        return {pid for pid in found if pid}

    def _fork(self, pid: int, module: str) -> int:
        """0 for another process."""
        place = Path(f"/proc/{pid}")
        try:
            is_ours = os.getsid(pid) == self._process.pid
            is_ours = (
                is_ours
                and f"{self._environment['PYSPARK_PYTHON']}\0-m\0{module}".encode() in (place / "cmdline").read_bytes()
            )
            name = (place / "comm").read_text().strip() if is_ours else ""
        except OSError:  # it has ended
            return 0
        return int(name) if name.isdigit() else 0


def _kill_one(pids: list[int], random: Random) -> None:
    if pids:
        with suppress(ProcessLookupError):  # it has ended
            os.kill(random.choice(sorted(pids)), signal.SIGKILL)


def _processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _children(parents: Set[int]) -> list[int]:
    return [pid for pid in _processes() if _parent(pid) in parents]


def _parent(pid: int) -> int:
    """0 for a process that has ended."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def job_session(master: str = "local[2]") -> SparkSession:
    """The session of a job."""
    os.environ["PYSPARK_PYTHON"] = spark_python()
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


def committed(files: Path) -> list[Path]:
    """The files that Spark counts: files of killed tasks are in the directory, too. Each tenth list has all so far."""
    lists = {int(one.stem): one for one in (files / "_spark_metadata").glob("[0-9]*")}
    first = max((number for number, one in lists.items() if one.suffix), default=0)
    lines = [line for number in sorted(lists) if number >= first for line in lists[number].read_text().splitlines()[1:]]
    return [Path(json.loads(line)["path"].removeprefix("file://")) for line in lines]


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
