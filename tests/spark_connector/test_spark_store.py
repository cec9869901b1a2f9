"""Real Spark reads store directories: what only the whole chain can show. Also the example that replays a backup."""

from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from skylark.sdk.blocking import PullConsumer
from skylark.sdk.testing import Cluster
from skylark.spark_connector.schema import spark_schema
from tests.broker.store.support import put
from tests.spark_connector.stores import BROKER, copied, opened, options_of, read
from tests.support.spark import patient
from tests.tidy.tree import ROOT

pytestmark = pytest.mark.spark

NOON_MS = 1_795_262_400_000  # of 2026-11-21, UTC
HOUR_MS = 3_600_000
DAY = "2026-11-21"


@pytest.fixture
def backup(tmp_path: Path) -> Path:
    """The store that a kill left: 200 messages, one an hour, the last 100 in no queue."""
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
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
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
        patient(lambda: writer.start().awaitTermination())
    assert "readStream cannot read a store directory" in str(caught.value).splitlines()[0]


def test_a_day_of_a_backup_is_sent_again(spark: SparkSession, backup: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    import replay_backup  # type: ignore[import-not-found]

    with Cluster() as cluster, PullConsumer(cluster.nameserver) as consumer:
        cluster.create_topic("again", queues=2)
        for _ in range(2):
            replay_backup.main(str(backup), "flights", DAY, cluster.nameserver, "again")
        queues = consumer.message_queues("again")
        found = [message for mq in queues for message in consumer.messages(mq, 0, consumer.max_offset(mq))]
    sent = [(message.body, message.tags) for message in found if message.body]
    assert sorted(sent) == sorted((b"flight %d" % number, f"t{number % 3}") for number in range(12))
