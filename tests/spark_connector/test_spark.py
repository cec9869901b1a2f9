"""Real Spark, brokers over real sockets: what only the whole chain can show."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from skylark import Message
from skylark.sdk.blocking import Producer
from skylark.sdk.testing import Cluster
from skylark.spark_connector import RocketMQDataSource, register
from skylark.spark_connector.parallelism import VARIABLE
from skylark.spark_connector.schema import spark_schema

pytestmark = pytest.mark.spark

TOPIC = "flights"
COUNT = 1_000
ENDS = {"broker-a": {"0": 5, "1": -1}, "broker-b": {"0": -1, "1": -1}}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Two brokers that hold the messages of one topic, which tests only read, and nothing in topic ``empty``."""
    with Cluster(brokers=2) as made, Producer(made.nameserver) as producer:
        made.create_topic(TOPIC, queues=2)
        made.create_topic("empty", queues=2)
        producer.send_many(TOPIC, [sent(number) for number in range(COUNT)])
        yield made


def sent(number: int) -> Message:
    return Message(
        TOPIC,
        b"%d" % number * (number % 9),
        tags="AA" if number % 3 else None,
        keys=f"k{number}",
        properties={"n": "x"},
    )


def read(spark: SparkSession, cluster: Cluster, **options: str) -> DataFrame:
    given = {"nameserver": cluster.nameserver, "topic": TOPIC, **options}
    return spark.read.format("rocketmq").options(**given).load()


def test_every_message_comes_once_with_all_its_fields(spark: SparkSession, cluster: Cluster) -> None:
    frame = read(spark, cluster, includeProperties="true", minPartitions="7")
    assert frame.schema == spark_schema(include_properties=True)
    assert frame.rdd.getNumPartitions() == 7
    rows = {row.keys: row for row in frame.collect()}
    assert sorted(rows) == sorted(f"k{number}" for number in range(COUNT))
    for number in range(COUNT):
        message, row = sent(number), rows[f"k{number}"]
        assert (row.topic, bytes(row.body), row.tags) == (TOPIC, message.body, message.tags)
        assert row.properties.items() >= (message.properties or {}).items()
        assert row.msgId == row.properties["UNIQ_KEY"]
    offsets: dict[tuple[str, int], list[int]] = {}
    for row in rows.values():
        offsets.setdefault((row.brokerName, row.queueId), []).append(row.queueOffset)
    assert all(sorted(found) == list(range(len(found))) for found in offsets.values())
    assert len(offsets) > 1


def test_many_queues_are_few_tasks(spark: SparkSession, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.create_topic("wide", queues=24)
    bodies = [b"%d" % number for number in range(48 * 25)]
    with Producer(cluster.nameserver) as producer:
        producer.send_many("wide", bodies)
    assert read(spark, cluster, topic="wide").rdd.getNumPartitions() == 1, "few bytes"
    assert read(spark, cluster, topic="wide", bytesPerTask="0").rdd.getNumPartitions() == 4, "two cores"
    # Planning runs in a process that has no session: it is told how many tasks run at once.
    monkeypatch.setitem(spark.sparkContext.environment, VARIABLE, "1")
    spark.dataSource.register(RocketMQDataSource)
    frame = read(spark, cluster, topic="wide", bytesPerTask="0")
    monkeypatch.undo()
    register(spark)
    assert frame.rdd.getNumPartitions() == 2
    rows = frame.collect()
    assert sorted(bytes(row.body) for row in rows) == sorted(bodies)
    last: dict[tuple[str, int], int] = {}
    for row in rows:
        assert row.queueOffset == last.get((row.brokerName, row.queueId), -1) + 1
        last[row.brokerName, row.queueId] = row.queueOffset


def test_spark_computes_on_what_it_gets(spark: SparkSession, cluster: Cluster) -> None:
    """Timestamps, nulls and binary columns mean in the JVM what they mean here."""
    (found,) = (
        read(spark, cluster)
        .agg(
            f.count("*").alias("n"),
            f.count("tags").alias("tagged"),
            f.sum(f.length("body")).alias("bytes"),
            f.max(f.abs(f.timestamp_diff("SECOND", f.col("storeTimestamp"), f.current_timestamp()))).alias("age"),
        )
        .collect()
    )
    assert (found.n, found.tagged) == (COUNT, sum(1 for number in range(COUNT) if number % 3))
    assert found.bytes == sum(len(sent(number).body) for number in range(COUNT))
    assert found.age < 3600


def test_a_users_schema_chooses_columns(spark: SparkSession, cluster: Cluster) -> None:
    frame = spark.read.format("rocketmq").schema("queueOffset bigint, keys string")
    rows = frame.options(nameserver=cluster.nameserver, topic=TOPIC).load().collect()
    assert {row.asDict().keys() == {"queueOffset", "keys"} for row in rows} == {True}
    assert len(rows) == COUNT


def test_chosen_topics_tags_and_filters_of_the_query(spark: SparkSession, cluster: Cluster) -> None:
    tagged = [f"k{number}" for number in range(COUNT) if number % 3]
    source = spark.read.format("rocketmq").options(
        nameserver=cluster.nameserver, subscribePattern="fl.*", subExpression="AA || BB"
    )
    frame = source.options(schemaStyle="kafka", includeHeaders="true").load()
    assert frame.schema == spark_schema(include_properties=True, style="kafka")
    rows = frame.collect()
    assert sorted(row.key.decode() for row in rows) == sorted(tagged)
    assert {("n", b"x")} == {(name, bytes(value)) for row in rows for name, value in row.headers if name == "n"}
    assert {row.partition % 4096 for row in rows} <= {0, 1}

    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    wanted = rows[0].partition
    some = source.option("pushdown", "true").load()
    some = some.where(f"partition IN ({wanted}, 7) AND timestamp > '2020-01-01'")
    assert sorted(some.collect()) == sorted(row for row in rows if row.partition == wanted)


def test_nothing_to_read_is_no_rows(spark: SparkSession, cluster: Cluster) -> None:
    assert read(spark, cluster, topic="empty").collect() == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"startingOfsets": "latest"}, "did you mean startingOffsets?"),
        ({"topic": "nowhere"}, "no route for topic nowhere"),
        ({"nameserver": "127.0.0.1:1"}, "127.0.0.1:1"),
        ({"topic": "empty", "endingOffsets": json.dumps({"empty": ENDS})}, "DataLost: 5 messages that"),
    ],
)
def test_mistakes_are_shown_to_who_made_them(
    spark: SparkSession, cluster: Cluster, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(PySparkException) as caught:
        read(spark, cluster, **options).collect()
    assert said in str(caught.value).splitlines()[0]
