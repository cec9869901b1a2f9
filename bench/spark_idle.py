"""Spark streams without messages: their processor time, and empty triggers. The limit: Spark's source `rate`.

    python -m bench.spark_idle [--json] [--seconds N] [--queues N] [--rounds N]

Processor time is counted of the JVM and Spark's Python processes together. The default trigger asks again all the time.
`rate` has a row a second, so it runs a micro-batch a second. Empty triggers are timed by Spark's own progress, with a
trigger of half a second: then nothing waits for messages inside the trigger. A NameServer and a broker are started.
"""

import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from typing import Any

import click
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamReader

from bench.harness import Row, cluster, in_turn, row, show
from bench.instances import children, cpu_of
from bench.spark_read import create_topic, session
from bench.spark_tasks import publish_evenly

FEW_QUEUES = 8
# In each queue, before the streams start.
MESSAGES = 10
WARM_S = 4.0
TRIGGERS = 8
WAIT_S = 120.0


def started(reader: DataStreamReader, **trigger: Any) -> StreamingQuery:
    """A query that drops its rows; its first micro-batch is done."""
    query = reader.load().writeStream.format("noop").trigger(**(trigger or {"processingTime": "0 seconds"})).start()
    _wait(query, lambda: bool(query.recentProgress))
    return query


def idle_share(reader: DataStreamReader, jvm: int, seconds: float) -> float:
    """The share of a core (%) that Spark's processes use while the query is idle."""
    query = started(reader)
    time.sleep(WARM_S)
    began, before_s = time.monotonic(), cpu_of(_tree(jvm))
    time.sleep(seconds)
    used_s = cpu_of(_tree(jvm)) - before_s
    share = 100 * used_s / (time.monotonic() - began)
    query.stop()
    return share


def empty_trigger_ms(reader: DataStreamReader) -> float:
    """The median time of a trigger that finds nothing."""
    query = started(reader, processingTime="500 milliseconds")

    def found() -> list[int]:
        empty = [one for one in query.recentProgress if not one.numInputRows and "addBatch" not in one.durationMs]
        return [one.durationMs["triggerExecution"] for one in empty]

    _wait(query, lambda: len(found()) > TRIGGERS)
    # The first trigger still has to load what later triggers use again.
    times = found()[1:]
    query.stop()
    return median(times)


def _wait(query: StreamingQuery, reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not reached():
        if not query.isActive or time.monotonic() > deadline:
            raise SystemExit(f"the query has not become idle: {query.exception()}")
        time.sleep(0.1)


def _tree(pid: int) -> list[int]:
    return [pid] + [one for child in children(pid) for one in _tree(child)]


def measure(spark: SparkSession, nameserver: str, run: str, many: int, seconds: float, rounds: int) -> Iterator[Row]:
    """The idle stream, then empty triggers of few and of many queues."""
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    jvm = gateway.proc.pid

    def ours(queues: int) -> DataStreamReader:
        topic = f"bench-{queues}-{run}"
        return spark.readStream.format("rocketmq").options(nameserver=nameserver, topic=topic)

    def empty_trigger_of_ours(queues: int) -> float:
        return empty_trigger_ms(ours(queues))

    def rate() -> DataStreamReader:
        return spark.readStream.format("rate")

    shares = in_turn(
        rounds, lambda: idle_share(ours(FEW_QUEUES), jvm, seconds), lambda: idle_share(rate(), jvm, seconds)
    )
    yield row(f"idle stream, {FEW_QUEUES} queues; limit: rate", "% of a core", *shares, rounds, smaller_is_better=True)
    spark.conf.set("spark.sql.streaming.noDataProgressEventInterval", "0")
    for queues in (FEW_QUEUES, many):
        times = in_turn(rounds, partial(empty_trigger_of_ours, queues), lambda: empty_trigger_ms(rate()))
        yield row(f"empty trigger, {queues} queues; limit: rate", "ms", *times, TRIGGERS, smaller_is_better=True)


@click.command()
@click.option("--seconds", default=20.0, show_default=True, help="how long an idle stream is measured")
@click.option("--queues", default=2_000, show_default=True, help="queues of the topic that has many")
@click.option("--rounds", default=3, show_default=True, help="measured rounds; medians count")
@click.option("--json", "as_json", is_flag=True, help="print one JSON object a line")
def main(seconds: float, queues: int, rounds: int, as_json: bool) -> None:
    """Measure and print."""
    run = f"{os.getpid()}-{time.time_ns() // 1_000_000}"
    with cluster() as made:
        for count in (queues, FEW_QUEUES):
            create_topic(made.nameserver, f"bench-{count}-{run}", count)
            publish_evenly(made.nameserver, f"bench-{count}-{run}", count * MESSAGES)
        spark = session()
        try:
            show(measure(spark, made.nameserver, run, queues, seconds, rounds), as_json)
        finally:
            spark.stop()


if __name__ == "__main__":
    main()
