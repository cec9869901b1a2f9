"""The sums of files that grow: each is of the first bytes of a block, as many as are known."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.broker.store.sums import growing_sums
from skylark.broker.store.sums.block_sums import BLOCK_BYTES
from skylark.broker.store.sums.growing_sums import GrowingSums, PrefixSum

SEGMENT = BLOCK_BYTES + 1000
Steps = st.lists(st.integers(1, BLOCK_BYTES * 3 // 2), min_size=1, max_size=6)


def of(sums: GrowingSums, number: int, data: bytes) -> bytes:
    block = sums.block(number)
    return data[block.start : block.end]


def test_blocks_follow_one_another_and_none_crosses_files() -> None:
    sums, at = GrowingSums(SEGMENT), 0
    for number in range(7):
        block = sums.block(number)
        assert block.start == at and block.start // SEGMENT == (block.end - 1) // SEGMENT
        assert {sums.number_at(block.start), sums.number_at(block.end - 1)} == {number}
        at = block.end


@given(sizes=Steps, seed=st.integers(0, 99))
def test_what_was_written_fits_and_a_flip_does_not(sizes: list[int], seed: int) -> None:
    random, sums, data = Random(seed), GrowingSums(SEGMENT), b""
    for size in sizes:
        piece = random.randbytes(size)
        sums.extend(len(data), piece)
        data += piece
    last = sums.number_at(len(data) - 1)
    assert not sums.needs_look(0, len(data))
    for number in range(last + 1):
        part = of(sums, number, data)
        known = sums.sum_of(number)
        assert known.size == len(part) and known.fits(part + bytes(50))
        at = random.randrange(len(part))
        assert not known.fits(part[:at] + bytes([part[at] ^ 1]) + part[at + 1 :])
        assert not known.fits(part[:-1])
    assert sums.sum_of(last + 1) == PrefixSum(0, 0)


@given(sizes=Steps, cut=st.integers(0, 6 * BLOCK_BYTES))
def test_no_sum_is_left_of_what_was_cut(sizes: list[int], cut: int) -> None:
    sums, end = GrowingSums(SEGMENT), 0
    for size in sizes:
        sums.extend(end, b"x" * size)
        end += size
    sums.suspect(sums.number_at(end - 1))
    before = {number: sums.sum_of(number) for number in range(20)}
    sums.drop_from(cut)
    for number in range(20):
        assert sums.sum_of(number) == (before[number] if sums.block(number).end <= cut else PrefixSum(0, 0))
    assert cut > end - BLOCK_BYTES - 1 or not sums.suspects
    # What comes then is known from the next block on, or at once where the cut was at a block's start.
    end = min(cut, end)
    sums.extend(end, b"y" * 2 * SEGMENT)
    number = sums.number_at(end + SEGMENT)
    assert sums.sum_of(number).fits(b"y" * BLOCK_BYTES) and sums.sum_of(number).size


def test_blocks_of_an_earlier_process_need_a_look_once() -> None:
    before = GrowingSums(SEGMENT)
    before.extend(0, b"x" * (BLOCK_BYTES + 10))
    sums = GrowingSums(SEGMENT)
    sums.take_rows(*before.rows(), BLOCK_BYTES + 10)
    assert sums.needs_look(5, 1) and sums.needs_look(BLOCK_BYTES - 1, 2) and not sums.needs_look(SEGMENT, 1)
    sums.see(0)
    assert not sums.needs_look(5, 1) and sums.needs_look(BLOCK_BYTES - 1, 2)
    sums.extend(BLOCK_BYTES + 10, b"y")
    assert sums.needs_look(BLOCK_BYTES, 1) and sums.sum_of(1).fits(b"x" * 10 + b"y")
    sums.suspect(1)
    assert sums.suspected(0, BLOCK_BYTES) is None and sums.suspected(BLOCK_BYTES - 1, 2) == 1
    sums.look_again(1)
    assert sums.suspected(0, SEGMENT) is None and sums.needs_look(BLOCK_BYTES, 1)
    sums.forget(1)
    assert not sums.needs_look(BLOCK_BYTES, 1)


@pytest.mark.parametrize("end", [0, 10, BLOCK_BYTES, BLOCK_BYTES + 9])
def test_sums_of_more_than_the_files_have_are_not_taken(end: int) -> None:
    before = GrowingSums(SEGMENT)
    before.extend(0, b"x" * (BLOCK_BYTES + 10))
    sums = GrowingSums(SEGMENT)
    sums.take_rows(*before.rows(), end)
    assert sums.sum_of(0).size == (BLOCK_BYTES if end >= BLOCK_BYTES else 0)
    assert not sums.sum_of(1).size


def test_files_that_are_gone_have_no_sums() -> None:
    sums = GrowingSums(SEGMENT)
    sums.extend(0, b"x" * 3 * SEGMENT)
    sums.remove_before(SEGMENT)
    assert [bool(sums.sum_of(number).size) for number in range(7)] == [False, False, True, True, True, True, False]
    first, rows = sums.rows()
    assert (first, len(rows)) == (2, 4 * growing_sums._ROW.size)
    # A sum before all others: the scrub goes from a random place on.
    sums.put(0, PrefixSum(7, 8))
    assert sums.sum_of(0) == PrefixSum(7, 8) and not sums.sum_of(1).size and sums.sum_of(2).size
