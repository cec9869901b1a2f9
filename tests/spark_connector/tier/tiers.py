"""Buckets with segments for tests, and what readers find in them."""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from skylark.mqcommon.tier.bucket import Bucket
from skylark.spark_connector.options.read import ReadOptions
from skylark.spark_connector.schema import spark_schema
from skylark.spark_connector.tier import directory, reader
from skylark.spark_connector.tier.reader import TierReader
from tests.support.memory_bucket import MemoryBucket
from tests.support.tier_segments import Sent, TierWriter

SCHEMA = spark_schema(include_properties=False)
URL = "memory://bucket"
#: (topic, broker, queue, offset)
Place = tuple[str, str, int, int]


def sent(topic: str, queue_id: int, offsets: range, *, body: bytes = b"", first_ms: int = 1_000) -> list[Sent]:
    """Messages of one queue, one a second; the body says which it is unless one is given."""
    return [
        Sent(
            topic, queue_id, offset, body or b"%s-%d-%d" % (topic.encode(), queue_id, offset), first_ms + 1000 * offset
        )
        for offset in offsets
    ]


class CountingBucket(MemoryBucket):
    """Counts requests that read, and their bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[tuple[str, int]] = []

    def get_range(self, name: str, start: int, size: int) -> bytes:
        self.requests.append((name, size))
        return super().get_range(name, start, size)

    def close(self) -> None:
        """The next reader opens the same bucket."""


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> CountingBucket:
    """The bucket that all readers of the test open."""
    made = CountingBucket()
    opened_as(monkeypatch, made)
    return made


def opened_as(monkeypatch: pytest.MonkeyPatch, made: Bucket) -> None:
    @contextlib.contextmanager
    def opened(options: ReadOptions) -> Iterator[Bucket]:
        yield made

    for module in (directory, reader):
        monkeypatch.setattr(module, "opened_bucket", opened)


def reader_of(**given: str) -> TierReader:
    chosen = {} if {"topic", "topicPattern", "assign"} & set(given) else {"topic": "t"}
    options = {"tierPath": "file:///bucket", "brokerWaitMs": "0", **chosen, **given}
    return TierReader(ReadOptions.parse(options), SCHEMA)


def read(**given: str) -> list[dict[str, Any]]:
    """All rows, sorted by broker, queue and offset; `tasks` of them in the order of the tasks."""
    return sorted(
        (row for task in tasks(**given) for row in task),
        key=lambda row: (row["topic"], row["brokerName"], row["queueId"], row["queueOffset"]),
    )


def tasks(**given: str) -> list[list[dict[str, Any]]]:
    """The rows of each task."""
    source = reader_of(**given)
    return [[row for batch in source.read(partition) for row in batch.to_pylist()] for partition in source.partitions()]


def places(rows: list[dict[str, Any]]) -> list[Place]:
    return [(row["topic"], row["brokerName"], row["queueId"], row["queueOffset"]) for row in rows]


def offsets(rows: list[dict[str, Any]], queue_id: int = 0) -> list[int]:
    return [row["queueOffset"] for row in rows if row["queueId"] == queue_id]


def writer(bucket: Bucket, name: str = "broker-a") -> TierWriter:
    return TierWriter(bucket, set_name=name)
