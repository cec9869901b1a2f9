"""The log as slaves get it: sealed blocks are compared with their sums before they are sent.

Without that a master would spread the damage of its disk: only the bodies of records have CRCs. Bytes that this process
wrote lately are in memory, and are sent without a comparison. Older ones are read by a thread, whole blocks, and then
sent from the page cache. A damaged block is mended first. If no replica has it, slaves wait until it is given up
(``damagedHoldMs``), and then get it as it is: one lost message must not keep a slave from all later ones.
Neighbours: master.py (sends), store/log/compared.py, damage_hold.py, attesting.py (a slave compares what it has got).
"""

from collections import OrderedDict
from collections.abc import Sequence

import trio

from skylark.broker.store.log.commitlog import CommitLog
from skylark.broker.store.log.residency import Damaged
from skylark.broker.store.log.segment import Segment
from skylark.broker.store.sums.block_sums import Block
from skylark.mqcommon.errors import FileClosed, StoreCorrupt

# A block that was compared is sent within this time without another comparison. It is in the page cache then.
COMPARED_S = 1.0
# Blocks that were compared and are not sent as a whole yet: a few for each slave.
MAX_COMPARED = 512
# How long a connection waits until a block is mended. It sends no heartbeats meanwhile.
MEND_S = 3.0


class ComparedLog:
    """Call `ready` before bytes of the log are sent that are not recent."""

    def __init__(self, log: CommitLog) -> None:
        self._log = log
        # By the start of a block: when it was compared, the oldest first.
        self._compared: OrderedDict[int, float] = OrderedDict()

    async def ready(self, start: int, end: int) -> None:
        """Return when the bytes from ``start`` to ``end``, in one file, may be sent.

        StoreCorrupt when they are damaged, and not mended in `MEND_S`.
        """
        now = trio.current_time()
        blocks = [block for block in self._log.sums.blocks(start, end) if not self._was_compared(block, now)]
        segment = self._log.chain.at(start)
        if not blocks or segment is None:
            return
        try:
            with trio.move_on_after(MEND_S) as waiting:
                await self._compare_until_mended(segment, blocks)
        except Damaged as error:
            raise self._corrupt(segment, error.blocks[0]) from None
        if waiting.cancelled_caught:
            raise self._corrupt(segment, blocks[0])
        self._note_compared(blocks)

    async def _compare_until_mended(self, segment: Segment, blocks: Sequence[Block]) -> None:
        """Raises Damaged if there is nobody who could mend the blocks."""
        while True:
            try:
                return await trio.to_thread.run_sync(self._compare, segment, blocks)
            except Damaged as error:
                damaged = error.with_traceback(None)
            await damaged.wait()

    def _compare(self, segment: Segment, blocks: Sequence[Block]) -> None:
        """Blocks. Damaged with the first block that differs from its sum, or cannot be read."""
        end = self._log.raw_end
        for block in blocks:
            try:
                # The last block of the log is not full yet, and has no sum. The log may have been cut before a block.
                readable = Block(block.start, max(min(block.end, end) - block.start, 0))
                self._log.blocks.compare(segment.file, segment.base, readable)
            except FileClosed:
                return  # the cleaner has removed the file: who sends it sees that

    def _corrupt(self, segment: Segment, block: Block) -> StoreCorrupt:
        at = block.start - segment.base
        return StoreCorrupt(segment.path, at, "bytes differ from their sum, and no replica has given them yet")

    def _was_compared(self, block: Block, now: float) -> bool:
        at = self._compared.get(block.start)
        return at is not None and now < at + COMPARED_S

    def _note_compared(self, blocks: Sequence[Block]) -> None:
        now = trio.current_time()
        for block in blocks:
            self._compared[block.start] = now
            self._compared.move_to_end(block.start)
        while len(self._compared) > MAX_COMPARED:
            self._compared.popitem(last=False)
