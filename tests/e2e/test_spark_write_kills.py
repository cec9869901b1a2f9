"""A stream that is written to a topic while its query and the broker are killed: each row is there once."""

from collections import Counter
from pathlib import Path
from random import Random

import pytest
import trio

from skylark.remoting.protocol.requests.topics import TopicConfig
from tests.e2e.spark_job import POLL_S, Job, bodies, count
from tests.support.daemons import make_topic, running, start
from tests.support.rounds import report
from tests.support.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.nightly]

TOPIC = "written"
FILES, LINES = 40, 1_000
TIMEOUT_S = 900


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
        job = Job(
            tmp_path,
            "tests.e2e.spark_write_job",
            cluster.nameserver,
            TOPIC,
            str(tmp_path / "source"),
            str(tmp_path / "checkpoint"),
        )
        try:
            for number in range(kills):
                wanted = len(lines) * (number + 1) // (kills + 1) - random.randrange(LINES)

                async def has_some(wanted: int = wanted) -> bool:
                    await trio.sleep(POLL_S)
                    return job.ended_well or await count(cluster, TOPIC) >= wanted

                await until(has_some, f"{wanted} rows are written", TIMEOUT_S)
                if number % 2:
                    job.kill_and_start()
                else:
                    cluster.brokers[0].kill()
                    await start(cluster.brokers[0])
            await until(lambda: job.ended_well, "all is written", TIMEOUT_S)
        finally:
            await trio.to_thread.run_sync(job.kill)
        found, wanted_once = Counter(await bodies(cluster, TOPIC)), Counter(line.encode() for line in lines)
        report(kills, acknowledged=len(lines), lost=(wanted_once - found).total())
        assert found == wanted_once
