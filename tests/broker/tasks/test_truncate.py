"""Cutting the log of a running store: what waits, what is refused, what an error in the middle leaves."""

import errno
from random import Random

import pytest
import trio

from skylark.broker.options import BrokerOptions
from skylark.broker.store.store import MessageStore
from skylark.broker.tasks.flush import Flusher
from skylark.broker.tasks.truncate import LogTruncation
from skylark.broker.writing.admission import Admission
from skylark.broker.writing.waits import LogWaits
from skylark.mqcommon.errors import DiskFull, StoreError
from tests.broker.replication.test_replica import build_all, feed, log_bytes, master
from tests.broker.store.support import bodies, open_store, put
from tests.broker.store.truncation.support import assert_alike, begun_again, boundaries, slave_of, whole
from tests.support.memory_files import MemoryFiles


async def settled() -> None:
    """There is no metadata to wait for."""


class Parts:
    """A slave of ``its_master``, which has all of its log, and is to be cut at ``start``."""

    def __init__(self) -> None:
        self.fs = MemoryFiles()
        self.its_master = master(Random(7), 60)
        self.start = boundaries(self.its_master)[-60]
        assert not begun_again(self.its_master, self.start)
        self.store, self.replica = slave_of(self.its_master, self.its_master.log.end, self.fs)
        build_all(self.replica)
        self.store.build_index(10_000)
        self.commits = LogWaits()
        self.flusher = Flusher(self.store, self.commits, Admission(), BrokerOptions(), settled)
        self.cutter = LogTruncation(self.fs, "/store", self.store, self.flusher)

    def expected(self) -> MessageStore:
        return whole(self.its_master, self.start)


async def test_the_log_is_cut_and_can_follow_again(
    caplog: pytest.LogCaptureFixture, autojump_clock: trio.testing.MockClock
) -> None:
    parts = Parts()
    async with trio.open_nursery() as nursery:
        await nursery.start(parts.flusher.run)
        await parts.cutter.cut(parts.start)
        assert_alike(parts.store, parts.expected())
        await trio.sleep(30)
        nursery.cancel_scope.cancel()
    (line,) = [record.getMessage() for record in caplog.records if "were cut" in record.getMessage()]
    path = line.rpartition("broker printCut ")[2]
    assert parts.fs.read(path) == log_bytes(parts.its_master, parts.start, parts.its_master.log.end)
    feed(parts.replica, log_bytes(parts.its_master, parts.start, parts.its_master.log.end))
    build_all(parts.replica)
    assert_alike(parts.store, parts.its_master)
    assert_alike(open_store(parts.fs.killed()), parts.its_master)


async def test_a_cut_at_the_end_does_nothing() -> None:
    parts = Parts()
    await parts.cutter.cut(parts.store.log.raw_end)
    assert not parts.fs.is_dir("/store/cut")


async def test_an_empty_log_needs_no_cut() -> None:
    fs = MemoryFiles()
    store = open_store(fs)
    cutter = LogTruncation(fs, "/store", store, Flusher(store, LogWaits(), Admission(), BrokerOptions(), settled))
    await cutter.cut(4096)
    assert store.log.raw_end == 0


async def test_sends_that_wait_for_bytes_which_are_cut_fail() -> None:
    parts = Parts()
    answers: dict[str, bool] = {}
    end = parts.store.log.end
    parts.commits.wait(parts.start, 100.0, lambda done: answers.update(kept=done))
    parts.commits.wait(end, 100.0, lambda done: answers.update(cut=done))
    await parts.cutter.cut(parts.start)
    assert answers == {"kept": True, "cut": False}
    # Later bytes at the same place are not on disk yet.
    parts.commits.wait(end, 100.0, lambda done: answers.update(later=done))
    assert "later" not in answers


async def test_while_it_is_flushed_the_cut_waits() -> None:
    parts = Parts()
    async with trio.open_nursery() as nursery, parts.flusher.alone():
        nursery.start_soon(parts.cutter.cut, parts.start)
        await trio.testing.wait_all_tasks_blocked()
        assert parts.store.log.end == parts.its_master.log.end
        nursery.cancel_scope.cancel()
    assert parts.store.log.end == parts.its_master.log.end


async def test_on_a_full_disk_nothing_is_cut_and_it_can_be_tried_again() -> None:
    parts = Parts()
    await parts.flusher.checkpoint(note_ends=True)
    room, parts.fs.capacity = parts.fs.capacity, parts.fs.used() + 3000
    with pytest.raises(DiskFull):
        await parts.cutter.cut(parts.start)
    assert parts.store.log.end == parts.its_master.log.end
    parts.fs.capacity = room
    await parts.cutter.cut(parts.start)
    assert_alike(parts.store, parts.expected())


async def test_after_an_error_in_the_middle_the_next_start_ends_the_cut() -> None:
    parts = Parts()

    def before_call(operation: str, path: str) -> None:
        if operation == "remove" and "/commitlog/" in path:
            raise OSError(5, "broken")

    parts.fs.before_call = before_call
    with pytest.raises(StoreError, match="the broker stops"):
        await parts.cutter.cut(parts.start)
    parts.fs.before_call = None
    parts.store.close()
    assert_alike(open_store(parts.fs), parts.expected())


def fail_after_the_rename(parts: Parts, code: int, times: int) -> None:
    """The intent has its name, but its directory cannot be synced."""

    def before_call(operation: str, path: str) -> None:
        if operation == "rename" and path.endswith("unfinishedCut"):
            parts.fs.faults.fail("fsync_dir", code=code, times=times)

    parts.fs.before_call = before_call


@pytest.mark.parametrize("code", [errno.EIO, errno.EMFILE])
async def test_an_intent_that_is_not_on_disk_for_sure_is_taken_back(code: int) -> None:
    parts = Parts()
    fail_after_the_rename(parts, code, times=1)
    with pytest.raises((DiskFull, OSError)):
        await parts.cutter.cut(parts.start)
    parts.fs.before_call = None
    assert not parts.fs.faults.pending
    # The broker is elected, and goes on with the log that it has.
    put(parts.store, "new", 0, b"new")
    await parts.flusher.checkpoint(note_ends=True)
    for after in (parts.fs.killed(), *(parts.fs.crash(Random(seed)) for seed in range(5))):
        assert bodies(open_store(after), "new", 0) == [b"new"]


@pytest.mark.parametrize("code", [errno.EIO, errno.EMFILE])
async def test_with_an_intent_that_may_be_on_disk_nothing_is_stored_any_more(code: int) -> None:
    parts = Parts()
    fail_after_the_rename(parts, code, times=2)
    with pytest.raises(StoreError, match="the broker stops"):
        await parts.cutter.cut(parts.start)
    parts.fs.before_call = None
    parts.store.close()
    for seed in range(5):
        end = open_store(parts.fs.crash(Random(seed))).log.end
        assert end in (parts.start, parts.its_master.log.end)


async def test_a_cut_that_has_begun_is_ended_when_its_caller_is_cancelled() -> None:
    parts = Parts()
    with trio.CancelScope() as scope:

        def before_call(operation: str, path: str) -> None:
            if operation == "rename" and path.endswith("unfinishedCut"):
                trio.from_thread.run_sync(scope.cancel)

        parts.fs.before_call = before_call
        await parts.cutter.cut(parts.start)
    assert_alike(parts.store, parts.expected())
