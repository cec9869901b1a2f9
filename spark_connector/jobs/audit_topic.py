"""Audits a topic: ``spark-submit --py-files skylark.zip spark_connector/jobs/audit_topic.py --help``.

Tasks count gaps and disorder of their parts of queues, Spark groups by unique key to find duplicates. The exit code is
0 only when there are none.
"""

import json
from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter

import click
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from skylark.spark_connector import register
from skylark.spark_connector.jobs.auditing import QueueAudit, Stretch, audit_table, audits, stretch
from skylark.spark_connector.jobs.session import CONNECTION, EXAMPLES, session

READ = "brokerName string, queueId int, queueOffset bigint, msgId string, storeTimestamp timestamp"
COUNTED = (
    "brokerName string, queueId int, first bigint, last bigint, messages bigint, missing bigint, gaps bigint,"
    " disordered bigint, first_ms bigint, last_ms bigint"
)


@click.command()
@click.option("--nameserver", required=True, help="NameServers of the cluster.")
@click.option("--topic", required=True, help="The topic to audit.")
@click.option("--option", "options", **CONNECTION, help=f"Of the connection: {EXAMPLES}.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def main(nameserver: str, topic: str, options: dict[str, str], as_json: bool) -> None:
    """Show gaps, disorder and duplicates of each queue of a topic."""
    with session(f"audit {topic}") as spark:
        found = audit(spark, {**options, "nameserver": nameserver, "topic": topic, "failOnDataLoss": "false"})
    click.echo(json.dumps([one.row() for one in found], indent=1) if as_json else audit_table(found))
    if not all(one.is_clean for one in found):
        raise click.ClickException(f"topic {topic} has gaps, disorder or duplicates")


def audit(spark: SparkSession, options: dict[str, str]) -> list[QueueAudit]:
    """Read the topic once for its queues and once for its keys."""
    register(spark)
    read = spark.read.format("rocketmq").schema(READ).options(**options).load()
    parts = [(row[0], row[1], Stretch(*row[2:])) for row in read.mapInArrow(count, COUNTED).collect()]
    by_key = read.groupBy("msgId").agg(
        f.count("*").alias("n"),
        f.min(f.struct("storeTimestamp", "brokerName", "queueId", "queueOffset")).alias("kept"),
        f.collect_list(f.struct("brokerName", "queueId")).alias("places"),
    )
    again = by_key.where("n > 1").select("kept.brokerName", "kept.queueId", "places").collect()
    duplicates: dict[tuple[str, int], int] = {}
    for broker, queue, places in again:
        duplicates[broker, queue] = duplicates.get((broker, queue), 0) - 1
        for place in places:
            duplicates[place[0], place[1]] = duplicates.get((place[0], place[1]), 0) + 1
    return audits(parts, duplicates)


def count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Runs in the task: one row for each run of messages of one queue in a batch; a task reads queue after queue."""
    names = [word.split()[0] for word in COUNTED.split(", ")]
    for batch in batches:
        places = zip(batch["brokerName"].to_pylist(), batch["queueId"].to_pylist(), strict=True)
        times_ms = [at // 1000 for at in batch["storeTimestamp"].cast(pa.int64()).to_pylist()]
        messages = zip(places, batch["queueOffset"].to_pylist(), times_ms, strict=True)
        for (broker, queue), run in groupby(messages, itemgetter(0)):
            _, offsets, times = zip(*run, strict=True)
            if (part := stretch(offsets, times)) is not None:
                head = [pa.array([broker]), pa.array([queue], pa.int32())]
                cells = [pa.array([cell], pa.int64()) for cell in vars(part).values()]
                yield pa.RecordBatch.from_arrays([*head, *cells], names=names)


if __name__ == "__main__":
    main()
