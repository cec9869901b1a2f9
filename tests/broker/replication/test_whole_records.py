"""Bytes of a log, cut where its records end."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.broker.replication import whole_records
from skylark.broker.replication.whole_records import WholeRecords
from skylark.mqcommon.message.layout import BLANK_BYTES, BLANK_MAGIC, MAGIC_V1, MAGIC_V2, MIN_RECORD, SIZE_MAGIC

FILE_BYTES = 1_000


def record(size: int, magic: int = MAGIC_V1) -> bytes:
    return SIZE_MAGIC.pack(size, magic) + bytes(size - SIZE_MAGIC.size)


def log(random: Random, files: int) -> tuple[bytes, set[int]]:
    """Files full of records, and where the records and the fillers after them end."""
    data, ends = b"", {0}
    for number in range(1, files + 1):
        while True:
            left = number * FILE_BYTES - len(data)
            size = random.randrange(MIN_RECORD, 400)
            if size + BLANK_BYTES > left:
                break
            data += record(size, random.choice([MAGIC_V1, MAGIC_V2]))
            ends.add(len(data))
        data += SIZE_MAGIC.pack(left, BLANK_MAGIC) + bytes(left - BLANK_BYTES) if left >= BLANK_BYTES else bytes(left)
        ends.add(len(data))
    return data, ends


def taken(records: WholeRecords, data: bytes, sizes: list[int]) -> list[bytes]:
    found, at, number = [], 0, 0
    while at < len(data):
        size = sizes[number % len(sizes)]
        found.append(bytes(records.add(memoryview(data[at : at + size]))))
        at += size
        number += 1
    return found


@given(st.integers(0, 2**32), st.lists(st.integers(1, 700), min_size=1, max_size=9), st.data())
def test_what_is_written_ends_with_a_record(seed: int, sizes: list[int], data: st.DataObject) -> None:
    whole, ends = log(Random(seed), 3)
    at = data.draw(st.sampled_from(sorted(ends)))
    pieces = taken(WholeRecords(FILE_BYTES, at), whole[at:], sizes)
    assert b"".join(pieces) == whole[at:]
    for piece in pieces:
        at += len(piece)
        assert at in ends


@given(st.integers(0, 2**32), st.lists(st.integers(1, 700), min_size=1, max_size=9), st.integers(0, 300))
def test_pieces_of_large_records_end_where_a_page_does(seed: int, sizes: list[int], most_held: int) -> None:
    """Also when a connection ends, and the next one goes on within a record."""
    random = Random(seed)
    whole, ends = log(random, 3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(whole_records, "MOST_HELD_BYTES", most_held)
        patch.setattr(whole_records, "PAGE_BYTES", 50)
        records, at, received, connections = WholeRecords(FILE_BYTES, 0), 0, 0, 1
        while received < len(whole):
            upto = received + random.choice(sizes)
            at += len(piece := bytes(records.add(memoryview(whole[received:upto]))))
            assert piece == whole[at - len(piece) : at]
            received = upto
            start, end = max(e for e in ends if e <= at), min(e for e in ends if e >= at)
            # A filler, which ends with its file, is never held.
            assert at == end or (at % FILE_BYTES % 50 == 0 and (end - start > most_held or end % FILE_BYTES == 0))
            if random.random() < 0.2 and connections < 10:
                connections += 1
                records, received = WholeRecords(FILE_BYTES, at, end - at), at
        assert at == len(whole)


def test_nothing_is_held_back_longer_than_its_record_lasts() -> None:
    records = WholeRecords(FILE_BYTES, 0)
    both = record(100) + record(200)
    assert bytes(records.add(memoryview(both[:99]))) == b""
    assert not records.is_empty
    assert bytes(records.add(memoryview(both[99:101]))) == both[:100]
    assert bytes(records.add(memoryview(both[101:]))) == both[100:]
    assert records.is_empty


def test_a_record_that_is_too_large_to_hold_is_written_page_by_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole_records, "MOST_HELD_BYTES", 300)
    monkeypatch.setattr(whole_records, "PAGE_BYTES", 64)
    data = record(400) + record(200)
    pieces = taken(WholeRecords(FILE_BYTES, 0), data, [150])
    assert [len(piece) for piece in pieces] == [128, 128, 144, 200]


def test_bytes_that_are_no_record_are_written_for_the_reader_to_refuse() -> None:
    for bad in (record(MIN_RECORD - 1), record(100, 77), record(FILE_BYTES + 1)):
        records = WholeRecords(FILE_BYTES, 0)
        pieces = taken(records, record(100) + bad, [50])
        assert b"".join(pieces) == record(100) + bad
