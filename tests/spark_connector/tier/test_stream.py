"""A stream of a bucket reads each message once, over restarts, while segments are added."""

import pickle
from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadLimit

from skylark.mqcommon.errors import UserError
from skylark.mqcommon.tier.bucket import BucketAway
from skylark.spark_connector.offsets import DataLost
from skylark.spark_connector.options.read import ReadOptions
from skylark.spark_connector.source import RocketMQDataSource
from skylark.spark_connector.stream.admitting_reader import AdmittingStreamReader
from skylark.spark_connector.stream.reader import RocketMQStreamReader
from skylark.spark_connector.tier.reader import tier_stream_reader
from tests.spark_connector.query import Offset, kept
from tests.spark_connector.tier.tiers import SCHEMA, CountingBucket, bucket, sent, writer

__all__ = ["bucket"]


class TierQuery:
    """A query and its checkpoint, as Spark runs them; `start` is a run."""

    def __init__(self, **given: str) -> None:
        self.given = {
            "tierPath": "file:///b", "topic": "t", "startingOffsets": "earliest",
            "discoveryIntervalMs": "0", **given,
        }  # fmt: skip
        self.log: list[Offset] = []
        self.rows: list[tuple[str, int, int]] = []

    def reader_of_run(self) -> AdmittingStreamReader:
        made = tier_stream_reader(AdmittingStreamReader, ReadOptions.of_stream(self.given), SCHEMA, idle_s=0)
        assert isinstance(made, AdmittingStreamReader)
        return made

    def start(self) -> None:
        """A run with the trigger AvailableNow, to its end."""
        self.reader = self.reader_of_run()
        self.reader.prepareForTriggerAvailableNow()
        while self.trigger():
            pass
        self.reader.stop()

    def trigger(self, limit: ReadLimit | None = None) -> bool:
        if not self.log:
            self.log.append(kept(self.reader.initialOffset()))
        start = self.log[-1]
        end = kept(self.reader.latestOffset(start, limit or self.reader.getDefaultReadLimit()))
        if end == start:
            return False
        self.log.append(end)
        self.rows += batch(self.reader, start, end)
        self.reader.commit(end)
        return True


def batch(reader: RocketMQStreamReader, start: Offset, end: Offset) -> list[tuple[str, int, int]]:
    return [row for task in tasks(reader, start, end) for row in task]


def tasks(reader: RocketMQStreamReader, start: Offset, end: Offset) -> list[list[tuple[str, int, int]]]:
    return [
        [
            (row["brokerName"], row["queueId"], row["queueOffset"])
            for found in reader.read(partition)
            for row in found.to_pylist()
        ]
        for partition in reader.partitions(start, end)
    ]


def expected(counts: dict[str, int]) -> list[tuple[str, int, int]]:
    return [(name, 0, offset) for name, count in counts.items() for offset in range(count)]


@pytest.mark.parametrize("limit", [{}, {"maxOffsetsPerTrigger": "17"}])
def test_a_checkpoint_goes_on_when_segments_come(bucket: CountingBucket, limit: dict[str, str]) -> None:
    a = writer(bucket)
    a.add(sent("t", 0, range(50)))
    query = TierQuery(**limit)
    query.start()
    assert sorted(query.rows) == expected({"broker-a": 50})
    query.start()
    assert len(query.rows) == 50, "nothing new"
    a.add(sent("t", 0, range(50, 80)))
    writer(bucket, "broker-b").add(sent("t", 0, range(30)))  # a broker that joins the cluster
    query.start()
    assert sorted(query.rows) == expected({"broker-a": 80, "broker-b": 30})


def test_a_batch_that_is_run_again_has_the_same_tasks(bucket: CountingBucket) -> None:
    made = writer(bucket)
    for at in range(6):
        made.add([one for queue in range(3) for one in sent("t", queue, range(20 * at, 20 * at + 20))])
    query = TierQuery(maxTasks="4", bytesPerTask="1")
    query.start()
    first, last = query.log[-2:]
    reader = query.reader_of_run()
    before = tasks(reader, first, last)
    assert len(before) == 4
    made.add(sent("t", 0, range(120, 140)))
    again = query.reader_of_run()
    assert tasks(again, first, last) == before
    assert [row for task in before for row in task] == query.rows


def test_a_batch_is_not_run_again_without_the_messages_of_a_broker(bucket: CountingBucket) -> None:
    for name in ("broker-a", "broker-b"):
        writer(bucket, name).add(sent("t", 0, range(10)))
    query = TierQuery()
    query.start()
    query.given["tierSet"] = "broker-a"
    with pytest.raises(UserError, match="has nothing of broker-b; it has broker-a; the checkpoint has a micro-batch"):
        query.reader_of_run().partitions(*query.log[-2:])


def test_a_checkpoint_of_brokers_goes_on_in_the_bucket(bucket: CountingBucket) -> None:
    writer(bucket).add(sent("t", 0, range(50)))
    query = TierQuery()
    query.log = [{"v": 1, "cluster": "DefaultCluster", "t|broker-a|0": 40, "stamp@t@broker-a": 7}]
    query.start()
    assert query.rows == [("broker-a", 0, offset) for offset in range(40, 50)]


def test_a_stream_starts_with_new_messages_by_default(bucket: CountingBucket) -> None:
    made = writer(bucket)
    made.add(sent("t", 0, range(50)))
    query = TierQuery()
    del query.given["startingOffsets"]
    query.start()
    made.add(sent("t", 0, range(50, 60)))
    query.start()
    assert [offset for *_, offset in query.rows] == list(range(50, 60))


def test_a_stream_goes_on_when_the_bucket_is_back(bucket: CountingBucket, monkeypatch: pytest.MonkeyPatch) -> None:
    made = writer(bucket)
    made.add(sent("t", 0, range(10)))
    query = TierQuery()
    query.reader = query.reader_of_run()
    assert query.trigger()
    made.add(sent("t", 0, range(10, 20)))

    def away(prefix: str) -> Any:
        raise BucketAway("503")

    with monkeypatch.context() as patch:
        patch.setattr(bucket, "folders", away)
        assert not query.trigger()
    assert query.trigger()
    assert query.rows == expected({"broker-a": 20})
    query.reader.stop()


def test_a_queue_without_messages_goes_on_where_it_was(bucket: CountingBucket) -> None:
    made = writer(bucket)
    made.add(sent("t", 0, range(10)))
    query = TierQuery()
    query.start()
    (segment,) = made.manifest.segments
    made.change(made.manifest.successor(9_000).with_segments_changed([replace(segment, classes=())]))
    query.start()
    made.add(sent("t", 0, range(10, 15)))
    query.start()
    assert query.rows == expected({"broker-a": 15})


def test_a_stream_passes_damaged_messages_by(bucket: CountingBucket) -> None:
    made = writer(bucket)
    segments = [made.add(sent("t", 0, range(at, at + 10))) for at in (0, 10, 20)]
    ((_, first),) = segments[0].classes
    data, modified_ms = bucket.objects[first.name]
    bucket.objects[first.name] = data[:300] + b"\xff" + data[301:], modified_ms
    ((_, second),) = segments[1].classes
    bucket.delete([second.name])
    query = TierQuery(failOnDataLoss="false", maxOffsetsPerTrigger="10")
    query.start()
    assert query.rows == [("broker-a", 0, offset) for offset in range(20, 30)]
    with pytest.raises(DataLost, match="damaged in the bucket"):
        TierQuery().start()


def test_what_a_stream_of_a_bucket_cannot_do_is_refused(bucket: CountingBucket) -> None:
    with pytest.raises(UserError, match="leave out consumerGroup and commitOffsets"):
        ReadOptions.of_stream({"tierPath": "file:///b", "topic": "t", "commitOffsets": "true", "group": "g"})
    writer(bucket).add(sent("t", 0, range(10)))
    source = RocketMQDataSource({"tierPath": "file:///b", "topic": "t"})
    stream = source.streamReader(SCHEMA)
    assert isinstance(stream, AdmittingStreamReader)
    assert stream.initialOffset() == {"v": 1, "cluster": "", "t|broker-a|0": 10}
    again = pickle.loads(pickle.dumps(source.streamReader(SCHEMA)))
    assert again.initialOffset() == stream.initialOffset()
