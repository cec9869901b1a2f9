"""The demo's Spark job on a real standalone cluster, with one of two workers killed while it reads."""

import json
import os
import sys
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest
import trio

from scripts.daemons import ROOT
from scripts.demo.flights import flight_messages
from scripts.spark_zip import make_zip
from skylark import Producer, PullConsumer
from skylark.remoting.protocol.requests.topics import TopicConfig
from tests.support.daemons import Cluster, make_topic, running
from tests.support.spark_cluster import START_S, SparkCluster, spark_cluster
from tests.support.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.nightly]

COUNT = 20_000


async def test_a_killed_worker_changes_no_result(tmp_path: Path) -> None:
    async with running(tmp_path, brokers=2, options=()) as cluster, spark_cluster(tmp_path) as spark:
        for topic in ("flights", "carriers"):
            await make_topic(cluster, TopicConfig(topic, 4, 4))
        sent = list(islice(flight_messages("flights"), COUNT))
        async with Producer(cluster.nameserver) as producer:
            await producer.send_many("flights", sent)
        result = tmp_path / "result.json"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(job, spark, cluster, tmp_path, result)
            victim = spark.workers[0]
            await until(victim.runs_tasks, "the first worker runs a task", timeout_s=START_S)
            victim.kill()
        found = json.loads(result.read_text(encoding="utf-8"))
        assert "Lost executor" in (tmp_path / "job.log").read_text(encoding="utf-8", errors="replace")
        assert found["rows"] == COUNT
        expected = Counter(message.tags for message in sent)
        assert {row[0]: row[1] for row in found["carriers"]} == expected
        written = [json.loads(body) for body in await bodies(cluster.nameserver, "carriers")]
        assert sorted((row["carrier"], row["flights"]) for row in written) == sorted(expected.items())


async def job(spark: SparkCluster, cluster: Cluster, home: Path, result: Path) -> None:
    zipped = home / "skylark.zip"
    make_zip(zipped)
    conf = {"spark.executor.memory": "512m", "spark.driver.memory": "512m", "spark.driver.host": "127.0.0.1"}
    confs = " ".join(f"--conf {name}={value}" for name, value in conf.items())
    env = {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_SUBMIT_ARGS": f"--py-files {zipped} {confs} pyspark-shell",
    }
    command = [sys.executable, "-m", "scripts.demo.spark_job", "--nameserver", cluster.nameserver]
    more = ["--master", spark.url, "--result", str(result), "--result-topic", "carriers"]
    with (home / "job.log").open("wb") as log:
        await trio.run_process([*command, *more], cwd=ROOT, env=env, stdout=log, stderr=log)


async def bodies(nameserver: str, topic: str) -> list[bytes]:
    found = []
    async with PullConsumer(nameserver, group="test") as consumer:
        for queue in await consumer.message_queues(topic):
            end = await consumer.max_offset(queue)
            async with consumer.stream(queue, 0, end) as batches:
                async for batch in batches:
                    found += [message.body for message in batch]
    return found
