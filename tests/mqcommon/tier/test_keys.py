"""Keys are found in their page, places of the log in their block, and damaged bytes are refused."""

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.mqcommon.tier import keys as keys_module
from skylark.mqcommon.tier.bucket import DamagedObject
from skylark.mqcommon.tier.keys import (
    BLOCK_BYTES,
    Directory,
    directory_size,
    encode_keys,
    page_range,
    places_of,
    places_of_more,
)
from skylark.mqcommon.tier.segment_index import KeyPages

HASHES = st.lists(st.integers(0, 2**64 - 1), max_size=60)
NOTHING = np.empty(0, np.int64)


def encoded(
    hashes: list[int], start: int = 0, physical: list[int] | None = None, queues: list[int] | None = None
) -> tuple[KeyPages, bytes]:
    return encode_keys(
        np.array(hashes, np.uint64),
        np.arange(len(hashes), dtype=np.int64) * 10,
        start,
        np.array(physical or [], np.int64),
        np.array(queues or [], np.int64),
    )


def all_places(data: bytes, page: bytes, hash_: int) -> list[int]:
    places, more = places_of(page, hash_)
    found: list[int] = places.tolist()
    return found if more is None else [*found, *places_of_more(data[more[0] : sum(more)], hash_).tolist()]


@given(HASHES, st.integers(0, 2**64 - 1), st.sampled_from([1, 40, 2_000]))
def test_a_key_is_found_at_all_its_places(hashes: list[int], other: int, copies: int) -> None:
    # Many keys make several pages; equal hashes are in one page.
    many = [*hashes, *hashes[:3] * copies, *range(0, 2**64 - 1, 2**64 // 1_200)]
    pages, data = encoded(many)
    for hash_ in {*many[:10], other}:
        place = page_range(pages, hash_)
        assert place is not None
        start, size = place
        found = all_places(data, data[start : start + size], hash_)
        # Rows have half of the hash, so other keys may be found, too: the reader compares keys.
        alike = [
            row for row, each in enumerate(many) if (each ^ hash_) % 2**32 == 0 and page_range(pages, each) == place
        ]
        assert sorted(found) == [10 * row for row in alike]
        assert {10 * row for row, each in enumerate(many) if each == hash_} <= set(found)


def test_a_key_of_many_messages_makes_no_page_larger() -> None:
    usual = list(range(0, 2**64 - 1, 2**64 // 20_000))
    hot = usual[777]
    pages, data = encoded([*usual, *[hot] * 30_000])
    start, size = page_range(pages, hot) or (0, 0)
    assert size < 8_000
    assert len(data) < (len(usual) + 30_000) * 16
    wanted = [7770, *range(10 * len(usual), 10 * (len(usual) + 30_000), 10)]
    assert sorted(all_places(data, data[start : start + size], hot)) == wanted
    more = places_of(data[start : start + size], hot).more
    assert more is not None
    damaged = bytearray(data[more[0] : sum(more)])
    damaged[100] ^= 1
    with pytest.raises(DamagedObject):
        places_of_more(bytes(damaged), hot)


def test_all_messages_may_have_one_key() -> None:
    pages, data = encoded([12345] * 2_000)
    start, size = page_range(pages, 12345) or (0, 0)
    assert sorted(all_places(data, data[start : start + size], 12345)) == list(range(0, 20_000, 10))
    start, size = page_range(pages, 2**63) or (0, 0)
    assert all_places(data, data[start : start + size], 2**63) == []


def test_a_segment_without_keys_has_no_page() -> None:
    pages, data = encoded([])
    assert page_range(pages, 7) is None
    assert Directory(len(data), data).block_range(0) is None


@given(st.data())
def test_a_damaged_page_is_refused(data: st.DataObject) -> None:
    pages, whole = encoded(list(range(1, 2**64, 2**64 // 30)))
    start, size = page_range(pages, 5) or (0, 0)
    page = bytearray(whole[start : start + size])
    page[data.draw(st.integers(0, size - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(DamagedObject):
        places_of(bytes(page), 5)
    with pytest.raises(DamagedObject):
        places_of(b"", 5)


@given(st.lists(st.integers(100, BLOCK_BYTES), min_size=1, max_size=20), st.integers(0, 2**40), st.randoms())
def test_the_queue_of_a_place_is_found(sizes: list[int], start: int, random: Random) -> None:
    physical = [start + sum(sizes[:number]) for number in range(len(sizes))]
    end = start + sum(sizes)
    rows = [(place, random.randrange(1000)) for place in physical]
    shuffled = random.sample(rows, len(rows))
    _, data = encoded([1, 2, 3], start, [place for place, _ in shuffled], [queue for _, queue in shuffled])
    tail = min(directory_size(start, end), len(data))
    directory = Directory(len(data), data[-tail:])

    def queue_at(physical: int) -> int | None:
        block = directory.block_range(physical - start)
        if block is None:
            return None
        return directory.queue_number(physical - start, data[block[0] : block[0] + block[1]])

    for place, queue in rows:
        assert queue_at(place) == queue
        assert queue_at(place + 1) is None
    assert queue_at(end + 10 * BLOCK_BYTES) is None


@given(st.data())
def test_a_damaged_directory_or_block_is_refused(data: st.DataObject) -> None:
    _, whole = encoded([], 0, list(range(0, 3 * BLOCK_BYTES, 10_000)), [1] * 315)
    at, flip = data.draw(st.integers(0, len(whole) - 1)), data.draw(st.integers(1, 255))
    changed = bytearray(whole)
    changed[at] ^= flip
    with pytest.raises(DamagedObject):
        directory = Directory(len(changed), bytes(changed[-directory_size(0, 3 * BLOCK_BYTES) :]))
        for number in range(3):
            start, size = directory.block_range(number * BLOCK_BYTES) or (0, 0)
            directory.queue_number(number * BLOCK_BYTES, bytes(changed[start : start + size]))


@given(
    pages=st.sampled_from([1, 3, 1 << 14, 1 << 31]),
    numbers=st.lists(st.tuples(st.integers(0, (1 << 31) - 1), st.integers(0, (1 << 32) - 1)), min_size=1, max_size=300),
)
def test_the_order_of_keys_is_ascending_however_few_bits_are_left_for_their_places(
    pages: int, numbers: list[tuple[int, int]]
) -> None:
    # Many tails differ in their last bits only, which are sorted in a second step.
    wanted = np.array([(page % pages) << 32 | tail & ~0xF00 for page, tail in numbers], np.uint64)
    order = keys_module._ascending(wanted, pages)
    assert sorted(order.tolist()) == list(range(len(numbers)))
    assert (np.diff(wanted[order].astype(np.int64)) >= 0).all()


def test_keys_that_are_too_short_for_a_directory_are_refused() -> None:
    with pytest.raises(DamagedObject, match="no directory"):
        Directory(3, b"end")
