"""The log as other replicas get it from this broker: sealed blocks are compared with their sums before they are sent.

Without that a master would spread the damage of its disk: only the bodies of records have CRCs. Bytes that this process
wrote lately are in memory, and are sent without a comparison. Older ones are read by a thread, whole blocks, and then
sent. A damaged block is repaired first (`Healer`). If no replica has the block, a slave waits for `hold_s`; after that
the bytes are sent as they are: one lost message must not keep a slave from all later ones.
Neighbours: master.py (sends), store/sums/block_sums.py, attesting.py (the slave compares what it got).
"""

import errno
import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence

import trio

from skylark.broker.cold_reads import Healer
from skylark.broker.store.log.commitlog import CommitLog
from skylark.broker.store.log.residency import Span
from skylark.broker.store.sums.block_sums import Block
from skylark.mqcommon.errors import FileClosed, StoreCorrupt

logger = logging.getLogger(__name__)

# A block that was compared is sent within this time without another comparison. It is in the page cache then.
COMPARED_S = 1.0
# Blocks that were compared and are not sent as a whole yet: a few for each slave.
MAX_COMPARED = 512
# The most damaged blocks whose age is kept.
MAX_DAMAGED = 10_000


class ComparedLog:
    """Reads of the log for others: call `ready` before bytes that are not recent are sent.

    ``hold_s``: how long a block that nobody can repair is held back; `math.inf`: for ever.
    """

    def __init__(self, log: CommitLog, healer: Callable[[], Healer | None], hold_s: Callable[[], float]) -> None:
        self._log = log
        self._sums = log.sums
        self._healer = healer
        self._hold_s = hold_s
        # By the start of a block: when it was compared, the oldest first.
        self._compared: OrderedDict[int, float] = OrderedDict()
        # By the start of a block: when its damage was found.
        self._damaged: dict[int, float] = {}

    async def ready(self, start: int, end: int) -> None:
        """Return when the bytes from ``start`` to ``end`` may be sent. StoreCorrupt when they must be held back."""
        now = trio.current_time()
        blocks = [block for block in self._sums.blocks(start, end) if not self._was_compared(block, now)]
        if not blocks:
            return
        damaged, healer = await self._damaged_of(blocks), self._healer()
        if damaged and healer is not None and await healer.heal(damaged):
            damaged = await self._damaged_of(damaged)
        for block in blocks:
            if block in damaged:
                self._check_hold(block)
            else:
                self._damaged.pop(block.start, None)
        self._note_compared(blocks)

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

    async def _damaged_of(self, blocks: Sequence[Block]) -> list[Block]:
        log = self._log
        spans = [(block, log.span(block.start, min(block.end, log.raw_end))) for block in blocks]
        return await trio.to_thread.run_sync(self._read, spans)

    def _read(self, spans: Sequence[tuple[Block, Span]]) -> list[Block]:
        """The blocks that are not what was sealed, or cannot be read. Blocks."""
        damaged = []
        for block, span in spans:
            try:
                data = span.file.pread(span.at, span.size)
            except FileClosed:
                continue  # the cleaner has removed the file: who sends it sees that
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                damaged.append(block)
                continue
            # A block that is not full yet has no sum.
            if span.size == block.size and not self._sums.is_right(block, data):
                damaged.append(block)
        return damaged

    def _check_hold(self, block: Block) -> None:
        now = trio.current_time()
        if len(self._damaged) >= MAX_DAMAGED:
            self._damaged.clear()
        found_at = self._damaged.setdefault(block.start, now)
        segment = self._log.chain.at(block.start)
        path, at = ("", 0) if segment is None else (segment.path, block.start - segment.base)
        if now < found_at + self._hold_s():
            raise StoreCorrupt(path, at, f"{block.size} bytes do not match their sum, and no replica has given them")
        logger.error(
            "%s: the %d bytes from %d on are damaged, and no replica has given them: slaves get them as they are",
            path,
            block.size,
            at,
        )
