"""Two replicas attest each other's sums, and find the blocks that differ."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from skylark.broker.replication.attesting import attest
from skylark.broker.store.sums.block_sums import BLOCK_BYTES, Block, BlockSum, BlockSums

FILE_BYTES = 4 * BLOCK_BYTES
# The CRCs of blocks; None: the block is not sealed.
logs = st.lists(st.tuples(st.sampled_from([None, 1, 2]), st.sampled_from([None, 1, 2])), min_size=1, max_size=12)


def sums_of(crcs: Sequence[int | None]) -> tuple[BlockSums, list[Block]]:
    sums = BlockSums(FILE_BYTES)
    blocks = list(sums.blocks(0, len(crcs) * BLOCK_BYTES))
    for block, crc in zip(blocks, crcs, strict=True):
        if crc is not None:
            sums.seal(block, crc)
    return sums, blocks


@given(logs)
def test_what_both_have_sealed_alike_is_attested_and_what_differs_is_named(crcs: list[tuple[int | None, ...]]) -> None:
    (ours, blocks), (theirs, _) = sums_of([own for own, _ in crcs]), sums_of([their for _, their in crcs])
    differing = attest(ours, blocks, [theirs.sum_of(block) for block in blocks])
    for block, (own, their) in zip(blocks, crcs, strict=True):
        both = own is not None and their is not None
        assert ours.sum_of(block) == (None if own is None else BlockSum(own, both and own == their))
        assert (block in differing) == (both and own != their)


@given(st.lists(st.sampled_from(["open", "sealed", "attested"]), max_size=12), st.integers(0, 12 * BLOCK_BYTES))
def test_the_next_block_to_attest_is_the_first_sealed_one(states: list[str], offset: int) -> None:
    sums, blocks = sums_of([None if state == "open" else 7 for state in states])
    for block, state in zip(blocks, states, strict=True):
        if state == "attested":
            sums.attest(block, 7)
    waiting = [
        block for block, state in zip(blocks, states, strict=True) if state == "sealed" and block.start >= offset
    ]
    assert sums.next_unattested(offset) == (waiting[0] if waiting else None)
