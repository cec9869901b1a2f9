"""A file of the log comes back from its sorted records byte for byte, or not at all."""

import struct
from zlib import crc32

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.mqcommon.message.layout import BLANK_MAGIC
from skylark.mqcommon.message.record import encode_record, topic_field
from skylark.mqcommon.tier import restore
from skylark.mqcommon.tier.bucket import DamagedObject
from skylark.mqcommon.tier.manifest import Segment, StoredObject
from skylark.mqcommon.tier.restore import NotWhole, restore_segment
from skylark.mqcommon.tier.segment_index import QUEUE, STRETCH, IndexHead, QueueTable, SegmentIndex
from tests.support.memory_bucket import MemoryBucket

START = 1 << 40
HOST = bytes(8)


def record(topic: str, physical: int, body: bytes) -> bytes:
    return encode_record(*topic_field(topic), 0, 0, physical, body, b"", 0, 0, 1, HOST, 2, HOST, 0, 0)


@st.composite
def files(draw: st.DrawFn) -> tuple[bytes, list[tuple[int, bytes]], dict[int, list[bytes]], int]:
    """(the file, its rest, its records by class in the order of the objects, how many records)."""
    data, rest, by_topic, count = b"", [], dict[str, list[bytes]](), 0
    for kind in draw(st.lists(st.sampled_from(["a", "b", "c", "zeros", "damage"]), max_size=12)):
        if kind == "zeros":
            data += bytes(draw(st.integers(1, 40)))
        elif kind == "damage":
            junk = draw(st.binary(min_size=1, max_size=40))
            rest.append((START + len(data), junk))
            data += junk
        else:
            one = record(kind, START + len(data), draw(st.binary(max_size=60)))
            by_topic.setdefault(kind, []).append(one)
            data, count = data + one, count + 1
    filler = struct.pack(">II", 64, BLANK_MAGIC)
    rest.append((START + len(data), filler))
    classes = {0: by_topic.get("a", []) + by_topic.get("b", []), 7: by_topic.get("c", [])}
    return data + filler + bytes(56), rest, {number: each for number, each in classes.items() if each}, count


def stored(bucket: MemoryBucket, name: str, data: bytes) -> StoredObject:
    bucket.put(name, [data])
    return StoredObject(name, len(data), crc32(data))


def uploaded(bucket: MemoryBucket, data: bytes, classes: dict[int, list[bytes]], count: int) -> Segment:
    objects = tuple((number, stored(bucket, f"seg/{number}", b"".join(each))) for number, each in classes.items())
    none = StoredObject("seg/index", 0, 0)
    return Segment(START, START + len(data), crc32(data), 1, 2, 2, count, "seg", objects, none, none)


def restored(
    bucket: MemoryBucket,
    segment: Segment,
    rest: list[tuple[int, bytes]],
    begins: dict[int, list[int]] | None = None,
) -> bytes:
    """``begins``: by class where stretches begin in its object; without them all records are hidden."""
    out = bytearray(segment.end - segment.start)
    queues, stretches = np.zeros(len(begins or {}), QUEUE), np.empty(0, STRETCH)
    for row, (number, positions) in zip(queues, (begins or {}).items(), strict=True):
        row["retention_class"], row["records"] = number, 1
        row["first_row"], row["rows"] = len(stretches), len(positions)
        more = np.zeros(len(positions), STRETCH)
        more["position"] = positions
        stretches = np.concatenate([stretches, more])
    head = IndexHead(START, START, *[0] * 10)
    index = SegmentIndex(QueueTable(head, [], queues, []), stretches.tobytes(), rest)
    restore_segment(bucket, segment, index, memoryview(out))
    return bytes(out)


def some_begins(draw: st.DrawFn, classes: dict[int, list[bytes]]) -> dict[int, list[int]]:
    """Places where records begin in the objects of the classes, some or all of them."""
    found: dict[int, list[int]] = {}
    for number, records in classes.items():
        starts = [sum(map(len, records[:row])) for row in range(len(records))]
        found[number] = [start for start in starts if draw(st.booleans())]
    return found


@given(files(), st.integers(1, 200), st.data())
def test_a_file_comes_back(
    made: tuple[bytes, list[tuple[int, bytes]], dict[int, list[bytes]], int], piece_bytes: int, draw: st.DataObject
) -> None:
    data, rest, classes, count = made
    bucket = MemoryBucket()
    segment = uploaded(bucket, data, classes, count)
    with pytest.MonkeyPatch.context() as patch:
        # Records lie across pieces.
        patch.setattr(restore, "PIECE_BYTES", piece_bytes)
        patch.setattr(restore, "THREADS", 2)
        assert restored(bucket, segment, rest, draw.draw(st.composite(some_begins)(classes))) == data


@given(files(), st.data())
def test_no_changed_byte_gets_through(
    made: tuple[bytes, list[tuple[int, bytes]], dict[int, list[bytes]], int], draw: st.DataObject
) -> None:
    data, rest, classes, count = made
    bucket = MemoryBucket()
    segment = uploaded(bucket, data, classes, count)
    if not segment.classes:
        return
    name = draw.draw(st.sampled_from([each.name for _, each in segment.classes]))
    changed = bytearray(bucket.objects[name][0])
    changed[draw.draw(st.integers(0, len(changed) - 1))] ^= draw.draw(st.integers(1, 255))
    bucket.put(name, [bytes(changed)])
    with pytest.raises(DamagedObject):
        restored(bucket, segment, rest)


def test_an_index_with_other_places_of_records_is_refused() -> None:
    bucket = MemoryBucket()
    size = len(record("a", START, b"x" * 58))
    records = [record("a", START + size * row, b"x" * 58) for row in range(40)]
    segment = uploaded(bucket, b"".join(records), {0: records}, 40)
    begins = list(range(0, 40 * size, size))
    assert restored(bucket, segment, [], {0: begins}) == b"".join(records)
    begins[5] += 1
    with pytest.raises(DamagedObject, match="no record of this segment"):
        restored(bucket, segment, [], {0: begins})


def test_a_segment_whose_class_is_over_says_that_it_is_not_whole() -> None:
    bucket = MemoryBucket()
    one, other = record("a", START, b"one"), record("b", START + 200, b"other")
    data = one.ljust(200, b"\0") + other
    segment = uploaded(bucket, data, {0: [one]}, 2)
    with pytest.raises(NotWhole, match="1 of 2 records"):
        restored(bucket, segment, [])


def test_a_segment_with_another_rest_is_refused() -> None:
    bucket = MemoryBucket()
    one = record("a", START, b"one")
    segment = uploaded(bucket, one + b"junk", {0: [one]}, 1)
    with pytest.raises(DamagedObject, match="not the one that was uploaded"):
        restored(bucket, segment, [(START + len(one), b"jink")])


@pytest.mark.parametrize("physical", [START - 100, START + 100])
def test_a_record_of_another_segment_is_refused(physical: int) -> None:
    bucket = MemoryBucket()
    one = record("a", physical, b"one")
    segment = uploaded(bucket, one, {0: [one]}, 1)
    with pytest.raises(DamagedObject, match="no record of this segment at byte 0"):
        restored(bucket, segment, [])
