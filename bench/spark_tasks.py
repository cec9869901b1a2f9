"""Spark batch reads of many queues. The limit: as many rows in few queues, with the same query, in the same session.

    python -m bench.spark_tasks [--json] [--messages N] [--queues N] [--rounds N] [--out docs/guides/spark/tasks.svg]

The topics have the same messages, and each queue of a topic has equally many. The session is up and warm before the
clock runs; both sides run in turn, planning included. A NameServer and a broker are started. With --out the tasks of a
read of many queues are drawn, as they are, and as one for each queue would be.
"""

import os
import random
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import click
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from bench.harness import Row, cluster, in_turn, row, show
from bench.spark_read import BODY_BYTES, FEW_COLUMNS, create_topic, seconds, session
from bench.tasks_picture import Job, picture
from skylark.sdk.blocking import Producer
from skylark.spark_connector.schema import spark_schema

FEW_QUEUES = 8
MOST_TASKS = 1_000_000


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
        both = in_turn(rounds, partial(read, queues), partial(read, FEW_QUEUES))
        yield row(name, "s", *both, count, smaller_is_better=True)


def task_spans(spark: SparkSession, group: str) -> list[tuple[float, float]]:
    """When the tasks of a group of jobs ran, in seconds since the first one began."""
    context = spark.sparkContext
    tracker, store = context.statusTracker(), context._jsc.sc().statusStore()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
    found = []
    for stage in {stage for job in jobs if job is not None for stage in job.stageIds}:
        tasks = store.taskList(stage, 0, MOST_TASKS)
        for task in (tasks.apply(number) for number in range(tasks.size())):
            begun_ms = task.launchTime().getTime()
            found.append((begun_ms, begun_ms + task.duration().get()))
    first_ms = min(begun_ms for begun_ms, _ in found)
    return [((begun_ms - first_ms) / 1000, (ended_ms - first_ms) / 1000) for begun_ms, ended_ms in found]


def draw(spark: SparkSession, nameserver: str, run: str, queues: int, count: int) -> str:
    """The tasks of a read of the topic with many queues: one task for each queue, and grouped."""
    jobs = []
    for what, options in (
        ("one task for each queue", {"maxTasks": str(queues), "bytesPerTask": "0"}),
        ("queues grouped by what there is to read", {}),
    ):
        reader = spark.read.format("rocketmq").schema(FEW_COLUMNS).options(nameserver=nameserver, **options)
        spark.sparkContext.setJobGroup(what, what)
        took_s = seconds(reader.options(topic=f"bench-{queues}-{run}").load(), count)
        spans = task_spans(spark, what)
        jobs.append(Job(f"{queues:,} queues, {count:,} rows, {what}: {len(spans):,} tasks, {took_s:.1f} s", spans))
    return picture(jobs)


@click.command()
@click.option("--messages", default=600_000, show_default=True, help="messages of 128 bytes in each topic")
@click.option("--queues", default=2_000, show_default=True, help="queues of the topic that has many")
@click.option("--rounds", default=5, show_default=True, help="measured rounds; medians count")
@click.option("--json", "as_json", is_flag=True, help="print one JSON object a line")
@click.option("--out", type=click.Path(path_type=Path), help="draw the tasks, as SVG")
def main(messages: int, queues: int, rounds: int, as_json: bool, out: Path | None) -> None:
    """Measure and print."""
    run = f"{os.getpid()}-{time.time_ns() // 1_000_000}"
    with cluster() as started:
        for count in (queues, FEW_QUEUES):
            create_topic(started.nameserver, f"bench-{count}-{run}", count)
            publish_evenly(started.nameserver, f"bench-{count}-{run}", messages)
        spark = session()
        try:
            show(measure(spark, started.nameserver, run, queues, messages, rounds), as_json)
            if out is not None:
                out.write_text(draw(spark, started.nameserver, run, queues, messages), encoding="utf-8")
        finally:
            spark.stop()


if __name__ == "__main__":
    main()
