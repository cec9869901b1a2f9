"""Reading segments in a bucket gives each message once; what the bucket has not, or not unchanged, is reported."""

import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skylark.mqcommon.errors import UserError
from skylark.mqcommon.message.queue import MessageQueue
from skylark.mqcommon.tier.bucket import Bucket, BucketAway, BucketRefused
from skylark.mqcommon.tier.layout import set_name
from skylark.mqcommon.tier.manifest import Tombstone
from skylark.mqcommon.tier.opening import open_bucket
from skylark.spark_connector.offsets import DataLost
from skylark.spark_connector.options.read import ReadOptions
from skylark.spark_connector.source import RocketMQDataSource
from skylark.spark_connector.tier.directory import open_tier
from skylark.spark_connector.tier.reader import PushDownTierReader, TierReader
from tests.broker.store.support import put, put_inner
from tests.spark_connector.stores import opened, options_of
from tests.spark_connector.stores import read as read_store
from tests.spark_connector.tier.tiers import (
    SCHEMA,
    CountingBucket,
    bucket,
    offsets,
    opened_as,
    places,
    read,
    reader_of,
    sent,
    tasks,
    writer,
)
from tests.support.buckets import S3Server
from tests.support.uploaded_store import upload_store

__all__ = ["bucket"]

FEW = settings(max_examples=max(10, settings.default.max_examples // 10))


def without_properties(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "properties"}


def two_segments(bucket: Bucket, name: str = "broker-a") -> None:
    """Queue 0 of topic t has offsets 0 to 199, queue 1 0 to 49; topic u has 0 to 9."""
    made = writer(bucket, name)
    made.add([*sent("t", 0, range(100)), *sent("u", 0, range(10)), *sent("t", 1, range(20))])
    made.add([*sent("t", 1, range(20, 50)), *sent("t", 0, range(100, 200))])


# --- what is read


def test_messages_of_all_segments_and_brokers_are_read_once(bucket: CountingBucket) -> None:
    two_segments(bucket)
    two_segments(bucket, "broker-b")
    expected = [
        ("t", name, queue_id, offset)
        for name in ("broker-a", "broker-b")
        for queue_id, count in ((0, 200), (1, 50))
        for offset in range(count)
    ]
    for options in ({}, {"maxTasks": "1"}, {"minPartitions": "7"}, {"bytesPerTask": "0", "minRowsPerTask": "10"}):
        rows = read(**options)
        assert places(rows) == expected
        assert all(row["body"] == b"t-%d-%d" % (row["queueId"], row["queueOffset"]) for row in rows)
    assert places(read(tierSet="broker-b", topic="u")) == [("u", "broker-b", 0, offset) for offset in range(10)]
    assert len(read(topicPattern="[tu]")) == 520


def test_a_directory_is_a_bucket(tmp_path: Path) -> None:
    url = tmp_path.as_uri()
    two_segments(open_bucket(url, timeout_s=60))
    assert len(read(tierPath=url)) == 250


def test_an_object_store_is_a_bucket(s3_server: S3Server, s3_url: str) -> None:
    url = f"{s3_url}/a/prefix"
    two_segments(open_bucket(url, timeout_s=60))
    assert len(read(tierPath=url)) == 250
    with s3_server.answering(403, "ExpiredToken"), pytest.raises(BucketRefused):
        read(tierPath=url, brokerWaitMs="60000")


@pytest.mark.parametrize("name", ["a b/c", ".a"])
def test_a_broker_has_the_folder_that_it_writes_to(bucket: CountingBucket, name: str) -> None:
    two_segments(bucket, set_name(name))
    for options in ({}, {"tierSet": name}):
        assert {row["brokerName"] for row in read(**options)} == {name}


def test_offsets_and_times_limit_what_is_read(bucket: CountingBucket) -> None:
    two_segments(bucket)
    start = json.dumps({"t": {"broker-a": {"0": 95, "1": -2}}})
    end = json.dumps({"t": {"broker-a": {"0": 105, "1": 0}}})
    rows = read(startingOffsets=start, endingOffsets=end)
    assert offsets(rows) == list(range(95, 105))
    assert offsets(rows, 1) == []
    rows = read(startingTimestamp="41000", endingTimestamp="126000")  # message n was stored at 1000 + 1000 n
    assert offsets(rows) == list(range(40, 125))
    assert offsets(rows, 1) == list(range(40, 50))
    assert offsets(read(assign='{"t":{"broker-a":[1]}}'), 1) == list(range(50))
    assert read(startingTimestamp="900000") == []


def test_filters_of_the_query_narrow_what_is_read(bucket: CountingBucket) -> None:
    from pyspark.sql.datasource import EqualTo

    two_segments(bucket)
    source = PushDownTierReader(ReadOptions.parse({"tierPath": "file:///b", "topic": "t", "pushdown": "true"}), SCHEMA)
    list(source.pushFilters([EqualTo(("queueId",), 1)]))
    (task,) = source.partitions()
    assert {one.queue.queue_id for one in task.value.ranges} == {1}


@FEW
@given(data=st.data())
def test_any_range_of_any_segments_is_read_once(data: st.DataObject) -> None:
    made = CountingBucket()
    writing = writer(made)
    ends = [0, 0, 0]
    for _ in range(data.draw(st.integers(1, 4), "segments")):
        messages = []
        for _ in range(data.draw(st.integers(0, 4))):
            queue_id, rows = data.draw(st.integers(0, 2)), data.draw(st.integers(1, 30))
            body = b"b" * data.draw(st.sampled_from([0, 10, 5_000, 70_000]))
            messages += sent("t", queue_id, range(ends[queue_id], ends[queue_id] + rows), body=body)
            ends[queue_id] += rows
        writing.add(messages)
    starts = [data.draw(st.integers(0, end)) for end in ends]
    stops = [data.draw(st.integers(start, end)) for start, end in zip(starts, ends, strict=True)]
    there = [number for number in range(3) if ends[number]]
    if not there:
        return
    given = {
        "startingOffsets": json.dumps({"t": {"broker-a": {str(number): starts[number] for number in there}}}),
        "endingOffsets": json.dumps({"t": {"broker-a": {str(number): stops[number] for number in there}}}),
        "maxTasks": str(data.draw(st.integers(1, 5))),
        "bytesPerTask": "0",
        "minRowsPerTask": str(data.draw(st.integers(0, 20))),
        "maxRecordsPerPartition": str(data.draw(st.sampled_from([0, 0, 3, 17]))),
        "maxRecordsPerBatch": str(data.draw(st.integers(1, 40))),
    }
    with pytest.MonkeyPatch.context() as patch:
        opened_as(patch, made)
        found = tasks(**given)
    rows = [row for task in found for row in task]
    for number in there:
        assert offsets(rows, number) == list(range(starts[number], stops[number])), "in order, over all tasks"


def test_what_a_broker_has_uploaded_has_the_rows_of_its_store(bucket: CountingBucket, tmp_path: Path) -> None:
    with opened(options_of(tmp_path / "store")) as store:
        store.queues.use_kinds(lambda topic: topic == "b")
        for number in range(150):
            tag = b"TAGS\x01%s\x02" % (b"odd" if number % 2 else b"even")
            put(store, "t", number % 3, b"%d" % number * (number % 40), tag)
            if number % 7 == 0:
                put_inner(store, "b", 0, [(0, b"%d-%d" % (number, row), b"") for row in range(number % 5 + 1)])
    upload_store(bucket, tmp_path / "store", "broker-a")
    for topic in ("t", "b"):
        of_store = [without_properties(row) for row in read_store(tmp_path / "store", topic=topic)]
        there = dict(zip(places(of_store), of_store, strict=True))
        rows = read(topic=topic)
        assert 20 < len(rows) < len(there), "the last file is not uploaded"
        assert rows == [there[place] for place in places(rows)]
        assert offsets(rows) == list(range(len(offsets(rows)))), "from the first one on"
    assert {row["tags"] for row in read(topic="t", subExpression="odd")} == {"odd"}
    some = read(topic="b", startingOffsets='{"b":{"broker-a":{"0":4}}}', endingOffsets='{"b":{"broker-a":{"0":11}}}')
    assert offsets(some) == list(range(4, 11)), "within batches"


# --- how much is asked for


def test_a_small_topic_costs_little_more_than_its_bytes(bucket: CountingBucket) -> None:
    made, rows = writer(bucket), 0
    for _ in range(4):
        ours, others = range(rows, rows + 40), range(2 * rows, 2 * rows + 80)
        small = [one for queue_id in range(16) for one in sent("small", queue_id, ours, body=b"s" * 200)]
        large = [one for queue_id in range(4) for one in sent("large", queue_id, others, body=b"l" * 1000)]
        made.add([*small, *large])
        rows += 40
    source = reader_of(topic="small", maxTasks="4", bytesPerTask="1")
    partitions = source.partitions()
    assert [len(one.value.segments) for one in partitions] == [1, 1, 1, 1]
    bucket.requests.clear()
    found = [row for one in partitions for batch in source.read(one) for row in batch.to_pylist()]
    assert len(found) == 16 * 160
    of_small = sum(len(raw) for raw in made.records.values() if b"small" in raw)
    data = [size for name, size in bucket.requests if name.endswith(".log")]
    assert sum(data) == of_small, "no byte of another topic"
    assert len(data) == 4, "all queues of a segment in one request"
    assert sum(size for _, size in bucket.requests) < 1.2 * of_small


def test_planning_does_not_read_messages(bucket: CountingBucket) -> None:
    two_segments(bucket)
    bucket.requests.clear()
    reader_of().partitions()
    assert not [name for name, _ in bucket.requests if name.endswith(".log")]


# --- what is not there


def test_damaged_bytes_are_lost_and_never_rows(bucket: CountingBucket) -> None:
    made = writer(bucket)
    segment = made.add(sent("t", 0, range(300), body=b"b" * 1_000))  # some stretches
    (name,) = (stored.name for _, stored in segment.classes)
    data, modified_ms = bucket.objects[name]
    bucket.objects[name] = data[:100_000] + b"\xff" + data[100_001:], modified_ms
    with pytest.raises(DataLost, match=r"damaged in the bucket, at byte \d+ of object broker-a/seg/") as caught:
        read()
    (lost,) = caught.value.lost
    rows = read(failOnDataLoss="false")
    assert offsets(rows) == [*range(lost.start), *range(lost.end, 300)]
    assert 0 < lost.start < lost.end < 300
    assert lost.end - lost.start < 100


def test_missing_objects_are_lost(bucket: CountingBucket, caplog: pytest.LogCaptureFixture) -> None:
    two_segments(bucket)
    source = reader_of(onDataLoss="skip", maxTasks="1")
    partitions = source.partitions()
    names = [name for name in bucket.objects if name.endswith(".log")]
    bucket.delete(names[:1])
    rows = [row for one in partitions for batch in source.read(one) for row in batch.to_pylist()]
    assert offsets(rows) == list(range(100, 200))
    assert offsets(rows, 1) == list(range(20, 50))
    assert "is missing, or too short" in caplog.text
    with pytest.raises(DataLost, match="is missing, or too short"):
        read()


def test_a_damaged_index_loses_its_segment_only(bucket: CountingBucket) -> None:
    two_segments(bucket)
    source = reader_of(onDataLoss="skip", maxTasks="1")
    partitions = source.partitions()
    first, *_ = (name for name in bucket.objects if name.endswith("/index"))
    data, modified_ms = bucket.objects[first]
    bucket.objects[first] = data[:20] + b"\xff\xff\xff" + data[23:], modified_ms
    rows = [row for one in partitions for batch in source.read(one) for row in batch.to_pylist()]
    assert offsets(rows) == list(range(100, 200))
    strict = reader_of(maxTasks="1")
    with pytest.raises(DataLost, match="or not their index: "):
        [list(strict.read(one)) for one in partitions]


@pytest.mark.parametrize(("damaged", "missing"), [(4, 7), (0, 1)])
def test_plans_know_where_a_segment_with_a_damaged_index_begins(
    bucket: CountingBucket, damaged: int, missing: int
) -> None:
    made = writer(bucket)
    segments = [made.add(sent("t", 0, range(at, at + 10))) for at in range(0, 90, 10)]
    bucket.objects[segments[damaged].index.name] = b"x" * 1_000, 0
    bucket.delete([segments[missing].index.name])
    for most in ("1", "4", "9"):
        given = {"bytesPerTask": "0", "minRowsPerTask": "0", "maxTasks": most}
        rows = read(**given, failOnDataLoss="false")
        assert offsets(rows) == [at for at in range(90) if at // 10 not in (damaged, missing)]
        with pytest.raises(DataLost, match=r"or not their index: broker-a/seg/.*/index"):
            read(**given)


def test_messages_whose_time_is_over_are_not_read(bucket: CountingBucket) -> None:
    made = writer(bucket)
    segments = [made.add(sent("t", 0, range(at, at + 10))) for at in (0, 10, 20)]
    gone = replace(segments[0], classes=())
    made.change(made.manifest.successor(9_000).with_segments_changed([gone, *segments[1:]]))
    assert offsets(read()) == list(range(10, 30))
    with pytest.raises(DataLost, match="deleted: the queue starts at 10"):
        read(startingOffsets='{"t":{"broker-a":{"0":5}}}')


def test_a_topic_that_was_made_again_has_its_own_messages_only(bucket: CountingBucket) -> None:
    made = writer(bucket)
    made.add([*sent("t", 0, range(50)), *sent("u", 0, range(5))])
    made.change(made.manifest.successor(9_000).with_tombstone(Tombstone("t", made.end)))
    with pytest.raises(UserError, match="has no messages of topic t in the segments of broker-a; it has u"):
        read()
    made.add([*sent("t", 0, range(10), body=b"new"), *sent("u", 0, range(5, 10))])
    for options in ({}, {"topic": "t,u", "maxTasks": "1"}):
        rows = [row for row in read(**options) if row["topic"] == "t"]
        assert offsets(rows) == list(range(10))
        assert {row["body"] for row in rows} == {b"new"}


# --- mistakes


def test_mistakes_say_what_is_there(bucket: CountingBucket) -> None:
    with pytest.raises(UserError, match="has no segments of any broker; give the tierPath of a broker's conf"):
        read()
    two_segments(bucket)
    bucket.put("skylark-probe/x/0", [b"x"])
    with pytest.raises(UserError, match=r"option tierSet: .* has nothing of broker-c; it has broker-a$"):
        read(tierSet="broker-a,broker-c")
    with pytest.raises(UserError, match="has no messages of topic x in the segments of broker-a; it has t, u"):
        read(topic="x")
    with (
        open_tier(ReadOptions.parse({"tierPath": "file:///b", "topic": "t"})) as tier,
        pytest.raises(UserError, match="committed offsets are in a cluster"),
    ):
        tier.committed_offset(MessageQueue("t", "broker-a", 0))


def test_a_bucket_that_is_away_is_waited_for_and_a_refusal_is_not(
    bucket: CountingBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skylark.spark_connector.reading.pulling.FIRST_PAUSE_S", 0)
    two_segments(bucket)
    errors: list[Exception] = [BucketAway("503") for _ in range(3)]
    folders = bucket.folders

    def failing(prefix: str) -> object:
        if errors:
            raise errors.pop()
        return folders(prefix)

    monkeypatch.setattr(bucket, "folders", failing)
    assert len(read(brokerWaitMs="60000")) == 250
    errors[:] = [BucketAway("503")]
    with pytest.raises(BucketAway):
        read()
    errors[:] = [BucketRefused("credentials have ended"), BucketRefused("again")]
    with pytest.raises(BucketRefused):
        read(brokerWaitMs="60000")
    assert len(errors) == 1


def test_the_source_chooses_this_reader_and_it_can_be_pickled(bucket: CountingBucket) -> None:
    two_segments(bucket)
    source = RocketMQDataSource({"tierPath": "file:///b", "topic": "t", "brokerWaitMs": "0"})
    made = source.reader(SCHEMA)
    assert type(made) is TierReader
    again, partitions = pickle.loads(pickle.dumps((made, made.partitions())))
    assert sum(len(batch) for one in partitions for batch in again.read(one)) == 250
    pushed = RocketMQDataSource({"tierPath": "file:///b", "topic": "t", "pushdown": "true"}).reader(SCHEMA)
    assert type(pushed) is PushDownTierReader
