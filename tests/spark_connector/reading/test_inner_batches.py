"""Batches that a broker gives whole, read by Spark: ranges are exact, also when they begin or end within a batch."""

from bisect import bisect_right
from typing import Any

import pytest
from pyspark.sql.datasource import InputPartition

from mqcommon.message.layout import HEAD_V4
from mqcommon.message.queue import MessageQueue
from sdk.arrow import inner
from sdk.consumer.expression import Sql
from spark_connector.offsets import OffsetRange
from spark_connector.options.read import ReadOptions
from spark_connector.reading.batch_reader import RocketMQBatchReader
from spark_connector.reading.pulling import ReadFailed
from spark_connector.schema import spark_schema
from tests.spark_connector.cluster import MemoryCluster, Pulled
from tests.support.inner import inner_batch, rows_of

QUEUE = MessageQueue("t", "broker-a", 3)
SCHEMA = spark_schema(include_properties=False)
FIRSTS = [0, 4, 5, 12, 40]
END = 60


class Batches(MemoryCluster):
    """One queue; each pull gives ``limit`` batches at most, from the one on that has the offset."""

    def __init__(self, limit: int, compression: str | None = None) -> None:
        super().__init__(limit)
        self.add(QUEUE, END)
        self.batches = [
            inner_batch(
                [row for at in range(first, end) for row in rows_of(1, at, tag=("Aa", "BB")[at % 2])], first,
                queue_id=3, compression=compression,
            )
            for first, end in zip(FIRSTS, [*FIRSTS[1:], END], strict=True)
        ]  # fmt: skip

    def pull_bytes(
        self,
        mq: MessageQueue,
        offset: int,
        *,
        max_count: int,
        max_bytes: int,
        expression: str | Sql = "*",
        wait_ms: int,
    ) -> Pulled:
        self.pulls.append((mq, offset))
        if offset >= END:
            return Pulled(b"", END, 0, END)
        at = bisect_right(FIRSTS, offset) - 1
        end = at + self.limit
        return Pulled(b"".join(self.batches[at:end]), [*FIRSTS, END][min(end, len(FIRSTS))], 0, END)


def rows(cluster: Batches, low: int = 0, high: int = END, **given: str) -> list[Any]:
    reader = RocketMQBatchReader(ReadOptions.parse({"topic": "t", **given}), SCHEMA, lambda _: cluster)
    partition = InputPartition(OffsetRange(QUEUE, low, high))
    return [row for batch in reader.read(partition) for row in batch.to_pylist()]


@pytest.mark.parametrize("limit", [1, 3])
@pytest.mark.parametrize("compression", [None, "zlib"])
def test_ranges_are_exact_at_both_ends(limit: int, compression: str | None) -> None:
    places = [0, 1, 3, 4, 5, 6, 11, 12, 39, 40, 41, END]
    cluster = Batches(limit, compression)
    for low in places:
        for high in [each for each in places if each > low]:
            found = rows(cluster, low, high, maxRecordsPerBatch="5", checkCrc="true")
            assert [(row["queueOffset"], row["body"]) for row in found] == [
                (at, b"%d" % at) for at in range(low, high)
            ]  # fmt: skip


def test_partitions_together_hold_every_message_once() -> None:
    cluster = Batches(2)
    reader = RocketMQBatchReader(ReadOptions.parse({"topic": "t", "minPartitions": "9"}), SCHEMA, lambda _: cluster)
    partitions = reader.partitions()
    assert len(partitions) == 9
    found = [row for one in partitions for batch in reader.read(one) for row in batch.to_pylist()]
    assert sorted(row["queueOffset"] for row in found) == list(range(END))


def test_tags_are_those_of_the_messages() -> None:
    found = rows(Batches(5), 2, 50, subExpression="Aa")
    assert [row["queueOffset"] for row in found] == list(range(2, 50, 2))


def test_batches_that_hold_too_much_are_unwrapped_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inner, "CONTENT_BYTES", 1)
    found = rows(Batches(5, "zlib"))
    assert [row["queueOffset"] for row in found] == list(range(END))


def test_damage_names_the_batch() -> None:
    cluster = Batches(5)
    raw = bytearray(cluster.batches[3])
    raw[HEAD_V4.size + 30] ^= 0xFF
    cluster.batches[3] = bytes(raw)
    with pytest.raises(ReadFailed, match=r"queue 3: the message at offset 12 .*the body does not match its CRC"):
        rows(cluster, checkCrc="true")
    cluster.batches[3] = inner_batch(rows_of(28), 12, queue_id=3, count=27)
    with pytest.raises(ReadFailed, match=r"the message at offset 12 .*its 27 messages do not end where its body does"):
        rows(cluster)
    # Batches that have messages in common are damage, too.
    cluster.batches[3] = inner_batch(rows_of(30, 11), 11, queue_id=3)
    with pytest.raises(ReadFailed, match="queue offset 11 follows 11"):
        rows(cluster)
