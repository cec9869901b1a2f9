import pickle
import sys
from bisect import bisect_right
from collections.abc import Mapping
from operator import itemgetter
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import BinaryType, DataType, LongType, StringType, StructType

from skylark import Credentials
from skylark.mqcommon.errors import UserError
from skylark.mqcommon.message.compression import MissingPackage
from skylark.mqcommon.message.flags import COMPRESSION_LZ4, COMPRESSION_ZLIB, COMPRESSION_ZSTD
from skylark.mqcommon.message.layout import HEAD_V4
from skylark.mqcommon.message.queue import MessageQueue
from skylark.sdk.arrow import decode
from skylark.spark_connector.offsets import DataLost, OffsetRange
from skylark.spark_connector.options.read import ReadOptions
from skylark.spark_connector.reading.batch_reader import (
    Piece,
    RocketMQBatchReader,
    decode_together,
    open_consumer,
    together,
)
from skylark.spark_connector.reading.pulling import JOIN_BYTES, Buffer, ReadFailed
from skylark.spark_connector.schema import spark_schema
from skylark.spark_connector.tasks import ReadTask
from tests.sdk.arrow.records import Stored
from tests.spark_connector.cluster import Log, MemoryCluster, Pulled
from tests.support.inner import inner_batch, rows_of

QUEUE = MessageQueue("t", "broker-a", 3)
SCHEMA = spark_schema(include_properties=False)


def reader(cluster: MemoryCluster, schema: StructType = SCHEMA, **given: str) -> RocketMQBatchReader:
    return RocketMQBatchReader(ReadOptions.parse({"topic": "t", **given}), schema, lambda options: cluster)


def rows(reader: RocketMQBatchReader, partition: InputPartition) -> list[Mapping[str, Any]]:
    return [row for batch in reader.read(partition) for row in batch.to_pylist()]


@pytest.fixture
def cluster() -> MemoryCluster:
    cluster = MemoryCluster(limit=7)
    cluster.add(QUEUE, 100)
    return cluster


def test_the_consumer_signs_with_the_credentials_of_the_options(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr("skylark.sdk.blocking.PullConsumer", lambda nameserver, **named: given.update(named))
    open_consumer(ReadOptions.parse({"topic": "t", "accessKey": "spark", "secretKey": "secret"}))
    assert given["credentials"] == Credentials("spark", "secret")


def test_partitions_together_hold_every_message_once(cluster: MemoryCluster) -> None:
    cluster.add(MessageQueue("t", "broker-b", 0), 11, minimum=5)
    source = reader(cluster, minPartitions="9")
    partitions = source.partitions()
    assert len(partitions) == 9
    found = [(row["brokerName"], row["queueOffset"]) for one in partitions for row in rows(source, one)]
    assert sorted(found) == [("broker-a", n) for n in range(100)] + [("broker-b", n) for n in range(5, 16)]
    assert cluster.opened == 0


def test_a_task_reads_its_queues_one_after_the_other(cluster: MemoryCluster) -> None:
    """Of each queue exactly its range is read, though pulls give more, and the next queue is pulled ahead."""
    for at in range(9):
        cluster.add(MessageQueue("t", "broker-b", at), 10 + at, minimum=at)
    source = reader(cluster, bytesPerTask="0", maxTasks="3", maxRecordsPerBatch="4")
    partitions = source.partitions()
    assert len(partitions) == 3
    cluster.grow(MessageQueue("t", "broker-b", 8), 50)
    columns = itemgetter("brokerName", "queueId", "queueOffset")
    found = [list(map(columns, rows(source, one))) for one in partitions]
    for task, partition in zip(found, partitions, strict=True):
        assert task == [(*one.queue[1:], at) for one in partition.value.ranges for at in range(one.start, one.end)]
    assert sum(map(len, found)) == 100 + sum(10 + at for at in range(9))
    assert cluster.opened == 0


def test_small_queues_of_a_broker_come_in_one_batch(cluster: MemoryCluster) -> None:
    cluster.limit = 100
    for at in range(9):
        cluster.add(MessageQueue("t", "broker-b", at), 10)
    (partition,) = reader(cluster).partitions()
    for most, sizes in ((1_000, [90, 100]), (100, [90, 100]), (45, [40, 40, 10, 34, 33, 33]), (9, None)):
        batches = list(reader(cluster, maxRecordsPerBatch=str(most), maxTasks="1").read(partition))
        found = [(row["brokerName"], row["queueId"], row["queueOffset"]) for one in batches for row in one.to_pylist()]
        assert sorted(found) == sorted(
            [("broker-a", 3, n) for n in range(100)] + [("broker-b", at, n) for at in range(9) for n in range(10)]
        )
        assert all(one.num_rows <= most for one in batches)
        assert sizes is None or sorted(one.num_rows for one in batches) == sorted(sizes)


def test_batches_of_several_queues_are_as_those_of_each(cluster: MemoryCluster) -> None:
    """With a filter, checked bodies, records that are too many for a range, and damage in one of the queues."""
    names = [MessageQueue("t", "broker-b", at) for at in range(3)]
    for queue in names:
        tags = [b"TAGS\x01%s\x02" % tag for tag in (b"Aa", b"BB", b"Aa")]
        cluster.logs[queue] = Log(0, [
            Stored(topic="t", queue_id=queue.queue_id, queue_offset=at, properties=tag).encode()
            for at, tag in enumerate(tags)
        ])  # fmt: skip
    task = InputPartition(ReadTask(tuple(OffsetRange(queue, 0, 3) for queue in names)))
    given = reader(cluster, subExpression="Aa", checkCrc="true")
    found = [(row["queueId"], row["queueOffset"]) for row in rows(given, task)]
    assert found == [(0, 0), (0, 2), (1, 0), (1, 2), (2, 0), (2, 2)]

    class Generous(MemoryCluster):
        """Gives more than was asked for, as a broker does that stores whole batches."""

        def pull_bytes(self, mq: MessageQueue, offset: int, **wanted: Any) -> Pulled:
            return super().pull_bytes(mq, max(offset - 1, 0), **{**wanted, "max_count": 3})

    generous = Generous()
    generous.logs = cluster.logs
    inner = InputPartition(ReadTask(tuple(OffsetRange(queue, 1, 2) for queue in names)))
    assert [row["queueOffset"] for row in rows(reader(generous), inner)] == [1, 1, 1]

    record = cluster.logs[names[1]].records[2]

    cluster.logs[names[1]].records[2] = record[:4] + b"\0\0\0\0" + record[8:]
    read: list[tuple[int, int]] = []
    with pytest.raises(ReadFailed, match=r"broker broker-b, queue 1: the message at offset 2 .*its magic is no"):
        for batch in reader(cluster).read(task):
            read += [(row["queueId"], row["queueOffset"]) for row in batch.to_pylist()]
    assert read == [(0, 0), (0, 1), (0, 2)], "what came before is there, as with a queue for itself"


def test_lost_messages_of_one_queue_cost_its_task_nothing_else(cluster: MemoryCluster) -> None:
    for at in range(3):
        cluster.add(MessageQueue("t", "broker-b", at), 10)
    source = reader(cluster, failOnDataLoss="false", maxTasks="1")
    (partition,) = source.partitions()
    cluster.delete_before(MessageQueue("t", "broker-b", 1), 4)
    assert len(rows(source, partition)) == 100 + 10 + 6 + 10


def test_messages_after_the_planned_end_are_not_delivered(cluster: MemoryCluster) -> None:
    source = reader(cluster)
    (partition,) = source.partitions()
    cluster.add(QUEUE, 150)
    assert [row["body"] for row in rows(source, partition)] == [b"%d" % n for n in range(100)]


@pytest.mark.parametrize("count", [50, 100, 150])
def test_a_topic_that_is_made_again_after_the_plan_is_not_read(cluster: MemoryCluster, count: int) -> None:
    cluster.make_again(QUEUE, 100, 1_000)
    source = reader(cluster, minPartitions="3")
    partitions = source.partitions()
    cluster.make_again(QUEUE, count, 2_000)
    for partition in partitions:
        with pytest.raises(DataLost, match="the topic was deleted and made again since this range was planned"):
            rows(source, partition)
        assert rows(reader(cluster, failOnDataLoss="false"), partition) == []


def test_a_topic_that_is_made_again_while_it_is_planned_is_not_read(cluster: MemoryCluster) -> None:
    class Remade(MemoryCluster):
        def min_offset(self, mq: MessageQueue) -> int:
            self.make_again(QUEUE, 150, 2_000)
            return super().min_offset(mq)

    remade = Remade()
    remade.make_again(QUEUE, 100, 1_000)
    source = reader(remade)
    (partition,) = source.partitions()
    with pytest.raises(DataLost, match="made again"):
        rows(source, partition)


def test_a_topic_of_a_broker_that_knows_no_stamps_is_read(cluster: MemoryCluster) -> None:
    source = reader(cluster)
    (partition,) = source.partitions()
    cluster.stamps["t", "broker-a"] = 1_000
    assert len(rows(source, partition)) == 100


def test_a_range_within_a_pull_is_cut_out(cluster: MemoryCluster) -> None:
    cluster.limit = 100
    found = rows(reader(cluster), InputPartition(ReadTask((OffsetRange(QUEUE, 40, 43),))))
    assert [row["queueOffset"] for row in found] == [40, 41, 42]


def test_batches_are_no_larger_than_asked(cluster: MemoryCluster) -> None:
    cluster.limit = 100
    source = reader(cluster, maxRecordsPerBatch="30")
    (partition,) = source.partitions()
    assert [batch.num_rows for batch in source.read(partition)] == [25, 25, 25, 25]


def test_a_schema_of_few_columns_gets_those(cluster: MemoryCluster) -> None:
    source = reader(cluster, StructType().add("queueOffset", LongType()).add("body", BinaryType()))
    (partition,) = source.partitions()
    assert rows(source, partition)[1] == {"queueOffset": 1, "body": b"1"}


@pytest.mark.parametrize(
    ("name", "kind", "said"),
    [
        ("value", BinaryType(), "a message has no column value; choose from topic, brokerName"),
        (
            "body",
            StringType(),
            "column body is binary, not string; use that type in the schema and cast the column afterwards",
        ),
    ],
)
def test_a_schema_that_cannot_be_served_is_refused_at_once(
    cluster: MemoryCluster, name: str, kind: DataType, said: str
) -> None:
    with pytest.raises(UserError, match=said):
        reader(cluster, StructType().add(name, kind))


def test_sparks_stand_in_for_no_partitions_reads_nothing(cluster: MemoryCluster) -> None:
    assert rows(reader(cluster), InputPartition(None)) == []


def test_messages_deleted_while_reading_fail_the_task(cluster: MemoryCluster) -> None:
    source = reader(cluster)
    (partition,) = source.partitions()
    cluster.delete_before(QUEUE, 20)
    with pytest.raises(DataLost, match="20 messages"):
        rows(source, partition)
    assert cluster.opened == 0


def test_or_are_skipped_when_that_is_wanted(cluster: MemoryCluster, caplog: pytest.LogCaptureFixture) -> None:
    source = reader(cluster, failOnDataLoss="false")
    (partition,) = source.partitions()
    cluster.delete_before(QUEUE, 20)
    assert [row["queueOffset"] for row in rows(source, partition)] == list(range(20, 100))
    assert "t      broker-a  3      0     19  20        deleted: the queue goes on at 20" in caplog.text


def test_damage_names_queue_and_offset(cluster: MemoryCluster) -> None:
    records = cluster.logs[QUEUE].records
    records[33] = records[33][:4] + b"\0\0\0\0" + records[33][8:]
    source = reader(cluster)
    (partition,) = source.partitions()
    with pytest.raises(
        ReadFailed, match=r"topic t, broker broker-a, queue 3: the message at offset 33 .*its magic is no"
    ):
        rows(source, partition)


def test_damage_in_a_later_batch_names_its_own_offset(cluster: MemoryCluster) -> None:
    cluster.limit = 100
    records = cluster.logs[QUEUE].records
    records[77] = records[77][:90] + b"!" + records[77][91:]
    source = reader(cluster, maxRecordsPerBatch="10", checkCrc="true")
    (partition,) = source.partitions()
    with pytest.raises(ReadFailed, match="the message at offset 77 "):
        rows(source, partition)


def packed(cluster: MemoryCluster, kinds: list[int]) -> list[bytes]:
    """Lets the queue have messages that are compressed in these ways; their bodies."""
    bodies = [b"%d" % number * 1_000 for number in range(len(kinds))]
    cluster.logs[QUEUE] = Log(
        0,
        [
            Stored(topic="t", queue_id=3, queue_offset=at, body=bodies[at], compressed=kind).encode()
            for at, kind in enumerate(kinds)
        ],
    )
    return bodies


def test_bodies_that_are_too_much_for_one_batch_are_cut_again(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Down to one message, which is never too much."""
    bodies = packed(cluster, [COMPRESSION_ZLIB, COMPRESSION_LZ4, COMPRESSION_ZSTD] * 3)
    (partition,) = reader(cluster).partitions()
    for most, sizes in ((9_000, [9]), (3_000, [2, 2, 2, 3]), (1, [1] * 9)):
        monkeypatch.setattr(decode, "CONTENT_BYTES", most)
        batches = list(reader(cluster).read(partition))
        assert [row["body"] for batch in batches for row in batch.to_pylist()] == bodies
        assert [batch.num_rows for batch in batches] == sizes


def test_damage_after_a_cut_names_its_own_offset(cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    packed(cluster, [COMPRESSION_ZLIB] * 5 + [0x400, COMPRESSION_ZLIB])
    (partition,) = reader(cluster).partitions()
    monkeypatch.setattr(decode, "CONTENT_BYTES", 2_000)
    with pytest.raises(ReadFailed, match=r"the message at offset 5 .* compressed in a way that is not known"):
        rows(reader(cluster), partition)


def test_a_package_that_is_missing_is_no_damage(cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    packed(cluster, [COMPRESSION_LZ4])
    (partition,) = reader(cluster).partitions()
    monkeypatch.setitem(sys.modules, "lz4.frame", None)
    with pytest.raises(MissingPackage, match=r"the compressed body needs Skylark's extra compression \(.*lz4"):
        rows(reader(cluster), partition)


def test_the_reader_travels_to_workers() -> None:
    source = RocketMQBatchReader(ReadOptions.parse({"topic": "t"}), SCHEMA)
    for copy in (cloudpickle.loads(cloudpickle.dumps(source)), pickle.loads(pickle.dumps(source))):
        assert type(copy) is RocketMQBatchReader
        given, made = vars(source), vars(copy)
        assert vars(made.pop("_columns")) == vars(given["_columns"])
        assert made == {name: value for name, value in given.items() if name != "_columns"}


def test_tags_are_compared_and_not_only_their_hashes(cluster: MemoryCluster) -> None:
    """ "Aa" and "BB" have the same hash, so a broker sends both."""
    tags = ["Aa", "BB", None, "Aa"]
    cluster.logs[QUEUE] = Log(
        0,
        [
            Stored(topic="t", queue_offset=at, properties=f"TAGS\x01{tag}\x02".encode() if tag else b"").encode()
            for at, tag in enumerate(tags)
        ],
    )
    source = reader(cluster, subExpression="Aa||C")
    (partition,) = source.partitions()
    assert [(row["queueOffset"], row["tags"]) for row in rows(source, partition)] == [(0, "Aa"), (3, "Aa")]


def test_the_topics_of_a_pattern_are_looked_up(cluster: MemoryCluster) -> None:
    options = ReadOptions.parse({"topicPattern": "t+"})
    source = RocketMQBatchReader(options, SCHEMA, lambda _: cluster, lambda _: ["tx", "t"])
    assert [partition.value.ranges[0].queue.topic for partition in source.partitions()] == ["t"]


def test_a_style_has_columns_of_its_own(cluster: MemoryCluster) -> None:
    schema = spark_schema(include_properties=False, style="kafka")
    source = reader(cluster, schema, schemaStyle="kafka")
    (partition,) = source.partitions()
    assert rows(source, partition)[5]["value"] == b"5"
    with pytest.raises(UserError, match="a message has no column key"):
        reader(cluster, schema)


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

    def pull_bytes(self, mq: MessageQueue, offset: int, **wanted: Any) -> Pulled:
        self.pulls.append((mq, offset))
        if offset >= END:
            return Pulled(b"", END, 0, END)
        at = bisect_right(FIRSTS, offset) - 1
        end = at + self.limit
        return Pulled(b"".join(self.batches[at:end]), [*FIRSTS, END][min(end, len(FIRSTS))], 0, END)


def batch_rows(cluster: Batches, low: int = 0, high: int = END, **given: str) -> list[Any]:
    reader = RocketMQBatchReader(ReadOptions.parse({"topic": "t", **given}), SCHEMA, lambda _: cluster)
    partition = InputPartition(ReadTask((OffsetRange(QUEUE, low, high),)))
    return [row for batch in reader.read(partition) for row in batch.to_pylist()]


@pytest.mark.parametrize("limit", [1, 3])
@pytest.mark.parametrize("compression", [None, "zlib"])
def test_ranges_are_exact_at_both_ends(limit: int, compression: str | None) -> None:
    places = [0, 1, 3, 4, 5, 6, 11, 12, 39, 40, 41, END]
    cluster = Batches(limit, compression)
    for low in places:
        for high in [each for each in places if each > low]:
            found = batch_rows(cluster, low, high, maxRecordsPerBatch="5", checkCrc="true")
            assert [(row["queueOffset"], row["body"]) for row in found] == [
                (at, b"%d" % at) for at in range(low, high)
            ]  # fmt: skip


def test_partitions_of_batches_together_hold_every_message_once() -> None:
    cluster = Batches(2)
    reader = RocketMQBatchReader(ReadOptions.parse({"topic": "t", "minPartitions": "9"}), SCHEMA, lambda _: cluster)
    partitions = reader.partitions()
    assert len(partitions) == 9
    found = [row for one in partitions for batch in reader.read(one) for row in batch.to_pylist()]
    assert sorted(row["queueOffset"] for row in found) == list(range(END))


def test_tags_are_those_of_the_messages() -> None:
    found = batch_rows(Batches(5), 2, 50, subExpression="Aa")
    assert [row["queueOffset"] for row in found] == list(range(2, 50, 2))


def test_batches_that_hold_too_much_are_unwrapped_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "CONTENT_BYTES", 1)
    found = batch_rows(Batches(5, "zlib"))
    assert [row["queueOffset"] for row in found] == list(range(END))


def test_damage_names_the_batch() -> None:
    cluster = Batches(5)
    raw = bytearray(cluster.batches[3])
    raw[HEAD_V4.size + 30] ^= 0xFF
    cluster.batches[3] = bytes(raw)
    with pytest.raises(ReadFailed, match=r"queue 3: the message at offset 12 .*the body does not match its CRC"):
        batch_rows(cluster, checkCrc="true")
    cluster.batches[3] = inner_batch(rows_of(28), 12, queue_id=3, count=27)
    with pytest.raises(ReadFailed, match=r"the message at offset 12 .*its 27 messages do not end where its body does"):
        batch_rows(cluster)
    # Batches that have messages in common are damage, too.
    cluster.batches[3] = inner_batch(rows_of(30, 11), 11, queue_id=3)
    with pytest.raises(ReadFailed, match="queue offset 11 follows 11"):
        batch_rows(cluster)


def piece(queue_id: int, data: bytes, end: int = 1) -> Piece:
    return Piece(OffsetRange(MessageQueue("t", "b", queue_id), 0, end), Buffer(0, data))


def test_pieces_are_gathered_up_to_a_size_in_bytes() -> None:
    small, large = piece(0, b"x"), piece(1, b"x" * JOIN_BYTES)
    found = [[one.wanted.queue.queue_id for one in some] for some in together([small, large, small, small], 1_000)]
    assert found == [[0, 1], [0, 0]]


def test_records_that_do_not_begin_where_their_pieces_do_are_decoded_one_by_one() -> None:
    options, schema = ReadOptions.parse({"topic": "t"}), pa.schema([pa.field("queueOffset", pa.int64())])
    record = Stored(topic="t").encode()
    for first, second in ((record[:-4], record[-4:]), (record, b""), (record + record[:8], record[8:])):
        assert decode_together([piece(0, first), piece(1, second)], schema, options) is None
    batch = decode_together([piece(0, record), piece(1, record)], schema, options)
    assert batch is not None and batch.num_rows == 2


@pytest.mark.parametrize("check", ["true", "false"])
def test_a_body_that_was_changed_is_found_where_that_is_wanted(check: str) -> None:
    cluster = MemoryCluster()
    records = [Stored(topic="t", queue_offset=at, body=b"body-%d" % at).encode() for at in range(3)]
    cluster.logs[QUEUE] = Log(records=[one.replace(b"body-1", b"body-X") for one in records])
    source = reader(cluster, checkCrc=check)
    (partition,) = source.partitions()
    if check == "true":
        with pytest.raises(ReadFailed, match=r"the message at offset 1 .* cannot be decoded"):
            rows(source, partition)
    else:
        assert [row["body"] for row in rows(source, partition)] == [b"body-0", b"body-X", b"body-2"]
