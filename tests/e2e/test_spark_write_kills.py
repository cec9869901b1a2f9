"""A stream that is written to a topic while its query and the broker are killed: each row is there once."""

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from random import Random

import pytest
import trio

from mqcommon.errors import SkylarkError
from remoting.protocol.bodies.topic import TopicConfig
from sdk import PullConsumer
from tests.support.cluster import Cluster, make_topic, running
from tests.support.waiting import until
from tests.tidy.tree import ROOT

pytestmark = [pytest.mark.spark, pytest.mark.nightly]

TOPIC = "written"
FILES, LINES = 40, 1_000
TIMEOUT_S = 900
# Each question opens a client.
POLL_S = 0.2


class Job:
    """The job's processes: the driver, its JVM and, as their children, the workers."""

    def __init__(self, home: Path, cluster: Cluster) -> None:
        self._log = home / "job.log"
        self._args = [cluster.nameserver, TOPIC, str(home / "source"), str(home / "checkpoint")]
        self._process = self._start()

    def _start(self) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "tests.e2e.spark_write_job", *self._args]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        with self._log.open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, cwd=ROOT, env=environment, start_new_session=True)

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


async def count(cluster: Cluster) -> int:
    """How many messages there are; 0 while the broker is away."""
    try:
        async with PullConsumer(cluster.nameserver, heartbeat=False) as consumer:
            return sum([await consumer.max_offset(mq) for mq in await consumer.message_queues(TOPIC)])
    except SkylarkError:
        return 0


async def bodies(cluster: Cluster) -> list[bytes]:
    found: list[bytes] = []
    async with PullConsumer(cluster.nameserver, heartbeat=False) as consumer:
        for mq in await consumer.message_queues(TOPIC):
            async with consumer.stream(mq, 0, await consumer.max_offset(mq)) as batches:
                found += [message.body async for batch in batches for message in batch]
    return found


@pytest.mark.parametrize("kills", [3, 20])
async def test_each_row_is_written_once_whatever_is_killed(kills: int, seed: int, tmp_path: Path) -> None:
    random = Random(seed)
    (tmp_path / "source").mkdir()
    lines = [f"line {number % 30_000}" for number in range(FILES * LINES)]
    for number in range(FILES):
        part = lines[number * LINES : (number + 1) * LINES]
        (tmp_path / "source" / f"{number}.txt").write_text("\n".join(part) + "\n")
    async with running(tmp_path, options=()) as cluster:
        await make_topic(cluster, TopicConfig(TOPIC, 4, 4))
        job = Job(tmp_path, cluster)
        try:
            for number in range(kills):
                wanted = len(lines) * (number + 1) // (kills + 1) - random.randrange(LINES)

                async def has_some(wanted: int = wanted) -> bool:
                    await trio.sleep(POLL_S)
                    return job.ended_well or await count(cluster) >= wanted

                await until(has_some, f"{wanted} rows are written", TIMEOUT_S)
                if number % 2:
                    job.kill_and_start()
                else:
                    cluster.brokers[0].kill()
                    cluster.brokers[0].start()
                    await until(cluster.brokers[0].ready, "the broker is back")
            await until(lambda: job.ended_well, "all is written", TIMEOUT_S)
        finally:
            await trio.to_thread.run_sync(job.kill)
        assert Counter(await bodies(cluster)) == Counter(line.encode() for line in lines)
