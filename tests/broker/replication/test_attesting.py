"""Two replicas attest each other's sums, and find the blocks that differ."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from skylark.broker.replication.attesting import AGAIN_S, INTERVAL_S, Attesting, attest
from skylark.broker.replication.known_master import KnownMaster, MasterAddress
from skylark.broker.replication.role import RoleMachine
from skylark.broker.store.sums.block_sums import BLOCK_BYTES, Block, BlockSum, BlockSums
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import Command

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


class OldMaster:
    """A client of a master that does not know the request."""

    def __init__(self) -> None:
        self.asked = 0

    async def invoke(self, addr: str, request: Command, timeout_ms: float, body: bytes) -> Command:
        self.asked += 1
        return request.respond(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "not supported")


async def test_a_master_that_does_not_know_the_request_is_asked_once_an_hour(autojump_clock: MockClock) -> None:
    sums, blocks = sums_of([7] * 12)
    known, client = KnownMaster(), OldMaster()
    known.reported("", MasterAddress("127.0.0.1:1", "127.0.0.1:2"))

    @asynccontextmanager
    async def open_client(**more: Any) -> AsyncIterator[Any]:
        yield client

    async with trio.open_nursery() as nursery:
        attesting = Attesting(sums, RoleMachine(1), known, open_client, lambda blocks: None)
        await nursery.start(attesting.run)
        await trio.sleep(10 * INTERVAL_S)
        assert client.asked == 1
        sums.seal(Block(blocks[-1].end, BLOCK_BYTES), 7)
        await trio.sleep(10 * INTERVAL_S)
        assert client.asked == 1
        known.reported("", MasterAddress("127.0.0.1:3", "127.0.0.1:2"))
        await trio.sleep(2 * INTERVAL_S)
        assert client.asked == 2, "another master may know it"
        await trio.sleep(AGAIN_S + INTERVAL_S)
        assert client.asked == 3
        nursery.cancel_scope.cancel()
