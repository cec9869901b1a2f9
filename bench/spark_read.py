"""Spark batch read, from the broker's log to an aggregate in the JVM. The limit: the same rows from memory.

    python -m bench.spark_read [--json] [--messages N] [--rounds N] [--nameserver ADDR]

The limit is a Spark data source that returns the same ready Arrow batches again and again, so only Spark's own work
remains. Both sides run the same query, which needs every row and every body, in the same session, in turn.
The broker that is started here has its store directory read, too, without asking it.
The session is up and warm before the clock runs. Without --nameserver a NameServer and a broker are started.
"""

import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import click
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from bench.harness import BROKER, Row, cluster_at, in_turn, row, show
from skylark import Message
from skylark.mqcommon.message.queue import MessageQueue
from skylark.mqcommon.names import MASTER_ID
from skylark.remoting.protocol.requests.topics import TopicConfig
from skylark.sdk.blocking import Admin, Producer, PullConsumer
from skylark.spark_connector import register
from skylark.spark_connector.offsets import OffsetRange
from skylark.spark_connector.options.read import ReadOptions
from skylark.spark_connector.reading.batch_reader import decode_buffer
from skylark.spark_connector.reading.pulling import Buffer
from skylark.spark_connector.schema import arrow_schema, spark_schema

CORES = 2
BATCH_ROWS = 10_000
BODY_BYTES = 128
QUEUES = 4
WAIT_S = 20
FEW_COLUMNS = "queueOffset bigint, body binary"
SESSION: dict[str, bool | float | int | str | None] = {
    "spark.master": f"local[{CORES}]",
    "spark.driver.memory": "2g",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    # two cores: the collector that shares none of them with the query costs least
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": str(CORES),
    # Spark 4.1 and later: workers and JVM talk over a Unix socket instead of loopback TCP; an eighth faster here
    "spark.python.unix.domain.socket.enabled": "true",
}


class MemorySource(DataSource):
    """``rows`` rows from the Arrow file ``file``, in ``partitions`` partitions."""

    @classmethod
    def name(cls) -> str:
        return "memory"

    def reader(self, schema: StructType) -> DataSourceReader:
        return MemoryReader(self.options["file"], int(self.options["rows"]), schema.names)


class MemoryReader(DataSourceReader):
    def __init__(self, file: str, rows: int, names: list[str]) -> None:
        self.file = file
        self.rows = rows
        self.names = names

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(self.rows * (n + 1) // CORES - self.rows * n // CORES) for n in range(CORES)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with pa.memory_map(self.file) as source:
            batch = pa.ipc.open_file(source).get_batch(0).select(self.names)
            left = partition.value
            while left > 0:
                yield batch.slice(0, left)
                left -= batch.num_rows


def create_topic(nameserver: str, topic: str, queues: int = QUEUES) -> None:
    """Create the topic on every master that the NameServer knows; waits for the first, which may just have started."""
    with Admin(nameserver) as admin:
        deadline = time.monotonic() + WAIT_S
        while not (brokers := admin.cluster_info().broker_addr_table) and time.monotonic() < deadline:
            time.sleep(0.05)
        for broker in brokers.values():
            admin.create_topic(broker.broker_addrs[MASTER_ID], TopicConfig(topic, queues, queues))
        while topic not in admin.topic_list():
            if time.monotonic() > deadline:
                raise SystemExit(f"no NameServer knows topic {topic} after {WAIT_S} s")
            time.sleep(0.05)


def publish(nameserver: str, topic: str, count: int, *, keyed: bool) -> None:
    """``count`` messages: bodies of 128 bytes; or of 64 to 192 bytes, each with a tag and two keys."""
    body = random.Random(1).randbytes(192)
    with Producer(nameserver) as producer:
        if keyed:
            messages = (
                Message(topic, body[: 64 + n % 129], tags=("AA", "UA", "B6")[n % 3], keys=f"{n} 2013-{n % 12}")
                for n in range(count)
            )
            result = producer.send_many(topic, messages)
        else:
            result = producer.send_many(topic, (body[:BODY_BYTES] for _ in range(count)))
    if len(result) != count:
        raise SystemExit(f"{len(result)} of {count} messages were stored")


def sample(nameserver: str, topic: str, file: Path) -> None:
    """An Arrow file of one batch of the topic's own rows, decoded: what the limit hands over."""
    schema = arrow_schema(spark_schema(include_properties=False))
    with PullConsumer(nameserver, heartbeat=False) as consumer:
        queue: MessageQueue = max(consumer.message_queues(topic), key=consumer.max_offset)
        data = consumer.pull_bytes(queue, 0, max_count=BATCH_ROWS).data
    options = ReadOptions.parse({"topic": topic, "maxRecordsPerBatch": str(BATCH_ROWS)})
    (batch,) = decode_buffer(Buffer(0, data), OffsetRange(queue, 0, BATCH_ROWS), schema, options)
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        writer.write_batch(batch)


def seconds(frame: DataFrame, count: int) -> float:
    """How long a query takes that needs every row and every body."""
    started = time.perf_counter()
    (found,) = frame.selectExpr("count(*) n", "sum(length(body)) bytes", "max(queueOffset) last").collect()
    took = time.perf_counter() - started
    if found.n != count:
        raise SystemExit(f"{found.n} rows instead of {count}")
    return took


def measure(
    spark: SparkSession, nameserver: str, topic: str, name: str, count: int, rounds: int, store: str | None
) -> Iterator[Row]:
    """All columns, and the two that the query needs; from the broker, and from the directory ``store``."""
    sources = {"batch read": {"nameserver": nameserver}}
    if store:
        sources["batch read, localStorePath"] = {"nameserver": nameserver, "localStorePath": store}
        sources["store directory"] = {"storePath": store}
    with tempfile.TemporaryDirectory() as home:
        sample(nameserver, topic, Path(home, "batch.arrow"))
        whole = spark_schema(include_properties=False)
        for columns, schema in (("15 columns", whole), ("2 columns", FEW_COLUMNS)):

            def limit(schema: StructType | str = schema) -> float:
                reader = spark.read.format("memory").schema(schema)
                return count / seconds(reader.options(file=f"{home}/batch.arrow", rows=count).load(), count)

            for source, given in sources.items():
                # load() anew each time: planning, with its questions to brokers, is part of a read
                def ours(schema: StructType | str = schema, given: dict[str, str] = given) -> float:
                    reader = spark.read.format("rocketmq").schema(schema)
                    return count / seconds(reader.options(**given, topic=topic).load(), count)

                yield row(f"Spark {source}, {name}, {columns}", "rows/s", *in_turn(rounds, ours, limit), count)


def session() -> SparkSession:
    """The session with both sources."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.getcwd(), os.environ.get("PYTHONPATH")]))
    spark: SparkSession = SparkSession.builder.config(map=SESSION).getOrCreate()
    register(spark)
    spark.dataSource.register(MemorySource)
    return spark


@click.command()
@click.option("--messages", default=2_000_000, show_default=True, help="messages of 128 bytes")
@click.option("--keyed", default=1_000_000, show_default=True, help="messages of 64 to 192 bytes, with tags and keys")
@click.option("--rounds", default=5, show_default=True, help="measured rounds; medians count")
@click.option("--nameserver", help="measure against this cluster instead of one started here")
@click.option("--json", "as_json", is_flag=True, help="print one JSON object a line")
def main(messages: int, keyed: int, rounds: int, nameserver: str | None, as_json: bool) -> None:
    """Measure and print."""

    def rows(nameserver: str, store: str | None) -> Iterator[Row]:
        run = f"{os.getpid()}-{time.time_ns() // 1_000_000}"
        shapes = [("bench-plain", f"{BODY_BYTES} B", messages), ("bench-keyed", "64-192 B with keys", keyed)]
        for topic, _, count in shapes:
            create_topic(nameserver, f"{topic}-{run}")
            publish(nameserver, f"{topic}-{run}", count, keyed=topic == "bench-keyed")
        spark = session()
        try:
            for topic, name, count in shapes:
                yield from measure(spark, nameserver, f"{topic}-{run}", name, count, rounds, store)
        finally:
            spark.stop()

    if nameserver is not None:
        show(rows(nameserver, None), as_json)
        return
    with tempfile.TemporaryDirectory() as home, cluster_at(home) as started:
        show(rows(started.nameserver, f"{home}/{BROKER}"), as_json)


if __name__ == "__main__":
    main()
