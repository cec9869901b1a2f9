"""Healers for tests: one that repairs from another store, and one that repairs nothing."""

import math
from collections.abc import Sequence

import trio

from skylark.broker.replication.compared_log import ComparedLog
from skylark.broker.store.log.commitlog import CommitLog
from skylark.broker.store.sums.block_sums import Block


class HealerFrom:
    """Writes blocks of ``log`` as ``source`` has them. ``source``: None while no replica has them."""

    def __init__(self, log: CommitLog, source: CommitLog | None = None) -> None:
        self.log = log
        self.source = source
        #: The blocks that were asked for.
        self.asked: list[Block] = []

    async def heal(self, blocks: Sequence[Block]) -> bool:
        await trio.lowlevel.checkpoint()
        self.asked += blocks
        if self.source is None:
            return False
        for block in blocks:
            data = self.source.chain.read_file(block.start, block.size)
            segment = self.log.chain.at(block.start)
            assert segment is not None
            segment.file.pwrite(block.start - segment.base, memoryview(data)[: max(self.log.raw_end - block.start, 0)])
        return True


def unhealed(log: CommitLog) -> ComparedLog:
    """``log`` as slaves get it where nobody repairs blocks."""
    return ComparedLog(log, lambda: None, lambda: math.inf)
