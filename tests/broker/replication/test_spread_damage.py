"""Damage of one replica's disk does not get to the others, and keeps no slave from the messages after it."""

import errno
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from random import Random
from zlib import crc32

import pytest
import trio

from skylark.broker.replication import compared_log, copying, plain_dialogue, replica
from skylark.broker.replication.compared_log import ComparedLog
from skylark.broker.replication.slave import HaClient
from skylark.broker.store.log.commitlog import CommitLog
from skylark.broker.store.log.residency import NotResident, Span, bytes_got
from skylark.broker.store.store import MessageStore
from skylark.broker.store.sums.block_sums import Block
from skylark.mqcommon.disk.files import MappedFile
from skylark.mqcommon.message.layout import HEAD_V4
from tests.broker.replication.test_over_memory import Set
from tests.broker.replication.test_replica import assert_same, entries, log_bytes, master, restart
from tests.broker.replication.test_slave import following
from tests.broker.store.support import bodies, open_store, put
from tests.support.memory_files import MemoryFiles
from tests.support.waiting import until

# A property has no CRC of its own, a body has one.
PROPERTY, BODY = b"k\x02TAGS\x01two", b":\x00\x00\x00"

# Messages in a log.
COUNT = 60


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skylark.broker.replication.slave.FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr("skylark.broker.replication.slave.MAX_PAUSE_S", 0.01)
    monkeypatch.setattr(copying, "BAD_PAUSE_S", 0.01)
    monkeypatch.setattr(compared_log, "COMPARED_S", 0)
    monkeypatch.setattr(compared_log, "MEND_S", 0.05)
    monkeypatch.setattr(plain_dialogue, "MEND_S", 0.05)


class Mender:
    """Where readers of ``log`` wait: blocks become as ``source`` has them. Without a source readers wait on."""

    def __init__(self, log: CommitLog, source: CommitLog | None = None) -> None:
        self._log = log
        self._source = source
        self._gives_up = False
        self._changed = trio.Event()
        #: The blocks that were asked for.
        self.asked: list[Block] = []
        log.blocks.hold = self

    def go_on(self, *, source: CommitLog | None) -> None:
        """Mend the blocks from now on as ``source`` has them; None: give them up."""
        self._source, self._gives_up = source, source is None
        self._changed.set()

    async def wait(self, blocks: Sequence[Block]) -> None:
        self.asked += blocks
        await trio.lowlevel.checkpoint()
        if self._source is None and not self._gives_up:
            await self._changed.wait()
        for block in blocks:
            if self._source is None:
                self._log.blocks.give_up(block, [])
                continue
            data = self._source.chain.read_file(block.start, block.size)
            segment = self._log.chain.at(block.start)
            assert segment is not None
            segment.file.pwrite(block.start - segment.base, memoryview(data)[: max(self._log.raw_end - block.start, 0)])
        if self._source is not None:
            self._log.blocks.repaired(blocks)


def old(seed: int = 3) -> tuple[MessageStore, MessageStore]:
    """A store whose messages an earlier process has written, and one that is the same."""
    return restart(master(Random(seed), COUNT), "clean", Random(seed)), master(Random(seed), COUNT)


def seal(log: CommitLog) -> None:
    """Seal the blocks that are full."""
    for block in log.sums.blocks(log.start, log.end):
        if block.end <= log.end:
            log.sums.seal(block, crc32(log.chain.read_file(block.start, block.size)))


def flip(store: MessageStore, text: bytes) -> int:
    """Damage the first byte of ``text`` on the disk of ``store``; returns where in the log."""
    data = log_bytes(store, store.log.start, store.log.end)
    at = store.log.start + data.index(text, len(data) // 3)
    flip_at(store, at)
    return at


def flip_at(store: MessageStore, at: int) -> None:
    segment, fs = store.log.chain.at(at), store.log.chain.fs
    assert segment is not None and isinstance(fs, MemoryFiles)
    fs.flip(segment.path, at - segment.base)


@asynccontextmanager
async def joining(its_master: MessageStore) -> AsyncIterator[tuple[MessageStore, HaClient, Mender]]:
    """A new slave of ``its_master``, and what mends it."""
    its_set, store = Set(its_master), open_store(MemoryFiles())
    mender = Mender(store.log)
    async with its_set.serving(), following(store, its_set.target, its_set.connect) as slave:
        yield store, slave, mender


@pytest.mark.parametrize("text", [PROPERTY, BODY])
async def test_a_master_mends_a_sealed_block_before_it_sends_it(text: bytes) -> None:
    its_master, whole = old()
    seal(its_master.log)
    at = flip(its_master, text)
    mender = Mender(its_master.log, whole.log)
    async with joining(its_master) as (store, _, _):
        await until(lambda: store.log.end == whole.log.end, "the end of the log")
    # A machine that takes longer than `MEND_S` asks for the same block once more.
    assert set(mender.asked) == {its_master.log.sums.block_at(at)}
    assert_same(store, whole)
    assert_same(its_master, whole)


async def test_a_block_that_nobody_has_is_held_back_until_it_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    its_master, whole = old()
    seal(its_master.log)
    at = flip(its_master, PROPERTY)
    mender = Mender(its_master.log)
    async with joining(its_master) as (store, _, _):
        await until(lambda: caplog.text.count("no replica has given them yet") > 1, "the slave has tried again")
        assert store.log.raw_end <= its_master.log.sums.block_at(at).start
        mender.go_on(source=None)
        await until(lambda: store.log.end == whole.log.end, "the end of the log")
    assert_same(store, its_master)


async def test_a_slave_that_meets_a_damaged_record_has_it_mended() -> None:
    """The master's old files have no sums yet, and its disk has changed a body."""
    its_master, whole = old()
    flip(its_master, BODY)
    async with joining(its_master) as (store, slave, mender):
        mender.go_on(source=whole.log)
        await until(lambda: store.log.end == whole.log.end, "the end of the log")
        assert not slave.problem
    assert_same(store, whole)


async def test_a_damaged_record_does_not_keep_the_log_from_being_copied(caplog: pytest.LogCaptureFixture) -> None:
    its_master, whole = old()
    at = flip(its_master, BODY)
    async with joining(its_master) as (store, slave, mender):
        await until(lambda: bool(slave.problem) and store.log.raw_end == whole.log.end, "all is copied")
        assert store.log.end <= at and slave.following
        mender.go_on(source=whole.log)
        await until(lambda: store.log.end == whole.log.end and not slave.problem, "the end of the log")
    assert_same(store, whole)
    assert caplog.text.count("cannot become the master") == 1 and "whole again" in caplog.text


async def test_a_sector_that_a_slave_cannot_read_is_mended(monkeypatch: pytest.MonkeyPatch) -> None:
    its_master, whole = old()
    failures = [OSError(errno.EIO, "injected")]

    def on_disk_only(file: MappedFile, at: int, size: int) -> None:
        if failures and bytes_got() is not None:
            raise NotResident([Span(file, at, size)])

    def fail(cold: NotResident) -> None:
        raise failures.pop()

    monkeypatch.setattr(replica, "check_resident", on_disk_only)
    monkeypatch.setattr(copying, "warm", fail)
    async with joining(its_master) as (store, _, mender):
        mender.go_on(source=whole.log)
        await until(lambda: store.log.end == whole.log.end, "the end of the log")
    assert mender.asked and not failures
    assert_same(store, whole)


async def test_a_damaged_record_that_was_given_up_keeps_no_queue_from_the_messages_after_it() -> None:
    its_master, whole = old()
    place = ("A", 1)
    at = entries(whole)[place][1][0] + HEAD_V4.size
    flip_at(its_master, at)
    async with joining(its_master) as (store, _, mender):
        mender.go_on(source=None)
        await until(lambda: store.log.end == whole.log.end, "the end of the log")
        store.checkpoint()
        sound = bodies(whole, *place)
        found = bodies(store, *place)
        assert len(found) == len(sound) - 1 and set(found) < set(sound)
        # A repair that comes later brings the message back.
        mender.go_on(source=whole.log)
        await mender.wait([store.log.sums.block_at(at)])
        assert bodies(store, *place) == sound


async def test_blocks_are_compared_once_while_they_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compared_log, "COMPARED_S", 60)
    its_master, whole = old()
    seal(its_master.log)
    mender, compared = Mender(its_master.log, whole.log), ComparedLog(its_master.log)
    await compared.ready(0, 10)
    fs = its_master.log.chain.fs
    assert isinstance(fs, MemoryFiles)
    fs.flip(its_master.log.chain.segments[0].path, 100)
    await compared.ready(10, 20)
    assert not mender.asked
    monkeypatch.setattr(compared_log, "COMPARED_S", 0)
    await compared.ready(20, 30)
    assert len(mender.asked) == 1


async def test_damage_of_a_slave_does_not_look_like_a_log_with_other_messages(caplog: pytest.LogCaptureFixture) -> None:
    """The slave tells CRCs of pieces of its log when it connects."""
    its_master, store = old()
    seal(store.log)
    flip_at(store, store.log.sums.block_at(store.log.end).start - 100)
    mender, its_set = Mender(store.log), Set(its_master)
    put(its_master, "A", 0, b"later")
    async with its_set.serving(), following(store, its_set.target, its_set.connect):
        await until(lambda: len(mender.asked) > 1, "the slave has tried again")
        mender.go_on(source=its_master.log)
        await until(lambda: store.log.end == its_master.log.end, "the end of the log")
    assert "replication stopped" not in caplog.text
    assert_same(store, its_master)
