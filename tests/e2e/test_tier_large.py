"""Much more in the bucket than on the disk: consumers read from the first message on, and Spark counts all of it.

20 GB with 1 GB on the disk, or as many GiB as TIER_GIB in the environment says. Both numbers are printed.
"""

import os
import sys
import time
from pathlib import Path
from random import Random

import pytest
import trio
from pyspark.sql import SparkSession

from scripts.daemons import Daemon
from skylark import Admin, Producer, PullConsumer
from skylark.mqcommon.message.queue import MessageQueue
from skylark.mqcommon.tier.layout import set_name
from skylark.mqcommon.tier.opening import open_bucket
from skylark.mqcommon.tier.view import TierView
from skylark.remoting.protocol.requests.topics import TopicConfig
from skylark.sdk.arrow.records import Records
from tests.support.buckets import seaweedfs_server
from tests.support.daemons import SMALL, make_topic, running
from tests.support.waiting import until

GIB = 1 << 30
SEGMENT_BYTES = 256 << 20
LOCAL_BYTES = GIB
# A topic with most of the messages, and one with a hundredth of them.
TOPIC, RARE, QUEUES = "large", "rare", 4
BODY_BYTES, AT_ONCE = 1_000, 500
LANES = 4
PULL_BYTES = 1 << 20
OPTIONS = (
    *SMALL,
    *("--mapped-file-size-commit-log", str(SEGMENT_BYTES), "--tier-local-bytes", str(LOCAL_BYTES)),
    *("--clean-resource-interval", "1000", "--max-index-num", "5000000", "--max-hash-slot-num", "1000000"),
)


class Sent:
    """Sends until there are enough; counts by topic."""

    def __init__(self, producer: Producer, wanted_bytes: int) -> None:
        self._producer = producer
        self._wanted = wanted_bytes
        self.bytes = 0
        self.counts = {TOPIC: 0, RARE: 0}

    async def run(self, number: int) -> None:
        random = Random(number)
        turn = 0
        while self.bytes < self._wanted:
            turn += 1
            topic = TOPIC if turn % 100 else RARE
            bodies = [random.randbytes(8) + bytes(BODY_BYTES - 8) for _ in range(AT_ONCE)]
            await self._producer.send_many(topic, bodies)
            self.counts[topic] += AT_ONCE
            self.bytes += AT_ONCE * BODY_BYTES


async def read_whole(nameserver: str, topic: str) -> int:
    """Read a topic from its first message on, without a gap; returns the number of messages."""
    total = 0

    async def read(consumer: PullConsumer, queue: MessageQueue) -> None:
        nonlocal total
        offset, end = 0, await consumer.max_offset(queue)
        assert await consumer.min_offset(queue) == 0
        while offset < end:
            pulled = await consumer.pull_bytes(queue, offset, max_count=8_192, max_bytes=PULL_BYTES)
            if pulled.data:
                offsets = Records(pulled.data).heads["queue_offset"]
                assert offsets[0] == offset and offsets[-1] == pulled.next_offset - 1 == offset + len(offsets) - 1
                total += len(offsets)
            offset = pulled.next_offset

    async with PullConsumer(nameserver) as consumer, trio.open_nursery() as nursery:
        for queue in await consumer.message_queues(topic):
            nursery.start_soon(read, consumer, queue)
    return total


async def until_uploaded(admin: Admin, broker: Daemon) -> None:
    async def is_uploaded() -> bool:
        status = await admin.tier_status(broker.addr)
        assert not status.problem, status.problem
        return not status.behind_bytes

    await until(is_uploaded, "all full files are in the bucket")


@pytest.mark.nightly
@pytest.mark.needs("SeaweedFS")
async def test_twenty_gigabytes_with_one_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = int(float(os.environ.get("TIER_GIB", "20")) * GIB)
    (tmp_path / "weed").mkdir()
    with seaweedfs_server(tmp_path / "weed") as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
        url = f"{server.new_bucket()}/prod"
        async with (
            running(tmp_path, options=(*OPTIONS, "--tier-path", url)) as cluster,
            Admin(cluster.nameserver) as admin,
            Producer(cluster.nameserver) as producer,
        ):
            (broker,) = cluster.brokers
            for topic in (TOPIC, RARE):
                await make_topic(cluster, TopicConfig(topic, QUEUES, QUEUES))
            sent, began = Sent(producer, wanted), time.monotonic()
            async with trio.open_nursery() as nursery:
                for number in range(LANES):
                    nursery.start_soon(sent.run, number)
            sent_s = time.monotonic() - began
            await until_uploaded(admin, broker)
            uploaded_s = time.monotonic() - began
            log = tmp_path / broker.name / "commitlog"

            def is_small() -> bool:
                return sum(path.stat().st_size for path in log.iterdir()) <= LOCAL_BYTES + 3 * SEGMENT_BYTES

            await until(is_small, "what is in the bucket has left the disk")
            began = time.monotonic()
            read = {topic: await read_whole(cluster.nameserver, topic) for topic in (TOPIC, RARE)}
            read_s = time.monotonic() - began
        assert read == sent.counts
        began = time.monotonic()
        counted = await trio.to_thread.run_sync(count_by_spark, url)
        spark_s = time.monotonic() - began
        bucket = open_bucket(url, timeout_s=60)
        view = TierView(bucket, set_name(broker.name), 64 << 20)
        view.refresh()
        there = {
            topic: sum(bounds[1] for queue_id in range(QUEUES) if (bounds := view.bounds(topic, queue_id)))
            for topic in (TOPIC, RARE)
        }
        bucket.close()
        assert counted == there and counted[TOPIC] * BODY_BYTES > wanted - 2 * SEGMENT_BYTES - wanted // 50
    sys.stdout.write(
        f"{sum(read.values()):,} messages, {sent.bytes / GIB:.1f} GiB: sent in {sent_s:.0f} s, uploaded after"
        f" {uploaded_s:.0f} s, read in {read_s:.0f} s; Spark counts {sum(counted.values()):,} in {spark_s:.0f} s\n"
    )


def count_by_spark(url: str) -> dict[str, int]:
    """The messages of both topics in the bucket."""
    from skylark.spark_connector import register

    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    try:
        register(spark)
        frame = spark.read.format("rocketmq").options(tierPath=url)
        return {topic: frame.option("topic", topic).load().count() for topic in (TOPIC, RARE)}
    finally:
        spark.stop()
