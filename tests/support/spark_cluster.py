"""A standalone Spark cluster of real processes on loopback: one master, and workers of one core each."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pyspark

from tests.support.waiting import until

SPARK_HOME = Path(pyspark.__file__).parent
START_S = 120
_MASTER_AT = re.compile(r"Starting Spark master at (spark://127\.0\.0\.1:\d+)")
_REGISTERED = "Successfully registered with master"


@dataclass
class SparkProcess:
    """A master or a worker, with its log and the directory of its executors."""

    process: subprocess.Popen[bytes]
    log: Path
    work: Path

    def said(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def is_registered(self) -> bool:
        return _REGISTERED in self.said()

    def runs_tasks(self) -> bool:
        """Whether one of its executors has begun a task."""
        return any("Running task" in log.read_text(errors="replace") for log in self.work.glob("app-*/*/stderr"))

    def kill(self) -> None:
        """SIGKILL for the worker and for its executors, as when the machine fails."""
        tasks = Path(f"/proc/{self.process.pid}/task").glob("*/children")
        executors = [int(pid) for task in tasks for pid in task.read_text().split()]
        self.process.kill()
        for pid in executors:
            os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(START_S)


@dataclass
class SparkCluster:
    """The cluster; ``url`` is its master's."""

    url: str
    workers: list[SparkProcess]


@asynccontextmanager
async def spark_cluster(home: Path, workers: int = 2) -> AsyncIterator[SparkCluster]:
    """The processes run in the block."""
    master = _start(home, "master", "org.apache.spark.deploy.master.Master", "--port", "0")
    started = [master]
    try:
        await until(lambda: bool(_MASTER_AT.search(master.said())), "the master of Spark is up", timeout_s=START_S)
        found = _MASTER_AT.search(master.said())
        assert found is not None
        options = ("--port", "0", "--cores", "1", "--memory", "600m")
        for number in range(workers):
            kind = "org.apache.spark.deploy.worker.Worker"
            work = str(home / f"worker-{number}")
            started.append(_start(home, f"worker-{number}", kind, *options, "--work-dir", work, found[1]))
        for worker in started[1:]:
            await until(worker.is_registered, "a worker is registered", timeout_s=START_S)
        yield SparkCluster(found[1], started[1:])
    finally:
        for each in reversed(started):
            each.end()


def _start(home: Path, name: str, kind: str, *arguments: str) -> SparkProcess:
    log = home / f"{name}.log"
    env = {
        **os.environ,
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "PYSPARK_PYTHON": sys.executable,
    }
    command = [str(SPARK_HOME / "bin" / "spark-class"), kind, "--host", "127.0.0.1", "--webui-port", "0", *arguments]
    with log.open("wb") as out:  # spark-class replaces itself by Java, so the pid is Java's
        process = subprocess.Popen(command, env=env, stdout=out, stderr=out)
    return SparkProcess(process, log, home / name)
