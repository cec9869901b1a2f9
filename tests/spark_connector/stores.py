"""Store directories for tests: what Spark reads of one, and what a broker serves of a copy of it."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hypothesis import settings

from skylark.broker.store.store import MessageStore, StoreOptions
from skylark.mqcommon.disk.files import OsFiles
from skylark.mqcommon.message.queue import MessageQueue
from skylark.spark_connector.offsets import OffsetRange
from skylark.spark_connector.options.read import ReadOptions
from skylark.spark_connector.reading.batch_reader import decode_buffer
from skylark.spark_connector.reading.pulling import Buffer
from skylark.spark_connector.schema import arrow_schema, spark_schema
from skylark.spark_connector.store.reader import StoreReader
from tests.broker.store.support import HOST
from tests.support.clock import ManualClock

SCHEMA = spark_schema(include_properties=True)
BROKER = "broker-a"
LOG_BYTES, QUEUE_BYTES = 4096, 20 * 16

Rows = list[dict[str, Any]]

# For properties of whole stores, whose examples are dear: 8 in CI, 50 nightly.
few_examples = settings(max_examples=max(8, settings.default.max_examples // 40))


def reader(directory: Path, **given: str) -> StoreReader:
    chosen = {} if {"topic", "topicPattern", "assign"} & set(given) else {"topicPattern": ".*"}
    options = {"storePath": str(directory), "brokerName": BROKER, "includeProperties": "true", **chosen, **given}
    return StoreReader(ReadOptions.parse(options), SCHEMA)


def read(directory: Path, **given: str) -> Rows:
    """All rows, sorted by queue and offset."""
    source = reader(directory, **given)
    return in_order([row for one in source.partitions() for batch in source.read(one) for row in batch.to_pylist()])


def in_order(rows: Rows) -> Rows:
    return sorted(rows, key=lambda row: (row["topic"], row["queueId"], row["queueOffset"]))


def options_of(directory: Path, log_bytes: int = LOG_BYTES, queue_bytes: int = QUEUE_BYTES) -> StoreOptions:
    return StoreOptions(
        str(directory), log_bytes, queue_bytes, batchqueue_segment_bytes=46 * 4, index_slots=50, index_capacity=60
    )


@contextmanager
def opened(options: StoreOptions) -> Iterator[MessageStore]:
    """The store, closed as by a graceful stop at the end."""
    store = MessageStore(OsFiles(), options, ManualClock(1_795_300_000_000), HOST)
    store.open()
    try:
        yield store
    finally:
        store.close()


def copied(directory: Path, home: Path) -> Path:
    """The files as they are: of a running broker, what a kill leaves."""
    return Path(shutil.copytree(directory, home / f"copy-{len(os.listdir(home))}"))


def served(directory: Path, home: Path, log_bytes: int = LOG_BYTES, queue_bytes: int = QUEUE_BYTES) -> Rows:
    """The rows of what a broker that starts on a copy of the directory serves, as the reader of brokers makes them."""
    schema, options = arrow_schema(SCHEMA), ReadOptions(topic="t")
    rows: Rows = []
    copy = copied(directory, home)
    with opened(options_of(copy, log_bytes, queue_bytes)) as store:
        for topic in sorted({queue.topic for queue in store.queues}):
            for queue in [queue for queue in store.queues if queue.topic == topic]:
                at, end = queue.min_offset, queue.next_offset
                while at < end:
                    found = store.get(topic, queue.queue_id, at, 1000, 1 << 24)
                    wanted = OffsetRange(MessageQueue(topic, BROKER, queue.queue_id), at, end)
                    if found.records:
                        buffer = Buffer(at, bytes(found.records))
                        rows += [
                            row for one in decode_buffer(buffer, wanted, schema, options) for row in one.to_pylist()
                        ]
                    at = found.next_offset
    shutil.rmtree(copy)
    return in_order(rows)
