"""Seals the blocks of the log that were appended: each gets its CRC while its bytes are in memory.

A block is sealed when it is full, on disk, and confirmed where the set confirms (the confirm offset with Controllers,
the commit index of a DLedger group): nothing may change its bytes any more, so an equal sum proves equal bytes. In a
set of one master and slaves nothing cuts what is on disk, so sealing does not wait for slaves.
Only what this process appends is sealed here, and only from memory: bytes that come from the disk may be damaged. Older
blocks, and the block in which a start goes on, are left to the scrub, which checks their records first.
Neighbours: store/sums/ (the sums), flush.py (its checkpoints write them).
"""

import logging
from collections.abc import Callable, Sequence
from zlib import crc32

import trio

from skylark.broker.part import Part
from skylark.broker.store.log.commitlog import CommitLog
from skylark.broker.store.sums.block_sums import Block
from skylark.mqcommon.errors import FileClosed

logger = logging.getLogger(__name__)

INTERVAL_S = 1.0
# The most that is sealed in one interval: 1 % of a core for 40 MB/s.
STEP_BYTES = 256 * 1024 * 1024
# A piece stays in the processor's cache, and its memory is used again.
_PIECE_BYTES = 64 * 1024


class BlockSealing(Part):
    """Seals the blocks of one log. ``safe_end``: where the bytes end that are on disk and confirmed."""

    def __init__(self, log: CommitLog, safe_end: Callable[[], int]) -> None:
        self._log = log
        self._safe_end = safe_end
        self._cuts = log.sums.cuts
        # Work of its own, and one at a time: it must not take a thread from work that somebody waits for.
        self._thread = trio.CapacityLimiter(1)
        #: Blocks before this offset are not sealed here any more.
        self.sealed_to = self._block_after(log.raw_end)

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
        sums, cuts = self._log.sums, self._log.sums.cuts
        blocks = self._due()
        if not blocks:
            return
        crcs = await trio.to_thread.run_sync(self._crcs, blocks, limiter=self._thread)
        for block, crc in zip(blocks, crcs, strict=True):
            if crc is not None:
                sums.seal(block, crc, cuts=cuts)
        self._follow_cuts()
        if sums.cuts == cuts:
            self.sealed_to = max(self.sealed_to, blocks[-1].end)

    def _due(self) -> list[Block]:
        """The next blocks that may be sealed."""
        self._follow_cuts()
        at, end, blocks = self.sealed_to, self._safe_end(), list[Block]()
        stop = min(end, at + STEP_BYTES)
        while (block := self._log.sums.block_at(at)).end <= stop:
            blocks.append(block)
            at = block.end
        return blocks

    def _follow_cuts(self) -> None:
        """After a cut, go on at the first block whose bytes were all appended after it."""
        log, cuts = self._log, self._log.sums.cuts
        if cuts != self._cuts:
            self._cuts = cuts
            self.sealed_to = min(self.sealed_to, self._block_after(log.raw_end))
        if log.start > self.sealed_to:
            self.sealed_to = log.start

    def _block_after(self, offset: int) -> int:
        block = self._log.sums.block_at(offset)
        return offset if block.start == offset else block.end

    def _crcs(self, blocks: Sequence[Block]) -> list[int | None]:
        return [self._crc(block) for block in blocks]

    def _crc(self, block: Block) -> int | None:
        """The CRC of a block's bytes; None if they are not in memory any more."""
        segment = self._log.chain.at(block.start)
        if segment is None:
            return None
        file, at, crc = segment.file, block.start - segment.base, 0
        if not file.resident(at, block.size):
            return None
        try:
            for start in range(at, at + block.size, _PIECE_BYTES):
                crc = crc32(file.pread(start, min(_PIECE_BYTES, at + block.size - start)), crc)
        except FileClosed:  # the cleaner has removed the file
            return None
        except OSError as error:
            logger.warning(
                "bytes %d to %d of the log cannot be read, and get no sum: %s", block.start, block.end, error
            )
            return None
        return crc
