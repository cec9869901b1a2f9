"""Seals the blocks of the log that were appended: each gets its CRC while its bytes are in memory.

A block is sealed when it is full, on disk, and confirmed where the set confirms (the confirm offset with Controllers,
the commit index of a DLedger group): nothing may change its bytes any more, so an equal sum proves equal bytes. In a
set of one master and slaves nothing cuts what is on disk, so sealing does not wait for slaves.
Only what this process appends is sealed here, and what its start has proven (`BlockSums.ours_from`), and only from
memory: bytes that come from the disk may be damaged. Older blocks are left to the scrub, which checks their records
first.
Neighbours: store/sums/ (the sums), flush.py (its checkpoints write them).
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import trio

from skylark.broker.part import Part
from skylark.broker.store.log.commitlog import CommitLog
from skylark.broker.store.sums.block_sums import Block
from skylark.mqcommon.crc import large_crc32

INTERVAL_S = 1.0
# The most that is sealed in one interval: a slave that catches up copies less in a second.
STEP_BYTES = 256 * 1024 * 1024


class SealingWork(NamedTuple):
    """Blocks to seal; ``cuts``: `BlockSums.cuts` when they were chosen."""

    blocks: list[Block]
    cuts: int


class BlockSealing(Part):
    """Seals the blocks of one log. ``safe_end``: where the bytes end that are on disk and confirmed."""

    def __init__(self, log: CommitLog, safe_end: Callable[[], int]) -> None:
        self._log = log
        self._safe_end = safe_end
        # Work of its own, and one at a time: it must not take a thread from work that somebody waits for.
        self._thread = trio.CapacityLimiter(1)

    @property
    def sealed_to(self) -> int:
        """Blocks before this offset are not sealed here any more."""
        return max(self._log.sums.next_to_seal, self._log.start)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Seal at intervals, until cancelled."""
        task_status.started()
        while True:
            await trio.sleep(INTERVAL_S)
            await self.seal()

    async def stop(self) -> None:
        """Seal what was appended last."""
        await self.seal()

    async def seal(self) -> None:
        """Seal the blocks that may be sealed now, up to `STEP_BYTES`."""
        if work := self.due():
            self.keep(work, await trio.to_thread.run_sync(self.crcs, work, limiter=self._thread))

    # --- the steps of `seal`; the second one blocks, and is for a thread

    def due(self) -> SealingWork | None:
        """The next blocks that may be sealed; None when there are none."""
        at, blocks = self.sealed_to, list[Block]()
        stop = min(self._safe_end(), at + STEP_BYTES)
        while (block := self._log.sums.block_at(at)).end <= stop:
            blocks.append(block)
            at = block.end
        return SealingWork(blocks, self._log.sums.cuts) if blocks else None

    def crcs(self, work: SealingWork) -> list[int | None]:
        """The CRC of each block; None for a block whose bytes are not in memory any more."""
        return [self._crc(block) for block in work.blocks]

    def keep(self, work: SealingWork, crcs: Sequence[int | None]) -> None:
        """Seal the blocks, unless the log was cut meanwhile."""
        sums = self._log.sums
        if sums.cuts == work.cuts:
            for block, crc in zip(work.blocks, crcs, strict=True):
                if crc is not None and block.start >= self._log.start:
                    sums.seal(block, crc)
            sums.next_to_seal = max(sums.next_to_seal, work.blocks[-1].end)

    def _crc(self, block: Block) -> int | None:
        """The CRC of a block's bytes; None if they are not in memory any more."""
        segment = self._log.chain.at(block.start)
        if segment is None:
            return None
        file, at = segment.file, block.start - segment.base
        try:
            # From the map, as sends have written them there: a copy would cost as much as the CRC.
            if file.resident(at, block.size):
                with memoryview(file.view) as view:
                    return large_crc32(view[at : at + block.size])
        except ValueError:  # the cleaner has removed the file, and its map is closed
            pass
        return None
