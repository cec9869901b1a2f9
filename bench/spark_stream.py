"""Spark streams: the steady rate of micro-batches. The limit: a batch read of the same topic with the same query.

    python -m bench.spark_stream [--json] [--messages N] [--rounds N]

The first micro-batch of a stream does not count: its processes have just been started. The session is up and warm, and
both sides run in turn. A NameServer and a broker are started.
"""

import os
import time
from collections.abc import Iterator

import click
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamReader
from pyspark.sql.types import StructType

from bench.harness import Row, cluster, in_turn, row, show
from bench.spark_read import BODY_BYTES, FEW_COLUMNS, create_topic, publish, seconds, session
from skylark.spark_connector.schema import spark_schema

EPOCHS = 5


def rate(reader: DataStreamReader, count: int) -> float:
    """The steady rate of a stream that reads ``count`` rows in a few micro-batches, in rows a second."""
    read: list[int] = []

    def add(frame: DataFrame, epoch: int) -> None:
        read.append(frame.selectExpr("count(*) n", "sum(length(body)) bytes", "max(queueOffset) last").collect()[0].n)

    limited = reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", -(-count // EPOCHS))
    query = limited.load().writeStream.foreachBatch(add).trigger(availableNow=True).start()
    query.awaitTermination()
    if sum(read) != count:
        raise SystemExit(f"{sum(read)} rows instead of {count}")
    steady = query.recentProgress[1:EPOCHS]
    return 1000 * sum(read[1:]) / sum(epoch.batchDuration for epoch in steady)


def measure(spark: SparkSession, nameserver: str, topic: str, count: int, rounds: int) -> Iterator[Row]:
    """All columns, and the two that the query needs."""
    for columns, schema in (("15 columns", spark_schema(include_properties=False)), ("2 columns", FEW_COLUMNS)):

        def stream(schema: StructType | str = schema) -> float:
            reader = spark.readStream.format("rocketmq").schema(schema)
            return rate(reader.options(nameserver=nameserver, topic=topic), count)

        def batch(schema: StructType | str = schema) -> float:
            reader = spark.read.format("rocketmq").schema(schema)
            return count / seconds(reader.options(nameserver=nameserver, topic=topic).load(), count)

        name = f"Spark stream, {BODY_BYTES} B, {columns}"
        yield row(name, "rows/s", *in_turn(rounds, stream, batch), count)


@click.command()
@click.option("--messages", default=2_000_000, show_default=True, help="messages of 128 bytes")
@click.option("--rounds", default=5, show_default=True, help="measured rounds; medians count")
@click.option("--json", "as_json", is_flag=True, help="print one JSON object a line")
def main(messages: int, rounds: int, as_json: bool) -> None:
    """Measure and print."""
    topic = f"bench-stream-{os.getpid()}-{time.time_ns() // 1_000_000}"
    with cluster() as started:
        create_topic(started.nameserver, topic)
        publish(started.nameserver, topic, messages, keyed=False)
        spark = session()
        try:
            show(measure(spark, started.nameserver, topic, messages, rounds), as_json)
        finally:
            spark.stop()


if __name__ == "__main__":
    main()
