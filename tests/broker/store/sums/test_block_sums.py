"""The sums of a log's blocks: blocks do not cross files, a sum is made once, and equal sums attest one another."""

from itertools import pairwise
from zlib import crc32

from hypothesis import given
from hypothesis import strategies as st

from skylark.broker.store.sums.block_sums import BLOCK_BYTES, Block, BlockSum, BlockSums, FileSums

# Of two whole blocks and a short one.
_SEGMENT = 2 * BLOCK_BYTES + 1000
_STEPS = ("seal", "seal", "seal", "attest", "replace", "drop", "cut", "remove", "write")


@given(
    segment=st.integers(1, 3 * BLOCK_BYTES), start=st.integers(0, 10 * BLOCK_BYTES), size=st.integers(1, BLOCK_BYTES)
)
def test_blocks_cover_the_log_and_none_crosses_files(segment: int, start: int, size: int) -> None:
    sums = BlockSums(segment)
    first = sums.block_at(start)
    found = list(sums.blocks(first.start, start + size))[:50]
    assert found[0] == first and first.start <= start < first.end
    for one, next_ in pairwise(found):
        assert one.end == next_.start
    for block in found:
        assert 0 < block.size <= BLOCK_BYTES and block.start // segment == (block.end - 1) // segment
        assert all(sums.block_at(offset) == block for offset in (block.start, block.end - 1))


def test_a_sum_is_made_once_and_attested_by_an_equal_one() -> None:
    sums, block = BlockSums(4 * BLOCK_BYTES), Block(0, BLOCK_BYTES)
    data = bytes(BLOCK_BYTES)
    assert sums.is_right(block, b"anything") and not sums.attest(block, 1)
    sums.seal(block, crc32(data))
    sums.seal(block, 7)
    assert sums.sum_of(block) == BlockSum(crc32(data), False)
    assert sums.is_right(block, data) and not sums.is_right(block, b"\1" + data[1:])
    assert not sums.attest(block, 7) and sums.attest(block, crc32(data))
    assert sums.sum_of(block) == BlockSum(crc32(data), True)


@given(cut=st.integers(0, 8 * BLOCK_BYTES), cleaned=st.integers(0, 3))
def test_cut_and_cleaned_blocks_have_no_sums(cut: int, cleaned: int) -> None:
    sums = BlockSums(2 * BLOCK_BYTES)
    for block in sums.blocks(0, 8 * BLOCK_BYTES):
        sums.seal(block, 1)
    sums.drop_from(cut)
    sums.remove_before(cleaned * 2 * BLOCK_BYTES)
    for block in sums.blocks(0, 8 * BLOCK_BYTES):
        kept = block.end <= cut and block.start >= cleaned * 2 * BLOCK_BYTES
        assert (sums.sum_of(block) is not None) is kept


@given(st.data())
def test_sums_are_as_a_table_of_blocks_in_memory_and_as_written(data: st.DataObject) -> None:
    """Whatever is sealed, attested, dropped, cut and removed; what is written meanwhile is a true copy."""
    sums, model = BlockSums(_SEGMENT), dict[Block, BlockSum]()
    written: dict[int, FileSums] = {}
    for _ in range(data.draw(st.integers(1, 30))):
        offset, crc = data.draw(st.integers(0, 4 * _SEGMENT - 1)), data.draw(st.integers(0, 3))
        block, own = sums.block_at(offset), model.get(sums.block_at(offset))
        match data.draw(
            st.sampled_from(["seal", "seal", "seal", "attest", "replace", "drop", "cut", "remove", "write"])
        ):
            case "seal":
                assert sums.seal(block, crc) == (own is None)
                model.setdefault(block, BlockSum(crc, False))
            case "attest":
                assert sums.attest(block, crc) == (own is not None and own.crc == crc)
                if own is not None and own.crc == crc:
                    model[block] = BlockSum(crc, True)
            case "replace":
                sums.replace(block, crc, is_attested=True)
                model[block] = BlockSum(crc, True)
            case "drop":
                sums.drop(block)
                model.pop(block, None)
            case "cut":
                cuts = sums.cuts
                sums.drop_from(offset)
                model = {each: kept for each, kept in model.items() if each.end <= offset}
                assert sums.cuts == cuts + 1
            case "remove":
                base = offset // _SEGMENT * _SEGMENT
                sums.remove_before(base)
                model = {each: kept for each, kept in model.items() if each.start >= base}
            case "write":
                written |= {file.base: file for file in sums.take_changed()}
                assert not sums.has_changed
        assert list(sums.newest()) == sorted(model, reverse=True) and len(sums) == len(model)
        assert all(sums.sum_of(each) == kept for each, kept in model.items())
    written |= {file.base: file for file in sums.take_changed()}
    again = BlockSums(_SEGMENT)
    for file in written.values():
        if not file.is_empty:
            again.load(file)
    assert {block: again.sum_of(block) for block in again.newest()} == model


def test_sealing_goes_on_after_the_block_of_a_cut() -> None:
    sums = BlockSums(4 * BLOCK_BYTES)
    sums.next_to_seal = 3 * BLOCK_BYTES
    for cut, expected in ((3 * BLOCK_BYTES, 3), (2 * BLOCK_BYTES - 1, 2), (10 * BLOCK_BYTES, 2), (BLOCK_BYTES, 1)):
        sums.drop_from(cut)
        assert sums.next_to_seal == expected * BLOCK_BYTES
