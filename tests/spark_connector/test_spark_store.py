"""Real Spark reads store directories: what only the whole chain can show. Also the example that replays a backup."""

import os
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from remoting.protocol.requests.topics import TopicConfig
from sdk import PullConsumer
from spark_connector import register
from spark_connector.schema import spark_schema
from tests.broker.store.support import put
from tests.spark_connector.stores import BROKER, copied, opened, options_of, read
from tests.support.daemons import make_topic, running
from tests.tidy.tree import ROOT

pytestmark = pytest.mark.spark

NOON_MS = 1_795_262_400_000  # of 2026-11-21, UTC
HOUR_MS = 3_600_000
DAY = "2026-11-21"


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    """A session whose workers run this Python and find this tree."""
    patch = pytest.MonkeyPatch()
    patch.setenv("PYSPARK_PYTHON", sys.executable)
    patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])))
    conf = {
        "spark.master": "local[2]",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "OFF",
        "spark.driver.memory": "512m",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.python.filterPushdown.enabled": "true",
    }
    session: SparkSession = SparkSession.builder.config(map=conf).getOrCreate()
    register(session)
    yield session
    session.stop()
    patch.undo()


@pytest.fixture
def backup(tmp_path: Path) -> Path:
    """What a kill left: 200 messages, one an hour, the last 100 in no queue."""
    options = options_of(tmp_path / "store")
    for part in range(2):
        with opened(options) as store:
            for number in range(100 * part, 100 * part + 100):
                store.follow_time(NOON_MS + number * HOUR_MS)
                put(store, "flights", number % 2, b"flight %d" % number, b"TAGS\x01t%d\x02" % (number % 3))
            copy = copied(tmp_path / "store", tmp_path)
    return copy


def test_a_query_of_a_directory(spark: SparkSession, backup: Path) -> None:
    given = {"storePath": str(backup), "brokerName": BROKER, "topic": "flights", "includeProperties": "true"}
    frame = spark.read.format("rocketmq").options(**given, minPartitions="5").load()
    assert frame.schema == spark_schema(include_properties=True)
    found = sorted(frame.collect(), key=lambda row: (row["queueId"], row["queueOffset"]))
    expected = read(backup)
    for row, wanted in zip(found, expected, strict=True):
        assert (bytes(row.body), row.tags, row.offsetMsgId, row.properties) == (
            wanted["body"], wanted["tags"], wanted["offsetMsgId"], dict(wanted["properties"]),
        )  # fmt: skip
    some = spark.read.format("rocketmq").options(**given, pushdown="true").load()
    some = some.where("queueId = 1 AND tags IN ('t1', 't2')")
    assert some.count() == sum(row["queueId"] == 1 and row["tags"] != "t0" for row in expected)


def test_mistakes_are_shown_first(spark: SparkSession, backup: Path, tmp_path: Path) -> None:
    mistakes = [
        ({"storePath": str(tmp_path / "nowhere")}, "is no directory on this machine"),
        ({"storePath": str(backup), "nameserver": "h:1"}, "option nameserver is for brokers"),
        ({"storePath": str(backup), "topic": "trains"}, "it has messages of flights"),
    ]
    for given, said in mistakes:
        with pytest.raises(PySparkException) as caught:
            spark.read.format("rocketmq").options(**{"topic": "flights", **given}).load().collect()
        assert said in str(caught.value).splitlines()[0]
    stream = spark.readStream.format("rocketmq").options(storePath=str(backup), topic="flights").load()
    writer = stream.writeStream.format("console").option("checkpointLocation", str(tmp_path / "checkpoint"))
    with pytest.raises(PySparkException) as caught:
        writer.start().awaitTermination()
    assert "readStream cannot read a store directory" in str(caught.value).splitlines()[0]


async def test_a_day_of_a_backup_is_sent_again(
    spark: SparkSession, backup: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    import replay_backup  # type: ignore[import-not-found]

    def replay(nameserver: str) -> Any:
        assert spark._jvm is not None
        spark._jvm.SparkSession.setActiveSession(spark._jsparkSession)
        return replay_backup.main(str(backup), "flights", DAY, nameserver, "again")

    async with running(tmp_path) as cluster:
        await make_topic(cluster, TopicConfig("again", 2, 2))
        for _ in range(2):
            await trio.to_thread.run_sync(partial(replay, cluster.nameserver))
        found = []
        async with PullConsumer(cluster.nameserver) as consumer:
            for mq in await consumer.message_queues("again"):
                async with consumer.stream(mq, 0, await consumer.max_offset(mq)) as batches:
                    found += [message async for batch in batches for message in batch]
    sent = [(message.body, message.tags) for message in found if message.body]
    assert sorted(sent) == sorted((b"flight %d" % number, f"t{number % 3}") for number in range(12))
