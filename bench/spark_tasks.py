"""Spark batch reads of many queues. The limit: as many rows in few queues, with the same query, in the same session.

    python -m bench.spark_tasks [--json] [--messages N] [--queues N] [--rounds N]

The topics have the same messages, and each queue of a topic has equally many. The session is up and warm before the
clock runs; both sides run in turn, planning included. A NameServer and a broker are started.
"""

import os
import random
import time
from collections.abc import Iterator

import click
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from bench.harness import Row, cluster, in_turn, row, show
from bench.spark_read import BODY_BYTES, FEW_COLUMNS, create_topic, seconds, session
from sdk.blocking import Producer
from spark_connector.schema import spark_schema

FEW_QUEUES = 8


def publish_evenly(nameserver: str, topic: str, count: int) -> None:
    """``count`` messages in all, about equally many for each queue of the topic."""
    body = random.Random(1).randbytes(BODY_BYTES)
    with Producer(nameserver) as producer:
        # A sequence, not an iterator: `send_many` divides it evenly among the queues.
        result = producer.send_many(topic, [body] * count)
    if len(result) != count:
        raise SystemExit(f"{len(result)} of {count} messages were stored")


def measure(spark: SparkSession, nameserver: str, run: str, queues: int, count: int, rounds: int) -> Iterator[Row]:
    """Seconds of a batch read of all columns, and of the two that the query needs."""
    for columns, schema in (("15 columns", spark_schema(include_properties=False)), ("2 columns", FEW_COLUMNS)):

        def read(of_topic: int, schema: StructType | str = schema) -> float:
            reader = spark.read.format("rocketmq").schema(schema)
            return seconds(reader.options(nameserver=nameserver, topic=f"bench-{of_topic}-{run}").load(), count)

        name = f"Spark, {queues} queues, {columns}; limit: {FEW_QUEUES} queues"
        both = in_turn(rounds, lambda read=read: read(queues), lambda read=read: read(FEW_QUEUES))  # type: ignore[misc]
        yield row(name, "s", *both, count, smaller_is_better=True)


@click.command()
@click.option("--messages", default=600_000, show_default=True, help="messages of 128 bytes in each topic")
@click.option("--queues", default=2_000, show_default=True, help="queues of the topic that has many")
@click.option("--rounds", default=5, show_default=True, help="measured rounds; medians count")
@click.option("--json", "as_json", is_flag=True, help="print one JSON object a line")
def main(messages: int, queues: int, rounds: int, as_json: bool) -> None:
    """Measure and print."""
    run = f"{os.getpid()}-{time.time_ns() // 1_000_000}"
    with cluster() as started:
        for count in (queues, FEW_QUEUES):
            create_topic(started.nameserver, f"bench-{count}-{run}", count)
            publish_evenly(started.nameserver, f"bench-{count}-{run}", messages)
        spark = session()
        try:
            show(measure(spark, started.nameserver, run, queues, messages, rounds), as_json)
        finally:
            spark.stop()


if __name__ == "__main__":
    main()
