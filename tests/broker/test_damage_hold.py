"""Reads that met damage wait until it is mended: once for all readers, for a time, and it may be mended later."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from skylark.broker.damage_hold import LATER_S, DamageHold
from skylark.broker.options import BrokerOptions
from skylark.broker.store.log.commitlog import CommitLog
from skylark.broker.store.sums.block_sums import Block
from tests.support.memory_files import MemoryFiles

FIRST, SECOND = Block(0, 4096), Block(4096, 4096)


class Mender:
    """Mends when it is told to. ``asked``: when and for which blocks it was asked."""

    def __init__(self, *, can_mend: bool = False) -> None:
        self.can_mend = can_mend
        self.asked: list[tuple[float, list[Block]]] = []
        self.error: Exception | None = None

    async def heal(self, blocks: Sequence[Block]) -> bool:
        self.asked.append((trio.current_time(), list(blocks)))
        await trio.sleep(0.1)
        if self.error is not None:
            raise self.error
        return self.can_mend


@asynccontextmanager
async def holding(mender: Mender | None, **options: Any) -> AsyncIterator[tuple[CommitLog, DamageHold]]:
    log = CommitLog(MemoryFiles(), "/log", 4096)
    log.add_file()
    log.copied(4096)
    log.add_file()
    log.copied(4096)
    hold = DamageHold(log, BrokerOptions(**options))
    hold.healer = mender
    async with trio.open_nursery() as nursery:
        nursery.start_soon(hold.run)
        yield log, hold
        nursery.cancel_scope.cancel()


async def test_readers_go_on_as_soon_as_a_block_is_mended_by_one_for_all(
    autojump_clock: trio.testing.MockClock,
) -> None:
    mender = Mender(can_mend=True)
    async with holding(mender) as (log, hold):
        start = trio.current_time()
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(hold.wait, [FIRST, SECOND])
        assert trio.current_time() - start == pytest.approx(0.1)
        assert sorted(blocks for _, blocks in mender.asked) == [[FIRST], [SECOND]]
        assert not hold.blocks and not log.blocks.given_up


async def test_a_block_is_given_up_after_a_time_and_mended_later(autojump_clock: trio.testing.MockClock) -> None:
    mender = Mender()
    async with holding(mender, damaged_hold_ms=5_000) as (log, hold):
        start = trio.current_time()
        await hold.wait([FIRST])
        assert trio.current_time() - start == pytest.approx(5, abs=1.2)
        assert log.blocks.given_up.keys() == {0} and hold.blocks == [FIRST] and len(mender.asked) >= 4
        await hold.wait([FIRST])  # nobody waits any more
        mender.can_mend = True
        await trio.sleep(LATER_S + 1)
        assert not log.blocks.given_up and not hold.blocks


async def test_a_block_is_never_given_up_when_that_is_the_policy(autojump_clock: trio.testing.MockClock) -> None:
    mender = Mender()
    async with holding(mender, damaged_policy="hold", damaged_hold_ms=5_000) as (log, hold):
        with trio.move_on_after(500):
            await hold.wait([FIRST])
            raise AssertionError("it was given up")
        assert not log.blocks.given_up
        mender.can_mend = True
        await hold.wait([FIRST])
        assert not hold.blocks


async def test_a_repair_that_fails_is_tried_again(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    mender = Mender(can_mend=True)
    mender.error = ValueError("broken")
    async with holding(mender) as (_, hold), trio.open_nursery() as nursery:
        nursery.start_soon(hold.wait, [FIRST])
        await trio.sleep(0.5)
        assert "the repair failed" in caplog.text and hold.blocks == [FIRST]
        mender.error = None


async def test_nobody_waits_for_a_block_that_is_cut_or_removed(autojump_clock: trio.testing.MockClock) -> None:
    async with holding(Mender()) as (log, hold):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(hold.wait, [SECOND])
            await trio.sleep(2)
            log.end_at(0)
        assert not hold.blocks


async def test_without_anybody_who_mends_a_block_is_given_up_after_the_time(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with holding(None, damaged_hold_ms=0) as (log, hold):
        await hold.wait([FIRST])
        assert log.blocks.given_up.keys() == {0}


async def test_where_no_other_replica_exists_readers_wait_for_one_attempt_only(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    mender = Mender()
    async with holding(mender) as (log, hold):
        hold.is_alone = lambda: bool(mender.asked)
        start = trio.current_time()
        await hold.wait([FIRST])
        assert trio.current_time() - start == pytest.approx(0.1) and log.blocks.given_up.keys() == {0}
        assert "nobody else has a copy: readers skip" in caplog.text
        mender.can_mend = True  # a slave has joined, perhaps
        await trio.sleep(LATER_S + 1)
        assert not hold.blocks
    async with holding(Mender(), damaged_policy="hold") as (log, hold):
        hold.is_alone = lambda: True
        with trio.move_on_after(500):
            await hold.wait([FIRST])
            raise AssertionError("it was given up")
