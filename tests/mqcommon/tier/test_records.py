"""The records of a stretch are told apart by their heads."""

import pytest

from skylark.mqcommon.tier.bucket import DamagedObject
from skylark.mqcommon.tier.records import records_between, stored_records
from tests.support.inner import inner_batch, rows_of
from tests.support.tier_segments import Sent, record_of


def test_records_come_with_their_places() -> None:
    raws = [record_of(Sent("t", 1, 5 + number, b"x" * number, 1000 + number), 100 * number) for number in range(3)]
    found = list(stored_records(b"".join(raws)))
    assert [(each.queue_offset, each.physical_offset, each.store_ms, each.messages) for each in found] == [
        (5, 0, 1000, 1),
        (6, 100, 1001, 1),
        (7, 200, 1002, 1),
    ]
    assert [b"".join(raws)[each.at : each.at + each.size] for each in found] == raws
    assert [each.queue_offset for each, _ in records_between(b"".join(raws), 6, 7)] == [6]


def test_an_inner_batch_is_several_messages() -> None:
    data = inner_batch(rows_of(4, 10), 10, physical=7) + inner_batch(rows_of(2, 14), 14, physical=9)
    assert [(each.queue_offset, each.messages) for each in stored_records(data)] == [(10, 4), (14, 2)]
    assert [each.queue_offset for each, _ in records_between(data, 13, 14)] == [10]
    assert [each.queue_offset for each, _ in records_between(data, 13, 15)] == [10, 14]


def test_bytes_that_are_no_whole_records_are_refused() -> None:
    raw = record_of(Sent("t", 1, 5, b"x", 1000), 0)
    for damaged in (raw[:-1], raw + b"\0", b"\0" * 200):
        with pytest.raises(DamagedObject, match="cannot be read"):
            list(stored_records(damaged))
