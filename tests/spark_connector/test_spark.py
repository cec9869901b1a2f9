"""Real Spark, real brokers: what only the whole chain can show."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as f

from remoting.protocol.requests.topics import TopicConfig
from sdk import Message, Producer
from spark_connector.schema import spark_schema
from tests.support.daemons import Cluster, make_topic, running

pytestmark = pytest.mark.spark

TOPIC = "flights"
COUNT = 3000


@asynccontextmanager
async def flights(home: Path) -> AsyncIterator[Cluster]:
    """Two brokers that hold the topic, and nothing else in it."""
    async with running(home, brokers=2, options=()) as cluster:
        await make_topic(cluster, TopicConfig(TOPIC, 2, 2))
        async with Producer(cluster.nameserver) as producer:
            await producer.send_many(TOPIC, (sent(number) for number in range(COUNT)))
        yield cluster


def sent(number: int) -> Message:
    return Message(
        TOPIC,
        b"%d" % number * (number % 9),
        tags="AA" if number % 3 else None,
        keys=f"k{number}",
        properties={"n": "x"},
    )


async def collect(frame: DataFrame) -> list[Any]:
    return await trio.to_thread.run_sync(frame.collect)


def read(spark: SparkSession, cluster: Cluster, **options: str) -> DataFrame:
    return spark.read.format("rocketmq").options(nameserver=cluster.nameserver, topic=TOPIC, **options).load()


async def test_every_message_comes_once_with_all_its_fields(spark: SparkSession, tmp_path: Path) -> None:
    async with flights(tmp_path) as cluster:
        frame = read(spark, cluster, includeProperties="true", minPartitions="7")
        assert frame.schema == spark_schema(include_properties=True)
        assert await trio.to_thread.run_sync(frame.rdd.getNumPartitions) == 7
        rows = {row.keys: row for row in await collect(frame)}
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


async def test_spark_computes_on_what_it_gets(spark: SparkSession, tmp_path: Path) -> None:
    """Timestamps, nulls and binary columns mean in the JVM what they mean here."""
    async with flights(tmp_path) as cluster:
        (found,) = await collect(
            read(spark, cluster).agg(
                f.count("*").alias("n"),
                f.count("tags").alias("tagged"),
                f.sum(f.length("body")).alias("bytes"),
                f.max(f.abs(f.timestamp_diff("SECOND", f.col("storeTimestamp"), f.current_timestamp()))).alias("age"),
            )
        )
        assert (found.n, found.tagged) == (COUNT, sum(1 for number in range(COUNT) if number % 3))
        assert found.bytes == sum(len(sent(number).body) for number in range(COUNT))
        assert found.age < 3600


async def test_a_users_schema_chooses_columns(spark: SparkSession, tmp_path: Path) -> None:
    async with flights(tmp_path) as cluster:
        frame = spark.read.format("rocketmq").schema("queueOffset bigint, keys string")
        rows = await collect(frame.options(nameserver=cluster.nameserver, topic=TOPIC).load())
        assert {row.asDict().keys() == {"queueOffset", "keys"} for row in rows} == {True}
        assert len(rows) == COUNT


async def test_chosen_topics_tags_and_filters_of_the_query(spark: SparkSession, tmp_path: Path) -> None:
    tagged = [f"k{number}" for number in range(COUNT) if number % 3]
    async with flights(tmp_path) as cluster:
        source = spark.read.format("rocketmq").options(
            nameserver=cluster.nameserver, subscribePattern="fl.*", subExpression="AA || BB"
        )
        frame = source.options(schemaStyle="kafka", includeHeaders="true").load()
        assert frame.schema == spark_schema(include_properties=True, style="kafka")
        rows = await collect(frame)
        assert sorted(row.key.decode() for row in rows) == sorted(tagged)
        assert {("n", b"x")} == {(name, bytes(value)) for row in rows for name, value in row.headers if name == "n"}
        assert {row.partition % 4096 for row in rows} <= {0, 1}

        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
        wanted = rows[0].partition
        some = source.option("pushdown", "true").load()
        some = some.where(f"partition IN ({wanted}, 7) AND timestamp > '2020-01-01'")
        assert sorted(await collect(some)) == sorted(row for row in rows if row.partition == wanted)


async def test_nothing_to_read_is_no_rows(spark: SparkSession, tmp_path: Path) -> None:
    async with running(tmp_path) as cluster:
        await make_topic(cluster, TopicConfig(TOPIC, 2, 2))
        assert await collect(read(spark, cluster)) == []


async def test_mistakes_are_shown_to_who_made_them(spark: SparkSession, tmp_path: Path) -> None:
    mistakes = [
        ({"startingOfsets": "latest"}, "did you mean startingOffsets?"),
        ({"topic": "nowhere"}, "no route for topic nowhere"),
        ({"nameserver": "127.0.0.1:1"}, "127.0.0.1:1"),
        ({"endingOffsets": json.dumps({TOPIC: {"broker-a": {"0": 5, "1": -1}}})}, "DataLost: 5 messages that"),
    ]
    async with running(tmp_path) as cluster:
        await make_topic(cluster, TopicConfig(TOPIC, 2, 2))
        for options, said in mistakes:
            reader = spark.read.format("rocketmq").options(nameserver=cluster.nameserver, topic=TOPIC)
            with pytest.raises(PySparkException) as caught:
                await trio.to_thread.run_sync(partial(load, reader.options(**options)))
            assert said in str(caught.value).splitlines()[0]


def load(reader: DataFrameReader) -> None:
    reader.load().collect()
