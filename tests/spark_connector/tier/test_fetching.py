"""Requests for the messages of a task: nothing twice, nothing left out silently."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.mqcommon.message.layout import MIN_RECORD
from skylark.mqcommon.message.queue import MessageQueue
from skylark.mqcommon.tier.bucket import BucketAway, BucketRefused
from skylark.mqcommon.tier.record_places import LEAST_AT_ONCE
from skylark.spark_connector.offsets import LostRange, OffsetRange
from skylark.spark_connector.reading.batch_reader import Piece
from skylark.spark_connector.tier import fetching
from skylark.spark_connector.tier.fetching import (
    Fetch,
    Run,
    Stored,
    StoredRun,
    coalesced,
    fetches,
    read_all,
    read_one,
    starts_in,
)
from tests.support.memory_bucket import MemoryBucket

QUEUES = [MessageQueue("t", "a", number) for number in range(3)]


def a_range(low: int, high: int, queue: int = 0) -> OffsetRange:
    return OffsetRange(QUEUES[queue], low, high)


@dataclass(frozen=True)
class Offsets:
    """A segment whose queues have these offsets; each offset is a stretch of 10 bytes."""

    number: int
    have: Sequence[range]
    problem: str = ""

    def runs(self, wanted: OffsetRange) -> Sequence[StoredRun]:
        here = self.have[wanted.queue.queue_id]
        before = sum(len(one) for one in self.have[: wanted.queue.queue_id])
        low, high = max(wanted.start, here.start), min(wanted.end, here.stop)
        if low >= high:
            return []
        at = [10 * (before + offset - here.start) for offset in range(low, high)]
        stretches = [Stored(one, 10, 0, offset, offset + 1) for one, offset in zip(at, range(low, high), strict=True)]
        return [StoredRun(f"s{self.number}", Run(wanted._replace(start=low, end=high), stretches))]


@given(
    st.lists(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), min_size=3, max_size=3), max_size=5),
    st.lists(st.tuples(st.integers(0, 30), st.integers(1, 20)), min_size=3, max_size=3),
)
def test_each_offset_is_read_once_or_lost(steps: list[list[tuple[int, int]]], asked: list[tuple[int, int]]) -> None:
    segments, ends = [], [0, 0, 0]
    for number, gaps in enumerate(steps):
        have = [range(end + gap, end + gap + rows) for end, (gap, rows) in zip(ends, gaps, strict=True)]
        ends = [one.stop for one in have]
        segments.append(Offsets(number, have))
    ranges = [a_range(start, start + rows, queue) for queue, (start, rows) in enumerate(asked)]
    # Two ranges of a queue in one task.
    middle = (ranges[0].start + ranges[0].end) // 2
    ranges[:1] = [ranges[0]._replace(end=middle), ranges[0]._replace(start=middle)]
    lost: list[LostRange] = []
    found = list(fetches(segments, ranges, lost.append))
    for one in [ranges[0]._replace(end=ranges[1].end), *ranges[2:]]:
        read = [
            (run.wanted.start, run.wanted.end) for each in found for run in each.runs if run.wanted.queue == one.queue
        ]
        assert read == sorted(read), "in the order of the queue"
        gone = [(each.start, each.end) for each in lost if each.queue == one.queue]
        offsets = [offset for low, high in read + gone for offset in range(low, high)]
        assert sorted(offsets) == list(range(one.start, one.end))
        there = {offset for each in segments for offset in each.have[one.queue.queue_id]}
        assert not there.intersection(offset for low, high in gone for offset in range(low, high))


def test_each_loss_has_its_own_reason() -> None:
    segments = [
        Offsets(0, [range(0)], problem="no index"),
        Offsets(1, [range(10, 20)]),
        Offsets(2, [range(30, 40)]),
    ]
    lost: list[LostRange] = []
    list(fetches(segments, [a_range(0, 40)], lost.append))
    assert [(one.start, one.end, one.reason) for one in lost] == [
        (0, 10, "the bucket does not have them, or not their index: no index"),
        (20, 30, "the bucket does not have them"),
    ]


def stored(position: int, size: int, name: str = "o") -> StoredRun:
    return StoredRun(name, Run(a_range(position, position + 1), [Stored(position, size, 0, position, position + 1)]))


def test_neighbours_are_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "FETCH_BYTES", 30)
    runs = [stored(20, 10), stored(0, 10), stored(10, 10), stored(30, 10), stored(50, 40), stored(0, 5, "p")]
    found = [(one.name, [run.stretches[0].position for run in one.runs]) for one in coalesced(runs)]
    assert found == [("o", [0, 10, 20]), ("o", [30]), ("o", [50]), ("p", [0])]


def bucket_with(data: bytes) -> MemoryBucket:
    bucket = MemoryBucket()
    bucket.put("o", [data])
    return bucket


def fetch_of(data: bytes, wanted: OffsetRange) -> Fetch:
    """Stretches of 10 bytes; stretch n has the offsets 5n to 5n+4."""
    stretches = [Stored(at, 10, zlib.crc32(data[at : at + 10]), at // 2, at // 2 + 5) for at in range(0, len(data), 10)]
    return Fetch("o", [Run(wanted, stretches)])


def test_a_damaged_stretch_is_lost_and_the_others_are_read() -> None:
    data = bytes(range(40))
    fetch = fetch_of(data, a_range(3, 18))
    (whole,) = read_one(bucket_with(data), fetch, 0)
    assert isinstance(whole, Piece)
    assert (whole.wanted, whole.buffer[:2]) == (a_range(3, 18), (0, data))
    damaged = data[:15] + b"\xff" + data[16:]
    before, lost, after = read_one(bucket_with(damaged), fetch, 0)
    assert isinstance(before, Piece) and isinstance(after, Piece)
    assert (before.wanted, before.buffer[:2]) == (a_range(3, 5), (0, data[:10]))
    assert isinstance(lost, LostRange)
    assert (lost.start, lost.end) == (5, 10)
    assert "damaged in the bucket, at byte 10 of object o" in lost.reason
    assert (after.wanted, after.buffer[:2]) == (a_range(10, 18), (10, data[20:]))


def test_a_missing_object_is_lost() -> None:
    fetch = fetch_of(bytes(40), a_range(3, 18))
    for bucket in (MemoryBucket(), bucket_with(bytes(39))):
        (lost,) = read_one(bucket, fetch, 0)
        assert isinstance(lost, LostRange)
        assert (lost.start, lost.end) == (3, 18)
        assert "object o of the bucket is missing, or too short" in lost.reason


def test_pieces_come_in_order_and_a_bucket_that_is_away_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skylark.spark_connector.reading.pulling.FIRST_PAUSE_S", 0)
    data = bytes(range(100))

    class Away(MemoryBucket):
        failures = 3

        def get_range(self, name: str, start: int, size: int) -> bytes:
            if self.failures:
                self.failures -= 1
                raise BucketAway("503")
            return super().get_range(name, start, size)

    bucket = Away()
    bucket.put("o", [data])
    (run,) = fetch_of(data, a_range(0, 50)).runs
    wanted = [Fetch("o", [Run(a_range(one.first, one.end), [one])]) for one in run.stretches]
    lost: list[LostRange] = []
    found = list(read_all(bucket, wanted, 60_000, lost.append))
    assert b"".join(one.buffer.data for one in found) == data
    assert not lost
    bucket.failures = 1
    with pytest.raises(BucketAway, match="503"):
        list(read_all(bucket, wanted, 0, lost.append))


def test_a_refusal_ends_the_task_at_once() -> None:
    class Refusing(MemoryBucket):
        def get_range(self, name: str, start: int, size: int) -> bytes:
            raise BucketRefused("the credentials have ended")

    with pytest.raises(BucketRefused):
        list(read_all(Refusing(), [fetch_of(bytes(10), a_range(0, 5))], 60_000, lambda lost: None))


@given(st.lists(st.lists(st.integers(MIN_RECORD, 300), min_size=1, max_size=40), min_size=1, max_size=20), st.randoms())
def test_starts_of_records_are_found_in_all_stretches_at_once(sizes: list[list[int]], random: Random) -> None:
    data, begins, starts = bytearray(), [], []
    for stretch in sizes:
        begins.append(len(data))
        for size in stretch:
            starts.append(len(data))
            data += size.to_bytes(4, "big") + bytes(size - 4)
    found = starts_in(bytes(data), begins)
    assert found is None or found.tolist() == starts
    may_be_alike = len(data) % sizes[0][0] == 0
    assert (found is None) == (len(begins) < LEAST_AT_ONCE or may_be_alike)
    # Sizes that do not lead from record to record are noticed.
    at = random.choice(starts)
    data[at : at + 4] = random.choice([0, -1, 3, len(data), 2**31 - 1]).to_bytes(4, "big", signed=True)
    wrong = starts_in(bytes(data), begins)
    assert wrong is None
