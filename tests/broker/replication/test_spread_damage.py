"""Damage of one replica's disk does not get to the others, and keeps no slave from the messages after it."""

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from zlib import crc32

import pytest
import trio

from skylark.broker.replication import compared_log, copying
from skylark.broker.replication.compared_log import ComparedLog
from skylark.broker.replication.slave import HaClient
from skylark.broker.store.log.commitlog import CommitLog
from skylark.broker.store.store import MessageStore
from tests.broker.replication.healers import HealerFrom
from tests.broker.replication.test_over_memory import Set
from tests.broker.replication.test_replica import assert_same, log_bytes, master, restart
from tests.broker.replication.test_slave import following
from tests.broker.store.support import open_store
from tests.support.memory_files import MemoryFiles
from tests.support.waiting import until

PROPERTY = b"k\x02TAGS\x01two"
HELD = "no replica has given them"


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skylark.broker.replication.slave.FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr("skylark.broker.replication.slave.MAX_PAUSE_S", 0.01)
    monkeypatch.setattr(copying, "HEAL_PAUSE_S", 0.01)
    monkeypatch.setattr(compared_log, "COMPARED_S", 0)


def old(seed: int = 3) -> tuple[MessageStore, MessageStore]:
    """A store whose messages an earlier process has written, and one that is the same."""
    return restart(master(Random(seed)), "clean", Random(seed)), master(Random(seed))


def seal(log: CommitLog) -> None:
    """Seal the blocks that are full."""
    for block in log.sums.blocks(log.start, log.end):
        if block.end <= log.end:
            log.sums.seal(block, crc32(log.chain.read_file(block.start, block.size)))


def flip(store: MessageStore, text: bytes) -> int:
    """Damage one byte of ``text`` on the disk of ``store``; returns where in the log."""
    data = log_bytes(store, store.log.start, store.log.end)
    at = store.log.start + data.index(text, len(data) // 3)
    segment = store.log.chain.at(at)
    assert segment is not None
    fs = store.log.chain.fs
    assert isinstance(fs, MemoryFiles)
    fs.flip(segment.path, at - segment.base)
    return at


@asynccontextmanager
async def joining(
    its_master: MessageStore, healer: HealerFrom | None, hold_s: list[float], slave_healer: HealerFrom | None = None
) -> AsyncIterator[tuple[MessageStore, HaClient]]:
    """A new slave of ``its_master``."""
    compared = ComparedLog(its_master.log, lambda: healer, lambda: hold_s[0])
    its_set, store = Set(its_master, compared=compared), open_store(MemoryFiles())
    if slave_healer is not None:
        slave_healer.log = store.log
    async with its_set.serving(), following(store, its_set.target, its_set.connect, healer=slave_healer) as slave:
        yield store, slave


# A property has no CRC of its own, a body has one.
@pytest.mark.parametrize("text", [PROPERTY, b":\x00\x00\x00"])
async def test_a_master_repairs_a_sealed_block_before_it_sends_it(text: bytes) -> None:
    its_master, whole = old()
    seal(its_master.log)
    at = flip(its_master, text)
    healer = HealerFrom(its_master.log, whole.log)
    async with joining(its_master, healer, [math.inf]) as (store, _):
        await until(lambda: store.log.end == whole.log.end, "the end of the log")
    assert healer.asked == [its_master.log.sums.block_at(at)]
    assert_same(store, whole)
    assert_same(its_master, whole)


async def test_a_block_that_nobody_has_is_held_back_and_then_sent_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    its_master, whole = old()
    seal(its_master.log)
    at = flip(its_master, PROPERTY)
    hold_s = [math.inf]
    async with joining(its_master, HealerFrom(its_master.log), hold_s) as (store, _):
        await until(lambda: caplog.text.count(HELD) > 1, "the slave has tried again")
        assert store.log.raw_end <= its_master.log.sums.block_at(at).start
        hold_s[0] = 0
        await until(lambda: store.log.end == whole.log.end, "the end of the log")
    assert_same(store, its_master)
    assert caplog.text.count("slaves get them as they are") == 1


async def test_a_slave_that_meets_a_damaged_record_has_it_repaired() -> None:
    """The master's old files have no sums yet, and its disk has damaged a body."""
    its_master, whole = old()
    flip(its_master, b":\x00\x00\x00")
    healer = HealerFrom(its_master.log, whole.log)
    async with joining(its_master, None, [math.inf], healer) as (store, slave):
        await until(lambda: store.log.end == whole.log.end, "the end of the log")
        assert not slave.problem
    assert_same(store, whole)


async def test_a_record_that_nobody_has_does_not_keep_the_log_from_being_copied(
    caplog: pytest.LogCaptureFixture,
) -> None:
    its_master, whole = old()
    at = flip(its_master, b":\x00\x00\x00")
    healer = HealerFrom(its_master.log)
    async with joining(its_master, None, [math.inf], healer) as (store, slave):
        await until(lambda: bool(slave.problem) and store.log.raw_end == whole.log.end, "all is copied")
        assert store.log.end <= at and slave.following
        await until(lambda: len(healer.asked) > 2, "the others are asked again")
        healer.source = whole.log
        await until(lambda: store.log.end == whole.log.end, "the end of the log")
        await until(lambda: not slave.problem, "nothing is wrong any more")
    assert_same(store, whole)
    assert caplog.text.count("cannot become the master") == 1 and "whole again" in caplog.text


async def test_blocks_are_compared_once_while_they_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compared_log, "COMPARED_S", 60)
    its_master, _ = old()
    log = its_master.log
    seal(log)
    compared = ComparedLog(log, lambda: None, lambda: math.inf)
    fs = log.chain.fs
    assert isinstance(fs, MemoryFiles)
    await compared.ready(log.start, log.start + 10)
    before = fs.calls["read"]
    await compared.ready(log.start + 10, log.start + 20)
    assert fs.calls["read"] == before
    await trio.lowlevel.checkpoint()
