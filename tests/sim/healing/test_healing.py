"""Random histories of a group whose disks lie: see history.py. Healers that trust the wrong bytes are noticed."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar
from zlib import crc32

import pytest
import trio

from skylark.broker.healing import healer
from skylark.broker.healing.judgement import Copy, Verdict
from skylark.broker.replication.dledger import log_disk
from skylark.broker.replication.dledger.entry_index import EntryIndex
from skylark.broker.store.sums.block_sums import Block, BlockSum
from skylark.broker.tasks.block_sealing import BlockSealing, SealingWork
from tests.sim.healing.history import HealingHistory, OtherLogs, beginning
from tests.support.histories import BLOCK, run
from tests.support.rounds import report

T = TypeVar("T")
# Of a side file, so that histories fill several of them.
SLOTS = 64
# Within which a mutant must be noticed.
MUTANTS_SEEDS = 20


async def _inline(what: Callable[..., T], *args: Any, **_: Any) -> T:
    await trio.lowlevel.checkpoint()
    return what(*args)


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a history takes less time: no threads, beside which nothing else would run, and small side files."""
    monkeypatch.setattr(trio.to_thread, "run_sync", _inline)
    monkeypatch.setattr(log_disk, "EntryIndex", partial(EntryIndex, slots=SLOTS))
    # Before a mutant is in place: the beginnings are kept for all tests.
    for size in set(HealingHistory.sizes):
        beginning(size)


@pytest.mark.histories(count=300, few=30)
def test_damage_on_a_minority_is_mended_and_served_to_nobody(seeds: Iterable[int]) -> None:
    histories = run(HealingHistory, seeds)
    report(acknowledged=sum(len(history.acked) for history in histories))
    if isinstance(seeds, range):
        # Histories in which nothing is damaged or healed would prove nothing.
        assert sum(history.damages for history in histories) > BLOCK
        assert sum(history.healed for history in histories) > BLOCK


def notices() -> None:
    """Some history fails."""
    with pytest.raises(AssertionError):
        for seed in range(MUTANTS_SEEDS):
            HealingHistory(seed).run()


def test_a_healer_that_trusts_one_peer_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def judge(block: Block, own_sum: BlockSum | None, copies: Sequence[Copy], *rest: object) -> Verdict:
        others = [copy for copy in copies if not copy.is_own]
        return Verdict((others or copies)[0].of(block), "a peer has it", is_whole=True)

    monkeypatch.setattr(healer, "judge", judge)
    monkeypatch.setattr(OtherLogs, "is_careful", False)
    notices()


def test_a_healer_that_trusts_the_master_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def judge(block: Block, own_sum: BlockSum | None, copies: Sequence[Copy], *rest: object) -> Verdict:
        # The master takes its own bytes, the others take the master's.
        right = next((copy for copy in copies if copy.holder in HealingHistory.masters), copies[0])
        return Verdict(right.of(block), "the master has it", is_whole=True)

    monkeypatch.setattr(healer, "judge", judge)
    notices()


def test_a_block_that_is_sealed_before_it_is_full_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    due = BlockSealing.due

    def too_early(self: BlockSealing) -> SealingWork | None:
        sums = self._log.sums
        blocks = work.blocks if (work := due(self)) is not None else []
        block = sums.block_at(blocks[-1].end if blocks else self.sealed_to)
        blocks = [*blocks, block] if block.start < self._log.end else blocks
        return SealingWork(blocks, sums.cuts) if blocks else None

    monkeypatch.setattr(BlockSealing, "due", too_early)
    notices()


def test_a_healer_without_others_repairs_nothing_that_it_cannot_prove(monkeypatch: pytest.MonkeyPatch) -> None:
    """All copies are damaged: that is said, and nothing is invented."""
    block = Block(0, 8)
    bad = [Copy("this disk", 0, b"damaged1", is_own=True), Copy("n1", 0, b"damaged2"), Copy("n2", 0, b"damaged3")]
    verdict = healer.judge(block, BlockSum(crc32(b"as sent."), is_attested=True), bad, 4096)
    assert verdict.right is None and "no copy matches the attested sum" in verdict.why
