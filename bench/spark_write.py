"""Spark batch writes, from rows in the JVM's memory to acknowledged messages. The limit: the same rows to nowhere.

    python -m bench.spark_write [--json] [--messages N] [--rounds N] [--nameserver ADDR]

The limit is a Spark sink that takes the same Arrow batches and drops them, so only Spark's own work remains. All write
the same cached rows, in the same session, in turn. The session is up and warm before the clock runs.
Without --nameserver a NameServer and a broker are started.
"""

import os
import time
from collections.abc import Callable, Iterator

import click
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from bench.harness import Row, cluster, in_turn, row, show
from bench.spark_read import BODY_BYTES, CORES, create_topic, session
from skylark.sdk.blocking import PullConsumer


class NowhereSource(DataSource):
    """A sink that drops what it gets."""

    @classmethod
    def name(cls) -> str:
        return "nowhere"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return NowhereWriter()


class NowhereWriter(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()


def bodies(spark: SparkSession, count: int) -> DataFrame:
    """``count`` rows with bodies of 128 bytes, in the JVM's memory."""
    frame = spark.range(0, count, 1, CORES).selectExpr(f"cast(lpad(id, {BODY_BYTES}, 'x') as binary) body").cache()
    frame.count()
    return frame


def stored(nameserver: str, topic: str) -> int:
    """How many messages the topic has."""
    with PullConsumer(nameserver, heartbeat=False) as consumer:
        return sum(consumer.max_offset(queue) for queue in consumer.message_queues(topic))


def rate(write: Callable[[], None], count: int) -> float:
    started = time.perf_counter()
    write()
    return count / (time.perf_counter() - started)


def measure(frame: DataFrame, nameserver: str, topic: str, count: int, rounds: int) -> Iterator[Row]:
    """Without and with recognising rows that were sent before."""
    nowhere = frame.write.format("nowhere").mode("append")
    for dedup in ("false", "true"):
        options = {"nameserver": nameserver, "topic": topic, "dedup": dedup}

        def ours(options: dict[str, str] = options) -> float:
            before = stored(nameserver, topic)
            found = rate(frame.write.format("rocketmq").options(**options).mode("append").save, count)
            if stored(nameserver, topic) != before + count:
                raise SystemExit(f"{stored(nameserver, topic) - before} messages stored instead of {count}")
            return found

        def limit() -> float:
            return rate(nowhere.save, count)

        name = f"Spark batch write, {BODY_BYTES} B, dedup={dedup}"
        yield row(name, "rows/s", *in_turn(rounds, ours, limit), count)


@click.command()
@click.option("--messages", default=1_000_000, show_default=True, help="messages of 128 bytes that each round writes")
@click.option("--rounds", default=5, show_default=True, help="measured rounds; medians count")
@click.option("--nameserver", help="measure against this cluster instead of one started here")
@click.option("--json", "as_json", is_flag=True, help="print one JSON object a line")
def main(messages: int, rounds: int, nameserver: str | None, as_json: bool) -> None:
    """Measure and print."""

    def rows(nameserver: str) -> Iterator[Row]:
        topic = f"bench-write-{os.getpid()}-{time.time_ns() // 1_000_000}"
        create_topic(nameserver, topic)
        spark = session()
        spark.dataSource.register(NowhereSource)
        try:
            yield from measure(bodies(spark, messages), nameserver, topic, messages, rounds)
        finally:
            spark.stop()

    if nameserver is not None:
        show(rows(nameserver), as_json)
        return
    with cluster() as started:
        show(rows(started.nameserver), as_json)


if __name__ == "__main__":
    main()
