"""Real Spark streams from real brokers: what only the whole chain can show."""

import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming import DataStreamReader, StreamingQuery

from mqcommon.message.queue import MessageQueue
from remoting.protocol.requests.topics import TopicConfig
from sdk import Message, Producer, PullConsumer
from tests.support.daemons import Cluster, make_topic, running, start
from tests.support.spark import in_thread
from tests.support.waiting import until
from tests.tidy.tree import ROOT

pytestmark = pytest.mark.spark

TOPIC = "flights"


async def send(cluster: Cluster, numbers: range, topic: str = TOPIC) -> None:
    async with Producer(cluster.nameserver) as producer:
        await producer.send_many(topic, (Message(topic, b"%d" % number) for number in numbers))


def stream(spark: SparkSession, cluster: Cluster, **options: str) -> DataStreamReader:
    given = {"nameserver": cluster.nameserver, "topic": TOPIC, "startingOffsets": "earliest", **options}
    return (
        spark.readStream.format("rocketmq")
        .schema("body binary, brokerName string, queueOffset bigint")
        .options(**given)
    )


def into_files(reader: DataStreamReader, home: Path, **trigger: Any) -> StreamingQuery:
    writer = reader.load().writeStream.format("parquet").option("path", str(home / "files"))
    return writer.option("checkpointLocation", str(home / "checkpoint")).trigger(**trigger).start()


def run(reader: DataStreamReader, home: Path, **trigger: Any) -> list[Any]:
    """One run to its end; the progress of its micro-batches."""
    query = into_files(reader, home, **(trigger or {"availableNow": True}))
    query.awaitTermination()
    return [json.loads(one.json) for one in query.recentProgress]


def numbers(spark: SparkSession, home: Path) -> list[int]:
    return sorted(int(bytes(row.body)) for row in spark.read.parquet(str(home / "files")).collect())


async def test_each_run_goes_on_where_the_last_one_ended(spark: SparkSession, tmp_path: Path) -> None:
    async with running(tmp_path, brokers=2, options=()) as cluster:
        await make_topic(cluster, TopicConfig(TOPIC, 2, 2))
        await send(cluster, range(100))
        reader = stream(spark, cluster, maxOffsetsPerTrigger="40", commitOffsets="true", consumerGroup="copier")
        progress = await in_thread(spark, partial(run, reader, tmp_path))
        assert [one["numInputRows"] for one in progress] == [40, 40, 20]
        (source,) = progress[0]["sources"]
        end, latest = source["endOffset"], source["latestOffset"]
        queues = [key for key in latest if key.count("|") == 2]
        assert (len(queues), sum(latest[key] - end[key] for key in queues)) == (4, 60)

        await make_topic(cluster, TopicConfig(TOPIC, 3, 3))
        await send(cluster, range(100, 160))
        progress = await in_thread(spark, partial(run, reader, tmp_path, once=True))
        assert [one["numInputRows"] for one in progress] == [60]
        assert await in_thread(spark, partial(numbers, spark, tmp_path)) == list(range(160))
        async with PullConsumer(cluster.nameserver, group="copier") as consumer:
            found = await consumer.message_queues(TOPIC)
            assert len(found) == 6
            committed = [await consumer.committed_offset(queue) for queue in found]
            assert sum(offset or 0 for offset in committed) == 100  # Spark does not tell the end of a run with once


async def test_a_query_reads_what_comes_while_a_broker_goes_and_comes(spark: SparkSession, tmp_path: Path) -> None:
    async with running(tmp_path, brokers=2, options=()) as cluster:
        await make_topic(cluster, TopicConfig(TOPIC, 2, 2))
        await send(cluster, range(50))
        reader = stream(spark, cluster, discoveryIntervalMs="100")
        query = await in_thread(spark, partial(into_files, reader, tmp_path, processingTime="100 milliseconds"))

        async def has_read(count: int) -> None:
            async def enough() -> bool:
                await trio.sleep(0.1)
                assert query.exception() is None
                return sum(one["numInputRows"] for one in query.recentProgress) >= count

            await until(enough, f"{count} messages are read")

        try:
            await has_read(50)
            cluster.brokers[1].kill()
            async with PullConsumer(cluster.nameserver) as consumer:
                await until(lambda: one_broker(consumer), "the other broker is alone")
            await send(cluster, range(50, 80))
            await has_read(80)
            await start(cluster.brokers[1])
            await send_to(cluster, MessageQueue(TOPIC, "broker-b", 1), range(80, 100))
            await has_read(100)
        finally:
            await in_thread(spark, query.stop)
        assert await in_thread(spark, partial(numbers, spark, tmp_path)) == list(range(100))


async def one_broker(consumer: PullConsumer) -> bool:
    return {queue.broker_name for queue in await consumer.message_queues(TOPIC)} == {"broker-a"}


async def send_to(cluster: Cluster, queue: MessageQueue, numbers: range) -> None:
    async with Producer(cluster.nameserver) as producer:
        for number in numbers:
            await producer.send(Message(TOPIC, b"%d" % number), queue=queue)


async def test_the_example_of_the_manual(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (ROOT / "docs" / "spark.md").read_text()
    section = text[text.index("## Streams\n") : text.index("## Data loss\n")]
    monkeypatch.chdir(tmp_path)
    async with running(tmp_path, options=()) as cluster:
        await make_topic(cluster, TopicConfig(TOPIC, 2, 2))
        await send(cluster, range(10))
        names: dict[str, Any] = {"spark": spark}
        for block in section.split("```python\n")[1:]:
            code = block[: block.index("```")].replace("127.0.0.1:9876", cluster.nameserver)
            code = code.replace('"flights/', f'"{tmp_path}{os.sep}flights/')
            await in_thread(spark, partial(exec, code, names))
        assert capsys.readouterr().out == "0 messages are waiting\n"
        rows = await in_thread(spark, lambda: spark.read.parquet(f"{tmp_path}/flights/messages").count())
        assert rows == 10


async def test_mistakes_are_the_first_line_of_the_error(spark: SparkSession, tmp_path: Path) -> None:
    async with running(tmp_path, options=()) as cluster:
        for topic in (TOPIC, "other"):
            await make_topic(cluster, TopicConfig(topic, 1, 1))
        await send(cluster, range(5))
        await in_thread(spark, partial(run, stream(spark, cluster), tmp_path))
        at = str(tmp_path)
        mistakes: list[tuple[Callable[[], Any], str]] = [
            (lambda: spark.readStream.format("rocketmq").load(maxOfsetsPerTrigger="5"), "did you mean maxOffsetsPer"),
            (lambda: run(stream(spark, cluster, endingTimestamp="5"), tmp_path / "new"), "a stream has no end"),
            (lambda: run(stream(spark, cluster, topic="other"), Path(at)), "do not choose: flights broker-a 0"),
        ]
        for use, said in mistakes:
            with pytest.raises(PySparkException) as caught:
                await in_thread(spark, use)
            assert said in str(caught.value).splitlines()[0]
            assert "Traceback" not in str(caught.value)
