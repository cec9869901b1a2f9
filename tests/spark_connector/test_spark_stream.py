"""Real Spark streams from brokers over real sockets: what only the whole chain can show."""

import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from click.testing import CliRunner, Result
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming import DataStreamReader, StreamingQuery

from skylark import Message
from skylark.mqadmin.cli import mqadmin as commands
from skylark.mqcommon.message.queue import MessageQueue
from skylark.sdk.blocking import Admin, Producer, PullConsumer
from skylark.sdk.testing import Cluster
from skylark.spark_connector.lag import lag
from tests.support.manual import blocks, where
from tests.support.spark import patient
from tests.support.waiting import until
from tests.tidy.tree import ROOT

pytestmark = pytest.mark.spark

TOPIC = "flights"


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=2) as made:
        made.create_topic(TOPIC, queues=2)
        yield made


def send(cluster: Cluster, numbers: range, queue: MessageQueue | None = None) -> None:
    with Producer(cluster.nameserver) as producer:
        for number in numbers:
            producer.send(Message(TOPIC, b"%d" % number), queue=queue)


def wait_for(reached: Callable[[], bool], what: str) -> None:
    trio.run(until, partial(trio.to_thread.run_sync, reached), what, 120)


def brokers_of(consumer: PullConsumer) -> set[str]:
    return {queue.broker_name for queue in consumer.message_queues(TOPIC)}


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

    def to_its_end() -> StreamingQuery:
        query = into_files(reader, home, **(trigger or {"availableNow": True}))
        query.awaitTermination()
        return query

    return [json.loads(one.json) for one in patient(to_its_end).recentProgress]


def numbers(spark: SparkSession, home: Path) -> list[int]:
    return sorted(int(bytes(row.body)) for row in spark.read.parquet(str(home / "files")).collect())


def test_each_run_goes_on_where_the_last_one_ended(spark: SparkSession, cluster: Cluster, tmp_path: Path) -> None:
    send(cluster, range(100))
    reader = stream(spark, cluster, maxOffsetsPerTrigger="40", commitOffsets="true", consumerGroup="copier")
    progress = run(reader, tmp_path)
    assert [one["numInputRows"] for one in progress] == [40, 40, 20]
    lags = [lag(one) for one in progress]
    assert [one and one.rows for one in lags] == [60, 20, 0]
    assert lags[0] is not None and lags[0].age_ms is not None and lags[0].size_bytes is not None

    with PullConsumer(cluster.nameserver, group="copier") as consumer:
        cluster.create_topic(TOPIC, queues=3)
        wait_for(lambda: len(consumer.message_queues(TOPIC)) == 6, "the new queues are known")
        send(cluster, range(100, 160))
        progress = run(reader, tmp_path, once=True)
        assert [one["numInputRows"] for one in progress] == [60]
        assert numbers(spark, tmp_path) == list(range(160))
        committed = [consumer.committed_offset(queue) for queue in consumer.message_queues(TOPIC)]
        assert sum(offset or 0 for offset in committed) == 100  # Spark does not tell the end of a run with once


def test_a_topic_that_is_made_again_ends_a_query_or_is_read_from_its_beginning(
    spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    send(cluster, range(20))
    run(stream(spark, cluster), tmp_path)
    with Admin(cluster.nameserver) as admin:
        for node in cluster.brokers:
            admin.delete_topic_in_broker(node.address, TOPIC)
    cluster.create_topic(TOPIC, queues=2)
    send(cluster, range(100, 300))  # more than the old one had, in each queue
    with pytest.raises(PySparkException, match="the topic was deleted and made again"):
        run(stream(spark, cluster), tmp_path)
    progress = run(stream(spark, cluster, failOnDataLoss="false"), tmp_path)
    assert [one["numInputRows"] for one in progress] == [200]
    assert numbers(spark, tmp_path) == [*range(20), *range(100, 300)]


def test_a_query_reads_what_comes_while_a_broker_goes_and_comes(
    spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    send(cluster, range(50))

    def started() -> StreamingQuery:
        reader = stream(spark, cluster, discoveryIntervalMs="100", onBrokerAway="continue")
        query = into_files(reader, tmp_path, processingTime="100 milliseconds")
        wait_for(lambda: query.recentProgress or query.exception() is not None, "it reads")
        if (error := query.exception()) is not None:
            raise error
        return query

    query = patient(started)

    def has_read(count: int) -> bool:
        assert query.exception() is None
        return sum(one["numInputRows"] for one in query.recentProgress) >= count

    try:
        wait_for(lambda: has_read(50), "50 messages are read")
        cluster.brokers[1].kill()
        with PullConsumer(cluster.nameserver) as consumer:
            wait_for(lambda: brokers_of(consumer) == {"broker-a"}, "the other broker is alone")
        send(cluster, range(50, 80))
        wait_for(lambda: has_read(80), "80 messages are read")
        cluster.brokers[1].start()
        send(cluster, range(80, 100), MessageQueue(TOPIC, "broker-b", 1))
        wait_for(lambda: has_read(100), "100 messages are read")
    finally:
        query.stop()
    assert numbers(spark, tmp_path) == list(range(100))


def test_the_example_of_the_manual(
    spark: SparkSession,
    cluster: Cluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = (ROOT / "docs" / "guides" / "spark-streams.md").read_text()
    monkeypatch.chdir(tmp_path)
    send(cluster, range(10))
    names: dict[str, Any] = {"spark": spark}
    for block in text.split("```python\n")[1:]:
        code = block[: block.index("```")].replace("127.0.0.1:9876", cluster.nameserver)
        patient(partial(exec, code.replace('"flights/', f'"{tmp_path}{os.sep}flights/'), names))
    spark.streams.removeListener(names["listener"])
    assert capsys.readouterr().out == "0 messages are waiting, the oldest for 0 ms\n"
    assert spark.read.parquet(f"{tmp_path}/flights/messages").count() == 10


@pytest.mark.nightly
@pytest.mark.parametrize("pages", [("spark", "spark-streams", "spark-writing"), ("spark-from-kafka",)])
def test_the_blocks_of_the_guide_run(
    pages: tuple[str, ...], spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    for topic in ("orders", "copies", "flights-late"):
        cluster.create_topic(topic)
    send(cluster, range(10))
    with Producer(cluster.nameserver) as producer:
        for topic in ("orders", "flights-late"):
            producer.send(Message(topic, b'{"id": 1, "price": 2.5, "at": "2026-01-31 12:00:10"}', tags="late"))
    store = cluster.brokers[0].directory
    replaced = {
        '"flights/': f'"{tmp_path}{os.sep}flights/',
        "127.0.0.1:9876": cluster.nameserver,
        "namesrv-1:9876;namesrv-2:9876": cluster.nameserver,
        "/backup/broker-a/store": str(store),
        "/var/lib/skylark/{broker}/store": f"{store.parent}/{{broker}}",
    }
    names: dict[str, Any] = {"spark": spark}
    typed = [block for page in pages for block in blocks(f"docs/guides/{page}.md") if block.language == "python"]
    for block in typed:
        if block.not_run or block.title:
            continue
        code = block.text
        for old, new in replaced.items():
            code = code.replace(old, new)
        patient(partial(exec, compile(code, where(block), "exec"), names))
    if "listener" in names:
        spark.streams.removeListener(names["listener"])


def test_mistakes_are_the_first_line_of_the_error(spark: SparkSession, cluster: Cluster, tmp_path: Path) -> None:
    cluster.create_topic("other", queues=1)
    send(cluster, range(5))
    run(stream(spark, cluster), tmp_path)
    mistakes: list[tuple[Callable[[], Any], str]] = [
        (lambda: spark.readStream.format("rocketmq").load(maxOfsetsPerTrigger="5"), "did you mean maxOffsetsPer"),
        (partial(run, stream(spark, cluster, endingTimestamp="5"), tmp_path / "new"), "a stream has no end"),
        (partial(run, stream(spark, cluster, topic="other"), tmp_path), "do not choose: flights broker-a 0"),
    ]
    for use, said in mistakes:
        with pytest.raises(PySparkException) as caught:
            use()
        assert said in str(caught.value).splitlines()[0]
        assert "Traceback" not in str(caught.value)


@pytest.mark.nightly
def test_a_topic_shrinks_under_a_query(spark: SparkSession, cluster: Cluster, tmp_path: Path) -> None:
    """With commitOffsets the command waits for the query; each message is read once."""
    send(cluster, range(50))
    reader = stream(spark, cluster, discoveryIntervalMs="100", commitOffsets="true", consumerGroup="copier")
    query = into_files(reader, tmp_path, processingTime="100 milliseconds")

    def has_read(count: int) -> bool:
        assert query.exception() is None
        send(cluster, range(1))  # offsets are committed at the next micro-batch
        return sum(one["numInputRows"] for one in query.recentProgress) >= count

    def mqadmin(*words: str) -> Result:
        return CliRunner().invoke(commands, [*words, "-n", cluster.nameserver])

    try:
        wait_for(lambda: has_read(50), "50 messages are read")
        with ThreadPoolExecutor(1) as pool:
            shrunk = pool.submit(
                mqadmin,
                "shrinkTopic",
                "-t",
                TOPIC,
                "-c",
                "DefaultCluster",
                "-w",
                "1",
                "--settle",
                "1",
                "--deadline",
                "60",
            )
            send(cluster, range(50, 80))
            wait_for(lambda: has_read(80) and shrunk.done(), "the topic has shrunk")
        assert shrunk.result().exit_code == 0, shrunk.result().output
        send(cluster, range(80, 100))
        wait_for(lambda: has_read(100) and {*range(100)} <= {*numbers(spark, tmp_path)}, "the rest is read")
    finally:
        query.stop()
    found = [number for number in numbers(spark, tmp_path) if number]
    assert found == list(range(1, 100))
