"""Real Spark writes to real brokers: what only the whole chain can show."""

from functools import partial
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from mqcommon.message.message import MessageExt
from remoting.protocol.requests.topics import TopicConfig
from sdk import PullConsumer
from tests.support.daemons import Cluster, make_topic, running
from tests.support.spark import in_thread

pytestmark = pytest.mark.spark

TOPIC = "written"


async def stored(cluster: Cluster, topic: str = TOPIC) -> list[MessageExt]:
    """All messages of the topic, queue by queue."""
    found: list[MessageExt] = []
    async with PullConsumer(cluster.nameserver) as consumer:
        for mq in await consumer.message_queues(topic):
            async with consumer.stream(mq, 0, await consumer.max_offset(mq)) as batches:
                found += [message async for batch in batches for message in batch]
    return found


COLUMNS = [
    "concat('body ', id) body",
    "if(id % 3 = 0, null, concat('t', id % 3)) tags",
    "array('all', concat('k', id)) keys",
    "if(id % 5 = 0, null, map('n', cast(id as string), 'empty', null)) properties",
    "cast(id as int) flag",
    "if(id % 2 = 0, null, concat('s', id % 4)) shardingKey",
]


async def test_every_row_is_one_message_with_all_it_asks_for(spark: SparkSession, tmp_path: Path) -> None:
    """Also when the job is run again under the same id."""
    async with running(tmp_path, brokers=2, options=()) as cluster:
        await make_topic(cluster, TopicConfig(TOPIC, 2, 2))
        frame = spark.range(0, 300, 1, 2).selectExpr(*COLUMNS)
        writer = frame.write.format("rocketmq").mode("append")
        writer = writer.options(nameserver=cluster.nameserver, topic=TOPIC, queryId="job of today", sendTimeoutMs="500")
        await in_thread(spark, writer.save)
        await in_thread(spark, writer.save)
        messages = {int(message.flag): message for message in await stored(cluster)}
        assert sorted(messages) == list(range(300))
        assert len(await stored(cluster)) == 300
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


async def test_rows_choose_topics_queues_and_times(spark: SparkSession, tmp_path: Path) -> None:
    async with running(tmp_path) as cluster:
        for topic in ("one", "two"):
            await make_topic(cluster, TopicConfig(topic, 2, 2))
        frame = spark.range(20).selectExpr(
            "cast(id as string) value",
            "if(id % 2 = 0, 'one', 'two') topic",
            "if(id < 10, 1, null) queueId",
            "if(id < 10, 'broker-a', null) brokerName",
            "timestamp_millis(0) deliverTime",
        )
        writer = frame.write.format("rocketmq").mode("append").options(nameserver=cluster.nameserver, dedup="false")
        await in_thread(spark, writer.save)
        for topic, first in (("one", 0), ("two", 1)):
            got = await stored(cluster, topic)
            assert sorted(int(message.body) for message in got) == list(range(first, 20, 2))
            assert {message.queue_id for message in got if int(message.body) < 10} == {1}


def replay(spark: SparkSession, given: dict[str, str], source: Path) -> None:
    """Run the query on all files that it has not seen."""
    rows = spark.readStream.schema("value string, n int").json(str(source)).repartition(2, "n").drop("n")
    writer = rows.writeStream.format("rocketmq").options(**given)
    writer.trigger(availableNow=True).start().awaitTermination()


async def test_an_epoch_that_is_run_again_sends_only_what_is_missing(spark: SparkSession, tmp_path: Path) -> None:
    checkpoint, source = tmp_path / "checkpoint", tmp_path / "source"
    source.mkdir()
    async with running(tmp_path) as cluster:
        await make_topic(cluster, TopicConfig(TOPIC, 2, 2))
        given = {"nameserver": cluster.nameserver, "topic": TOPIC, "checkpointLocation": str(checkpoint)}
        lines = [f'{{"value": "{number % 70}", "n": {number}}}\n' for number in range(100)]
        (source / "0.json").write_text("".join(lines))
        await in_thread(spark, partial(replay, spark, given, source))
        for kept in (checkpoint / "commits").glob("*0*"):
            kept.unlink()
        await in_thread(spark, partial(replay, spark, given, source))
        assert (checkpoint / "commits" / "0").exists()
        assert sorted(int(message.body) for message in await stored(cluster)) == sorted(n % 70 for n in range(100))


async def test_mistakes_are_shown_before_anything_is_sent(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.range(3).selectExpr("cast(id as string) body", "id")
    wrong = [
        (rows, {}, "append", "column id cannot be written; columns are body, topic"),
        (rows.drop("id"), {"topics": "x"}, "append", "did you mean topic?"),
        (rows.drop("id"), {}, "overwrite", 'use .mode("append")'),
        (rows.drop("id"), {}, "error", 'use either the "Append"'),
        (rows.drop("id"), {"topic": "nowhere"}, "append", "no route for topic nowhere"),
    ]
    async with running(tmp_path) as cluster:
        await make_topic(cluster, TopicConfig(TOPIC, 2, 2))
        for frame, options, mode, said in wrong:
            writer = frame.write.format("rocketmq").mode(mode).options(nameserver=cluster.nameserver, topic=TOPIC)
            with pytest.raises(PySparkException) as caught:
                await in_thread(spark, writer.options(**options).save)
            assert said in str(caught.value)
            assert "Traceback" not in str(caught.value)
        assert await stored(cluster) == []
