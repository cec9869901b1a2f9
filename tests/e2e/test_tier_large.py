"""Much more in the bucket than on the disk: consumers read from the first message on, and Spark counts the messages.

20 GB with 1 GB on the disk, or as many GiB as TIER_GIB in the environment says. Both numbers are printed.
"""

import json
import os
import shutil
import sys
import time
from itertools import count
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest
import trio

from skylark import Admin, PullConsumer
from skylark.broker.store.queue.batch_records import RowBatch
from skylark.broker.store.store import MessageStore, StoreOptions
from skylark.mqcommon.clock import SystemClock
from skylark.mqcommon.disk.files import OsFiles
from skylark.mqcommon.message.queue import MessageQueue
from skylark.remoting.protocol.requests.topics import TopicConfig
from skylark.sdk.arrow.records import Records, physical_offsets
from tests.broker.store.support import BORN_HOST, HOST
from tests.support.daemons import make_topic, running
from tests.support.waiting import until
from tests.tidy.tree import ROOT

GIB = 1 << 30
SEGMENT_BYTES = 256 << 20
LOCAL_BYTES = GIB
# A topic with most of the messages, and a topic with a hundredth of the messages.
TOPIC, RARE, QUEUES = "large", "rare", 4
BODY_BYTES, AT_ONCE = 1_000, 500
PULL_BYTES = 1 << 20
OPTIONS = (
    *("--mapped-file-size-commit-log", str(SEGMENT_BYTES), "--tier-local-bytes", str(LOCAL_BYTES)),
    *("--clean-resource-interval", "1000", "--max-index-num", "5000000", "--max-hash-slot-num", "1000000"),
)


def filled(directory: str, wanted_bytes: int) -> dict[str, int]:
    """Make a store with batches of messages of both topics; returns the number of messages of each topic."""
    options = StoreOptions(directory, SEGMENT_BYTES, index_slots=1_000_000, index_capacity=5_000_000)
    store = MessageStore(OsFiles(), options, SystemClock(), HOST)
    store.open()
    counts, random = {TOPIC: 0, RARE: 0}, Random(1)
    for turn in count(1):
        if store.log.end >= wanted_bytes:
            break
        topic = TOPIC if turn % 100 else RARE
        rows = [(0, random.randbytes(8) + bytes(BODY_BYTES - 8), b"") for _ in range(AT_ONCE)]
        store.put_batch(topic, turn // 100 % QUEUES, RowBatch(rows), born_timestamp=1, born_host=BORN_HOST)
        counts[topic] += AT_ONCE
        if turn % 500 == 0:
            store.checkpoint()
    store.close()
    return counts


class Read(NamedTuple):
    """How many messages of a topic were read: all, and the messages whose records are before an offset of the log."""

    total: int
    before: int


async def read_whole(nameserver: str, topic: str, log_offset: int) -> Read:
    """Read a topic from its first message on, without a gap."""
    total = before = 0

    async def read(consumer: PullConsumer, queue: MessageQueue) -> None:
        nonlocal total, before
        offset, end = 0, await consumer.max_offset(queue)
        assert await consumer.min_offset(queue) == 0
        while offset < end:
            pulled = await consumer.pull_bytes(queue, offset, max_count=8_192, max_bytes=PULL_BYTES)
            if pulled.data:
                heads = Records(pulled.data).heads
                offsets = heads["queue_offset"]
                assert offsets[0] == offset and offsets[-1] == pulled.next_offset - 1 == offset + len(offsets) - 1
                total += len(offsets)
                before += int((physical_offsets(heads) < log_offset).sum())
            offset = pulled.next_offset

    async with PullConsumer(nameserver) as consumer, trio.open_nursery() as nursery:
        for queue in await consumer.message_queues(topic):
            nursery.start_soon(read, consumer, queue)
    return Read(total, before)


async def count_by_spark(url: str) -> dict[str, int]:
    """The messages of both topics in the bucket."""
    command = [sys.executable, "-m", "tests.e2e.spark_tier_job", url, TOPIC, RARE]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    job = await trio.run_process(command, capture_stdout=True, cwd=ROOT, env=environment)
    found: dict[str, int] = json.loads(job.stdout)
    return found


@pytest.mark.nightly
@pytest.mark.spark
@pytest.mark.needs("SeaweedFS")
async def test_consumers_and_spark_read_much_more_than_the_disk_has(tmp_path: Path, seaweedfs_url: str) -> None:
    wanted = int(float(os.environ.get("TIER_GIB", "20")) * GIB)
    began = time.monotonic()
    sent = filled(str(tmp_path / "broker-a"), wanted)
    stored_s = time.monotonic() - began
    url, began = f"{seaweedfs_url}/prod", time.monotonic()
    async with (
        running(tmp_path, options=(*OPTIONS, "--tier-path", url)) as cluster,
        Admin(cluster.nameserver) as admin,
    ):
        (broker,) = cluster.brokers
        for topic in (TOPIC, RARE):
            await make_topic(cluster, TopicConfig(topic, QUEUES, QUEUES))
        log = tmp_path / broker.name / "commitlog"

        async def is_small() -> bool:
            status = await admin.tier_status(broker.addr)
            assert not status.problem, status.problem
            size = sum(path.stat().st_size for path in log.iterdir())
            return not status.behind_bytes and size <= LOCAL_BYTES + 2 * SEGMENT_BYTES

        await until(is_small, "what is in the bucket has left the disk", timeout_s=3_600)
        uploaded_s, began = time.monotonic() - began, time.monotonic()
        uploaded_to = (await admin.tier_status(broker.addr)).uploaded_to
        read = {topic: await read_whole(cluster.nameserver, topic, uploaded_to) for topic in (TOPIC, RARE)}
        read_s = time.monotonic() - began
    assert {topic: each.total for topic, each in read.items()} == sent
    # The last file of the log is open, and all others are in the bucket.
    assert uploaded_to > wanted - SEGMENT_BYTES
    began = time.monotonic()
    counted = await count_by_spark(url)
    spark_s = time.monotonic() - began
    assert counted == {topic: each.before for topic, each in read.items()}
    # Pytest keeps the directories of some runs.
    shutil.rmtree(tmp_path / broker.name)
    sys.stdout.write(
        f"{sum(sent.values()):,} messages, {wanted / GIB:.1f} GiB: stored in {stored_s:.0f} s, uploaded in"
        f" {uploaded_s:.0f} s, read in {read_s:.0f} s; Spark counts {sum(counted.values()):,} in {spark_s:.0f} s\n"
    )
