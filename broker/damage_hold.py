"""Reads that met damage of the log wait here until it is mended, or given up.

Each damaged block is mended by one task, whoever waits for it. While nobody can mend it, the task tries again. After
``damagedHoldMs``, or at once where no other replica exists, the block is given up (``damagedPolicy=skip``): readers
skip the damaged messages. The task goes on, and when the block is mended its messages are read again. With
``damagedPolicy=hold`` a block is never given up.
Neighbours: cold_reads.py (requests that wait), store/log/compared.py (finds the damage), healing/ (mends it).
"""

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

import trio

from skylark.broker.options import BrokerOptions
from skylark.broker.store.log.commitlog import CommitLog
from skylark.broker.store.sums.block_sums import Block
from skylark.mqcommon.lazy_dataclass import lazy_dataclass

logger = logging.getLogger(__name__)

# Blocks that are mended at the same time: a broken disk may have thousands.
AT_ONCE = 8
# How long after an attempt that failed the next one begins: while readers wait, and after ``damagedHoldMs``.
RETRY_S = 1.0
LATER_S = 60.0
# How often the log ages: reads trust what this process wrote for one or two of these intervals.
AGE_S = 2.0


class Healer(Protocol):
    """Mends damaged blocks of the log."""

    async def heal(self, blocks: Sequence[Block]) -> bool:
        """Whether all ``blocks`` are right now, so that they may be read again at once. Ends when it is cancelled."""


@lazy_dataclass(slots=True, eq=False)
class _Held:
    block: Block
    #: Until then readers wait; by the clock of trio.
    until: float
    #: Set when the block may be read again.
    over: trio.Event


class DamageHold:
    """The damaged blocks of one log. ``healer``: None until there is one."""

    def __init__(self, log: CommitLog, options: BrokerOptions) -> None:
        self._log = log
        self._options = options
        self.healer: Healer | None = None
        #: Whether no other replica exists: then no reader waits for a repair from a replica.
        self.is_alone: Callable[[], bool] = lambda: False
        self._held: dict[int, _Held] = {}
        self._places = trio.Semaphore(AT_ONCE)
        self._nursery: trio.Nursery | None = None

    @property
    def blocks(self) -> list[Block]:
        """The blocks that reads have found damaged, and that are not mended."""
        return [held.block for held in self._held.values()]

    async def wait(self, blocks: Sequence[Block]) -> None:
        """Return when ``blocks`` may be read again: they are mended, or given up. May be cancelled."""
        for held in [self._hold(block) for block in blocks]:
            await held.over.wait()

    async def run(self) -> None:
        """Have damage mended, until cancelled. What this process has written counts as right for some seconds."""
        async with trio.open_nursery() as self._nursery:
            for held in self._held.values():
                self._nursery.start_soon(self._mend, held)
            try:
                while True:
                    await trio.sleep(AGE_S)
                    self._log.age()
            finally:
                self._nursery = None

    def _hold(self, block: Block) -> _Held:
        held = self._held.get(block.start)
        if held is None:
            until = trio.current_time() + self._options.damaged_hold_ms / 1000
            held = self._held[block.start] = _Held(block, until, trio.Event())
            logger.warning("%s: readers wait until it is mended", self._name(block))
            if self._nursery is not None:
                self._nursery.start_soon(self._mend, held)
        return held

    async def _mend(self, held: _Held) -> None:
        block, log = held.block, self._log
        try:
            while block.end > log.start and block.start < log.raw_end:
                if await self._is_mended(held):
                    log.blocks.repaired([block])
                    return
                is_alone = self.is_alone()
                is_late = is_alone or trio.current_time() >= held.until
                if is_late and self._options.damaged_policy == "skip" and not held.over.is_set():
                    wrong = await trio.to_thread.run_sync(log.blocks.suspects, block)
                    log.blocks.give_up(block, wrong)
                    why = f"could mend it in {self._options.damaged_hold_ms} ms"
                    if is_alone:
                        why = "else has a copy"
                    text = "%s, and nobody %s: readers skip the damaged messages until it is mended"
                    logger.error(text, self._name(block), why)
                    held.over.set()
                await trio.sleep(LATER_S if is_late else min(RETRY_S, held.until - trio.current_time()))
        finally:
            self._held.pop(block.start, None)
            held.over.set()

    async def _is_mended(self, held: _Held) -> bool:
        """One attempt. While readers wait, it ends when they have waited for long enough."""
        if self.healer is None:
            return False
        async with self._places:
            with trio.CancelScope() as scope:
                if not held.over.is_set():
                    scope.deadline = max(held.until, trio.current_time() + RETRY_S)
                try:
                    return await self.healer.heal([held.block])
                except Exception:
                    # A fault of the repair must not end the broker, whose other blocks are sound.
                    logger.exception("%s, and the repair failed", self._name(held.block))
        return False

    def _name(self, block: Block) -> str:
        segment = self._log.chain.at(block.start)
        path, base = ("the commit log", 0) if segment is None else (segment.path, segment.base)
        return f"{path} is damaged between byte {block.start - base} and {block.end - base}"
