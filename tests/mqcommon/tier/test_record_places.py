"""Places of records are the same as a walk from record to record finds, whatever beginnings are known."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from skylark.mqcommon.message.layout import MIN_RECORD
from skylark.mqcommon.tier.record_places import record_places

SIZES = st.one_of(
    st.lists(st.integers(MIN_RECORD, MIN_RECORD + 40), max_size=60),
    st.tuples(st.integers(0, 60), st.integers(MIN_RECORD, MIN_RECORD + 4)).map(lambda each: [each[1]] * each[0]),
)


def records(sizes: list[int]) -> bytes:
    return b"".join(size.to_bytes(4, "big").ljust(size, b"\1") for size in sizes)


@given(SIZES, st.sets(st.integers(0, 59)), st.integers(0, MIN_RECORD - 1))
def test_whole_records_are_found(sizes: list[int], known: set[int], begun: int) -> None:
    data = records(sizes) + records([MIN_RECORD])[:begun]
    starts = np.cumsum([0, *sizes])[:-1]
    begins = np.array([start for row, start in enumerate(starts.tolist()) if row in known], np.int64)
    found = record_places(data, begins)
    assert found[0].tolist() == starts.tolist()
    assert found[1].tolist() == sizes


@given(SIZES.filter(bool), st.sets(st.integers(0, 59)), st.data())
def test_a_wrong_size_is_never_followed(sizes: list[int], known: set[int], draw: st.DataObject) -> None:
    starts = np.cumsum([0, *sizes])
    row = draw.draw(st.integers(0, len(sizes) - 1))
    wrong = draw.draw(st.integers(0, MIN_RECORD - 1))
    data = bytearray(records(sizes))
    data[starts[row] : starts[row] + 4] = wrong.to_bytes(4, "big")
    begins = np.array([start for each, start in enumerate(starts[:-1].tolist()) if each in known], np.int64)
    assert record_places(bytes(data), begins)[0].tolist() == starts[:row].tolist()


@given(SIZES.filter(bool), st.data())
def test_a_wrong_beginning_ends_the_search_at_the_record_that_has_it(sizes: list[int], draw: st.DataObject) -> None:
    starts = np.cumsum([0, *sizes])
    row = draw.draw(st.integers(0, len(sizes) - 1))
    begins = starts[:-1].copy()
    begins[row] += draw.draw(st.integers(1, sizes[row] - 1))
    found = record_places(records(sizes), begins)[0].tolist()
    assert found == starts[: len(found)].tolist()
    assert row <= len(found) <= row + 1
