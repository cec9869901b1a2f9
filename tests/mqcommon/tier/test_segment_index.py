"""An index says where each queue's records are; bytes that were not written so are refused."""

import struct
import zlib
from dataclasses import dataclass
from zlib import crc32

import cbor2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.mqcommon.tier.bucket import DamagedObject, NewerFormat
from skylark.mqcommon.tier.index_builder import DisorderedQueue, IndexBuilder, QueueRecords, SortedRecords
from skylark.mqcommon.tier.segment_index import (
    HEAD_BYTES,
    STRETCH_BYTES,
    IndexHead,
    QueueRow,
    QueueStretches,
    QueueTable,
    SegmentIndex,
    class_places,
    decode_rest,
)

NONE = np.empty(0, np.int64)


@dataclass
class Queue:
    """Records to index: (offset, bytes, store time) each."""

    topic: str
    queue_id: int
    retention_class: int
    records: list[tuple[int, int, int]]


def built(
    queues: list[Queue],
    *,
    start: int = 0,
    before: QueueTable | None = None,
    hidden_bytes: int = 0,
    rest: tuple[tuple[int, bytes], ...] = (),
    tombstones: dict[str, int] | None = None,
) -> tuple[bytes, dict[int, bytes]]:
    """(the index, the objects of the classes); ``hidden_bytes`` follow the records of each class."""
    objects: dict[int, bytes] = {}
    columns: list[tuple[int, int, int, int, int]] = []
    rows: list[QueueRecords] = []
    physical = start
    for queue in sorted(queues, key=lambda each: (each.retention_class, each.topic, each.queue_id)):
        first = len(columns)
        data = objects.get(queue.retention_class, b"")
        for offset, size, store_ms in queue.records:
            columns.append((physical, size, offset, store_ms, len(data)))
            data += bytes([len(columns) % 251]) * size
            physical += size
        objects[queue.retention_class] = data
        next_offset = queue.records[-1][0] + 1
        rows.append(QueueRecords(queue.topic, queue.queue_id, queue.retention_class, first, len(columns), next_offset))
    arrays = np.array(columns, np.int64).reshape(-1, 5).T
    builder = IndexBuilder(
        start,
        physical + 10,
        SortedRecords(*arrays),
        rows,
        before=before,
        tombstones=tombstones,
    )
    for number, data in objects.items():
        objects[number] = data + b"h" * hidden_bytes
        for at in range(0, len(objects[number]), 50_000):
            builder.feed(number, objects[number][at : at + 50_000])
        assert builder.fed(number) == (len(objects[number]), crc32(objects[number]))
    return builder.encode(rest, np.empty(0, np.uint64), NONE, NONE)[0], objects


def table_of(index: bytes) -> QueueTable:
    return SegmentIndex.decode(index).table


def row_of(index: bytes, topic: str, queue_id: int = 0) -> QueueRow:
    found = SegmentIndex.decode(index).find(topic, queue_id)
    assert found is not None
    return found


RECORDS = st.lists(st.tuples(st.integers(1, 3), st.integers(90, 40_000), st.integers(0, 1000)), min_size=1, max_size=12)


@st.composite
def some_queues(draw: st.DrawFn) -> list[Queue]:
    names = draw(st.lists(st.tuples(st.sampled_from(["a", "b", "ä%"]), st.integers(0, 4)), unique=True, max_size=5))
    found = []
    for topic, queue_id in names:
        offset, records = draw(st.integers(0, 100)), []
        for step, size, store_ms in draw(RECORDS):
            records.append((offset, size, store_ms))
            offset += step
        found.append(Queue(topic, queue_id, {"a": 0, "b": 24, "ä%": 24}[topic], records))
    return found


@given(some_queues(), st.integers(0, 2**40), st.sampled_from([0, 70_000]), st.data())
def test_stretches_have_exactly_the_records_of_an_offset(
    queues: list[Queue], start: int, hidden_bytes: int, data: st.DataObject
) -> None:
    index, objects = built(queues, start=start, hidden_bytes=hidden_bytes, rest=((start + 3, b"junk"),))
    decoded = SegmentIndex.decode(index)
    assert decoded.rest == [(start + 3, b"junk")]
    assert decoded.table.class_bytes == [(number, len(content)) for number, content in sorted(objects.items())]
    assert [(row.topic, row.queue_id) for row in decoded.queues()] == sorted((q.topic, q.queue_id) for q in queues)
    assert decoded.find("c", 0) is None and decoded.find("a", 77) is None
    for queue in queues:
        row = decoded.find(queue.topic, queue.queue_id)
        assert row is not None and row in decoded.queues()
        offsets = [offset for offset, _, _ in queue.records]
        assert (row.records, row.first_offset, row.next_offset) == (len(offsets), offsets[0], offsets[-1] + 1)
        all_stretches = decoded.stretches(row, 0, 2**62)
        assert sum(each.size for each in all_stretches) == row.size == sum(size for _, size, _ in queue.records)
        content = objects[row.retention_class]
        position = row.position
        for each in all_stretches:
            assert each.position == position
            assert crc32(content[position : position + each.size]) == each.crc
            # No stretch is longer than the limit and its last record.
            assert each.size < STRETCH_BYTES + 40_000
            position += each.size
        first, end = sorted(data.draw(st.tuples(st.integers(0, 140), st.integers(0, 140))))
        chosen = decoded.stretches(row, first, end)
        wanted = {offset for offset in offsets if first <= offset < end}
        firsts = [each.first_offset for each in all_stretches]
        held = {offset for offset in offsets if any(_holds(firsts, each.first_offset, offset) for each in chosen)}
        assert wanted <= held
        # At most one stretch has none of the offsets: the one before a hole.
        assert len([each for each in chosen if not any(_holds(firsts, each.first_offset, o) for o in wanted)]) <= 1


def _holds(firsts: list[int], first: int, offset: int) -> bool:
    later = [each for each in firsts if each > first]
    return first <= offset < min(later, default=2**62)


@given(some_queues().filter(bool), st.sampled_from([1, 70_000, 200_000]), st.integers(1, 400_000), st.data())
def test_all_readers_see_the_same_pieces(
    queues: list[Queue], piece_bytes: int, most_bytes: int, data: st.DataObject
) -> None:
    index, _ = built(queues)
    head = IndexHead.decode(index)
    queue = data.draw(st.sampled_from(queues))
    row = row_of(index, queue.topic, queue.queue_id)
    at, size = head.rows_at(row)
    stretches = QueueStretches.decode(head, row, index[at : at + size])
    count, positions = len(stretches), stretches.positions.tolist()
    every = stretches.pieces(range(count), piece_bytes)
    begins = [begin for begin, _ in every]
    assert [*begins, row.position + row.size] == [row.position, *[begin + size for begin, size in every]]
    assert {(position - row.position) // piece_bytes for position in positions[:-1]} == {
        (begin - row.position) // piece_bytes for begin in begins
    }
    first = data.draw(st.integers(0, count - 1))
    numbers = range(first, data.draw(st.integers(first + 1, count)))
    low, high = positions[numbers.start], positions[numbers.stop]
    assert stretches.pieces(numbers, piece_bytes) == [
        (begin, size) for begin, size in every if begin < high and begin + size > low
    ]
    fitting = stretches.fitting(first, most_bytes, piece_bytes)
    chosen = stretches.pieces(fitting, piece_bytes)
    assert fitting.start == first and chosen == every[every.index(chosen[0]) :][: len(chosen)]
    assert positions[fitting.stop] == sum(chosen[-1]), "whole pieces"
    more = every[every.index(chosen[0]) :][: len(chosen) + 1]
    assert len(chosen) == 1 or sum(size for _, size in chosen) <= most_bytes
    assert more == chosen or sum(size for _, size in more) > most_bytes


@given(some_queues(), st.integers(-1, 1001))
def test_the_first_stretch_of_a_time_is_found(queues: list[Queue], wanted_ms: int) -> None:
    index, _ = built(queues)
    head = IndexHead.decode(index)
    for queue in queues:
        row = row_of(index, queue.topic, queue.queue_id)
        at, size = head.rows_at(row)
        stretches = QueueStretches.decode(head, row, index[at : at + size])
        firsts = [stretches.stretch(number).first_offset for number in range(len(stretches))]
        late = [offset for offset, _, store_ms in queue.records if store_ms >= wanted_ms]
        expected = max(place for place, first in enumerate(firsts) if first <= late[0]) if late else len(stretches)
        assert stretches.at_time(wanted_ms) == expected


@given(some_queues(), st.data())
def test_a_damaged_index_is_never_misread(queues: list[Queue], data: st.DataObject) -> None:
    index, _ = built(queues, rest=((1, b"rest"),))
    rows = SegmentIndex.decode(index).queues()
    expected = [SegmentIndex.decode(index).stretches(row, 0, 2**62) for row in rows]
    at = data.draw(st.integers(0, len(index) - 1))
    changed = index[:at] + bytes([index[at] ^ data.draw(st.integers(1, 255))]) + index[at + 1 :]
    with pytest.raises(DamagedObject):
        decoded = SegmentIndex.decode(changed)
        assert decoded.queues() == rows
        assert [decoded.stretches(row, 0, 2**62) for row in rows] == expected
        raise AssertionError("no byte of an index is without meaning")
    with pytest.raises(DamagedObject):
        SegmentIndex.decode(index[: data.draw(st.integers(0, len(index) - 1))])


def test_an_index_of_no_records_comes_back() -> None:
    decoded = SegmentIndex.decode(built([])[0])
    assert decoded.queues() == [] and decoded.rest == []


def test_a_queue_without_records_is_carried_on() -> None:
    first, _ = built([Queue("a", 0, 24, [(0, 100, 5), (1, 100, 9)])])
    second, _ = built([Queue("b", 0, 0, [(0, 100, 7)])], start=1000, before=table_of(first))
    old, row = row_of(first, "a"), row_of(second, "a")
    assert (row.records, row.first_offset, row.next_offset) == (0, 2, 2)
    assert (row.birth, row.latest_ms, row.last_physical, row.class_since) == (0, 9, 100, 0)
    third, _ = built([Queue("a", 0, 24, [(2, 100, 8)])], start=2000, before=table_of(second))
    row = row_of(third, "a")
    assert (row.records, row.first_offset, row.next_offset, row.birth) == (1, 2, 3, old.birth)
    # The store time went back: the latest store time of the queue counts.
    assert (row.first_ms, row.last_ms, row.latest_ms) == (8, 8, 9)
    assert (row.first_physical, row.last_physical, row.class_since) == (2000, 2000, 0)


def test_another_class_is_told_with_its_place() -> None:
    first, _ = built([Queue("a", 0, 24, [(0, 100, 5)])])
    second, _ = built([Queue("a", 0, 72, [(1, 100, 5)])], start=1000, before=table_of(first))
    assert (row_of(second, "a").class_since, row_of(second, "a").birth) == (1000, 0)


def test_offsets_that_begin_anew_begin_a_life() -> None:
    first, _ = built([Queue("a", 0, 0, [(0, 100, 50), (1, 100, 60)])])
    second, _ = built([Queue("a", 0, 0, [(0, 100, 7), (1, 100, 8), (2, 100, 9)])], start=1000, before=table_of(first))
    row = row_of(second, "a")
    assert (row.birth, row.latest_ms, row.first_offset, row.next_offset) == (1000, 9, 0, 3)


@pytest.mark.parametrize("offsets", [[5, 6], [0, 10], [10, 9], [10, 10]])
def test_offsets_out_of_order_are_refused(offsets: list[int]) -> None:
    first, _ = built([Queue("a", 0, 0, [(number, 100, 1) for number in range(10)])])
    with pytest.raises(DisorderedQueue, match="queue 0 of a has offset"):
        built([Queue("a", 0, 0, [(each, 100, 1) for each in offsets])], start=2000, before=table_of(first))


def test_queues_of_deleted_topics_are_not_carried_on() -> None:
    first, _ = built([Queue("a", 0, 0, [(0, 100, 1)]), Queue("b", 0, 0, [(0, 100, 1)])])
    after_tombstone, _ = built([], start=1000, before=table_of(first), tombstones={"a": 500})
    assert [row.topic for row in table_of(after_tombstone).queues()] == ["b"]


def test_an_index_needs_all_bytes_of_its_objects() -> None:
    columns = SortedRecords(*np.array([[0, 100, 0, 1, 0]], np.int64).T)
    builder = IndexBuilder(0, 100, columns, [QueueRecords("a", 0, 0, 0, 1, 1)])
    builder.feed(0, b"x" * 99)
    with pytest.raises(ValueError, match="not fed whole"):
        builder.encode((), np.empty(0, np.uint64), NONE, NONE)


def test_parts_of_an_index_are_read_alone() -> None:
    index, _ = built([Queue("a", 0, 0, [(0, 70_000, 1), (1, 70_000, 2)]), Queue("b", 1, 0, [(5, 100, 3)])])
    head = IndexHead.decode(index[:HEAD_BYTES])
    table = QueueTable.decode(head, index[HEAD_BYTES : head.queues_end])
    assert table.queues() == SegmentIndex.decode(index).queues()
    row = table.find("b", 1)
    assert row is not None
    at, size = head.rows_at(row)
    stretches = QueueStretches.decode(head, row, index[at : at + size])
    assert [stretches.stretch(number) for number in range(len(stretches))] == SegmentIndex.decode(index).stretches(
        row, 5, 6
    )


def test_queues_are_found_by_places_of_keys() -> None:
    records = [(0, 100, 1), (1, 100, 2)]
    index, _ = built(
        [Queue("a", 0, 24, records), Queue("b", 0, 0, records), Queue("b", 1, 0, records)], hidden_bytes=50
    )
    table = table_of(index)
    # Class 0 has the 400 bytes of b and 50 that are hidden, then follows class 24.
    found = table.at_places(np.array([0, 100, 350, 420, 449, 450, 550, 650, 699]))
    assert [(row.topic, row.queue_id, positions.tolist()) for row, positions in found] == [
        ("b", 0, [0, 100]),
        ("b", 1, [350]),
        ("a", 0, [0, 100]),
    ]
    assert table.at_places(NONE) == []


def test_places_count_the_bytes_of_the_classes_before() -> None:
    assert class_places([(0, 100), (24, 50), (72, 10)]) == {0: 0, 24: 100, 72: 150}


def with_rest(index: bytes, rest: bytes) -> bytes:
    """The index with these bytes as its compressed rest, whose CRC is right."""
    head = IndexHead.decode(index)
    changed = head._replace(rest_bytes=len(rest), rest_crc=crc32(rest))
    return changed.encode() + index[HEAD_BYTES : head.stretches_end] + rest


PACKED = zlib.compress(cbor2.dumps([]))


@pytest.mark.parametrize(
    ("rest", "text"),
    [
        (zlib.compress(cbor2.dumps(5)), "cannot be read"),
        (zlib.compress(b"\x82\0"), "cannot be read"),
        (b"not compressed", "cannot be decompressed"),
        (PACKED[:-1], "does not end where it should"),
        (PACKED + b"\0", "does not end where it should"),
    ],
)
def test_a_rest_that_no_skylark_writes_is_refused(rest: bytes, text: str) -> None:
    index, _ = built([Queue("a", 0, 0, [(0, 100, 1)])])
    assert decode_rest(with_rest(index, PACKED)) == []
    with pytest.raises(DamagedObject, match=text):
        decode_rest(with_rest(index, rest))


def test_a_damaged_rest_is_refused_and_the_queues_are_read_all_the_same() -> None:
    index, _ = built([Queue("a", 0, 0, [(0, 100, 1)])], rest=((1, b"rest"),))
    damaged, head = index[:-1] + bytes([index[-1] ^ 1]), IndexHead.decode(index)
    with pytest.raises(DamagedObject, match="the rest in an index is damaged"):
        decode_rest(damaged)
    assert QueueTable.decode(head, damaged[HEAD_BYTES : head.queues_end]).queues() == table_of(index).queues()


@pytest.mark.parametrize(("version", "codec"), [(2, 1), (1, 2)])
def test_an_index_of_a_newer_format_is_told_from_a_damaged_one(version: int, codec: int) -> None:
    head = IndexHead.decode(built([])[0]).encode()
    newer = head[:4] + struct.pack("<HH", version, codec) + head[8:-4]
    with pytest.raises(NewerFormat, match=f"format {version} and codec {codec}: use a newer Skylark"):
        IndexHead.decode(newer + struct.pack("<I", crc32(newer)))


def test_queues_of_another_size_than_the_head_says_are_refused() -> None:
    index, _ = built([Queue("a", 0, 0, [(0, 100, 1)])])
    head = IndexHead.decode(index)
    with pytest.raises(DamagedObject, match="another size than its head says"):
        QueueTable.decode(head._replace(classes=head.classes + 1), index[HEAD_BYTES : head.queues_end])
