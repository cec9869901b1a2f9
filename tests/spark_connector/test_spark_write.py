"""Real Spark writes to brokers over real sockets: what only the whole chain can show."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from skylark.mqcommon.message.message import MessageExt
from skylark.sdk.blocking import PullConsumer
from skylark.sdk.testing import Cluster
from tests.support.spark import patient

pytestmark = pytest.mark.spark

TOPIC = "written"


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=2) as made:
        made.create_topic(TOPIC, queues=2)
        yield made


def stored(cluster: Cluster, topic: str = TOPIC) -> list[MessageExt]:
    """All messages of the topic, queue by queue."""
    with PullConsumer(cluster.nameserver) as consumer:
        queues = consumer.message_queues(topic)
        return [message for mq in queues for message in consumer.messages(mq, 0, consumer.max_offset(mq))]


COLUMNS = [
    "concat('body ', id) body",
    "if(id % 3 = 0, null, concat('t', id % 3)) tags",
    "array('all', concat('k', id)) keys",
    "if(id % 5 = 0, null, map('n', cast(id as string), 'empty', null)) properties",
    "cast(id as int) flag",
    "if(id % 2 = 0, null, concat('s', id % 4)) shardingKey",
]


def test_every_row_is_one_message_with_all_it_asks_for(spark: SparkSession, cluster: Cluster) -> None:
    """Also when the job is run again under the same id."""
    frame = spark.range(0, 300, 1, 2).selectExpr(*COLUMNS)
    writer = frame.write.format("rocketmq").mode("append")
    writer = writer.options(nameserver=cluster.nameserver, topic=TOPIC, queryId="job of today", sendTimeoutMs="500")
    writer.save()
    writer.save()
    messages = {int(message.flag): message for message in stored(cluster)}
    assert sorted(messages) == list(range(300))
    assert len(stored(cluster)) == 300
    for number, message in messages.items():
        assert message.body == b"body %d" % number
        assert message.tags == (f"t{number % 3}" if number % 3 else None)
        assert message.keys == f"all k{number}"
        own = {"n": str(number)} if number % 5 else {}
        assert message.properties.items() >= own.items()
        assert "empty" not in message.properties
        assert message.properties.get("__SHARDINGKEY") == (f"s{number % 4}" if number % 2 else None)
    of_key = {m.properties["__SHARDINGKEY"]: m.queue for m in messages.values() if m.flag % 2}
    assert all(m.queue == of_key[m.properties["__SHARDINGKEY"]] for m in messages.values() if m.flag % 2)
    assert len({message.msg_id for message in messages.values()}) == 300


def test_rows_choose_topics_queues_and_times(spark: SparkSession, cluster: Cluster) -> None:
    for topic in ("one", "two"):
        cluster.create_topic(topic, queues=2)
    frame = spark.range(20).selectExpr(
        "cast(id as string) value",
        "if(id % 2 = 0, 'one', 'two') topic",
        "if(id < 10, 1, null) queueId",
        "if(id < 10, 'broker-a', null) brokerName",
        "timestamp_millis(0) deliverTime",
    )
    frame.write.format("rocketmq").mode("append").options(nameserver=cluster.nameserver, dedup="false").save()
    for topic, first in (("one", 0), ("two", 1)):
        got = stored(cluster, topic)
        assert sorted(int(message.body) for message in got) == list(range(first, 20, 2))
        chosen = {(message.broker_name, message.queue_id) for message in got if int(message.body) < 10}
        assert chosen == {("broker-a", 1)}


def replay(spark: SparkSession, given: dict[str, str], source: Path) -> None:
    """Run the query on all files that it has not seen."""
    rows = spark.readStream.schema("value string, n int").json(str(source)).repartition(2, "n").drop("n")
    writer = rows.writeStream.format("rocketmq").options(**given)
    patient(lambda: writer.trigger(availableNow=True).start().awaitTermination())


def test_an_epoch_that_is_run_again_sends_only_what_is_missing(
    spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    checkpoint, source = tmp_path / "checkpoint", tmp_path / "source"
    source.mkdir()
    given = {"nameserver": cluster.nameserver, "topic": TOPIC, "checkpointLocation": str(checkpoint)}
    lines = [f'{{"value": "{number % 70}", "n": {number}}}\n' for number in range(100)]
    (source / "0.json").write_text("".join(lines))
    replay(spark, given, source)
    for kept in (checkpoint / "commits").glob("*0*"):
        kept.unlink()
    replay(spark, given, source)
    assert (checkpoint / "commits" / "0").exists()
    assert sorted(int(message.body) for message in stored(cluster)) == sorted(n % 70 for n in range(100))


def test_mistakes_are_shown_before_anything_is_sent(spark: SparkSession, cluster: Cluster) -> None:
    rows = spark.range(3).selectExpr("cast(id as string) body", "id")
    wrong = [
        (rows, {}, "append", "column id cannot be written; columns are body, topic"),
        (rows.drop("id"), {"topics": "x"}, "append", "did you mean topic?"),
        (rows.drop("id"), {}, "overwrite", 'use .mode("append")'),
        (rows.drop("id"), {}, "error", 'use either the "Append"'),
        (rows.drop("id"), {"topic": "nowhere"}, "append", "no route for topic nowhere"),
    ]
    for frame, options, mode, said in wrong:
        writer = frame.write.format("rocketmq").mode(mode).options(nameserver=cluster.nameserver, topic=TOPIC)
        with pytest.raises(PySparkException) as caught:
            writer.options(**options).save()
        assert said in str(caught.value).splitlines()[0]
        assert "Traceback" not in str(caught.value)
    assert stored(cluster) == []
