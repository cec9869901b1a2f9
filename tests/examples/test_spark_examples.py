"""The programs of examples/ that need Spark, in the session of the tests."""

import json
from collections import Counter
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import trio
from pyspark.sql import SparkSession

from skylark import Message, Producer, PullConsumer
from skylark.remoting.protocol.requests.topics import TopicConfig
from tests.support.daemons import Cluster, make_topic, running
from tests.support.spark import in_thread, patient
from tests.tidy.tree import ROOT

pytestmark = pytest.mark.spark

TIMEOUT_S = 300


@pytest.fixture(autouse=True)
def _path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "examples"))


async def test_each_run_adds_what_is_new(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    example: Any = import_module("topic_to_parquet")
    async with running(tmp_path, options=()) as cluster:
        await make_topic(cluster, TopicConfig("flights", 2, 2))
        for _ in range(2):
            async with Producer(cluster.nameserver) as producer:
                await producer.send_many("flights", [b"late"] * 30)
            run = partial(example.main, cluster.nameserver, "flights", str(tmp_path / "out"))
            await in_thread(spark, partial(patient, run))
    said = capsys.readouterr().out.splitlines()
    assert [line.split(" in ")[0] for line in said] == ["30 messages", "60 messages"]


@pytest.mark.nightly
async def test_messages_are_counted_in_windows(spark: SparkSession, tmp_path: Path) -> None:
    """Windows of a second, so that the first of them ends soon."""
    example: Any = import_module("windowed_counts")
    async with running(tmp_path, options=()) as cluster, trio.open_nursery() as nursery:
        for topic in ("flights", "counts"):
            await make_topic(cluster, TopicConfig(topic, 1, 1))
        checkpoint = str(tmp_path / "checkpoint")
        run = partial(example.main, cluster.nameserver, "flights", "counts", checkpoint, "1 second", "0 seconds")
        nursery.start_soon(in_thread, spark, run)
        with trio.fail_after(TIMEOUT_S):
            found, sent = await counts_of_three(cluster)
        await in_thread(spark, lambda: [query.stop() for query in spark.streams.active])
    for body in found:
        row = json.loads(body)
        assert row["tags"] in ("a", "b") and row["from"].startswith("20")
        assert 0 < row["count"] <= sent[row["tags"]]


async def counts_of_three(cluster: Cluster) -> tuple[list[bytes], Counter[str]]:
    """Send until three counts are there; (the counts, how many of each tag were sent)."""
    sent: Counter[str] = Counter()
    async with Producer(cluster.nameserver) as producer, PullConsumer(cluster.nameserver) as consumer:
        (queue,) = await consumer.message_queues("counts")
        while True:
            for tag in "aab":
                await producer.send(Message("flights", b"late", tags=tag))
                sent[tag] += 1
            result = await consumer.pull(queue, 0, wait_ms=200)
            if len(result.messages) >= 3:
                return [message.body for message in result.messages], sent
