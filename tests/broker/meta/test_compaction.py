"""A snapshot in place of a long chain: it replaces the chain whole, or costs nothing, whatever happens on the way."""

import contextlib
import errno
from functools import partial
from random import Random

import pytest

from broker.meta.journal import COMPACT_MIN_BYTES
from mqcommon.errors import StoreCorrupt, StoreError
from tests.broker.meta.journals import FIRST, SNAPSHOT, damage, fresh, numbers, reopen
from tests.broker.meta.support import DIRECTORY
from tests.support.memory_files import MemoryFiles


def test_compaction_replaces_the_chain_and_keeps_what_came_meanwhile() -> None:
    fs = MemoryFiles()
    journal = fresh(fs, 100)
    compaction = journal.begin_compaction()
    journal.append("n", "meanwhile")
    compaction.write([("n", "all")])
    journal.end_compaction(compaction)
    journal.sync()
    assert fs.listdir(DIRECTORY) == ["metadata.journal.1", "metadata.snapshot.1"]
    assert reopen(fs.crash(Random(1)))[1] == [("n", "all"), ("n", "meanwhile")]


def test_compaction_is_wanted_when_the_chain_is_long_and_far_longer_than_what_lives() -> None:
    fs = MemoryFiles()
    journal = fresh(fs)
    blob = bytes(COMPACT_MIN_BYTES // 4)
    wanted = []
    for _ in range(5):
        wanted.append(journal.wants_compaction)
        journal.append("n", blob)
    assert wanted == [False] * 4 + [True]
    compaction = journal.begin_compaction()
    compaction.write([("n", blob)] * 4)
    journal.end_compaction(compaction)
    appended = 0
    while not journal.wants_compaction:
        journal.append("n", blob)
        appended += 1
    assert appended == 17  # just over four times the snapshot


def test_a_failed_compaction_costs_nothing_and_is_not_tried_at_once_again() -> None:
    fs = MemoryFiles()
    journal = fresh(fs, 3)
    compaction = journal.begin_compaction()
    journal.append("n", 3)
    fs.faults.fail("rename")
    with pytest.raises(StoreError):
        compaction.write([("n", "all")])
    journal.end_compaction(compaction)
    assert not journal.wants_compaction
    assert fs.listdir(DIRECTORY) == ["metadata.journal.0", "metadata.journal.1"]
    journal.append("n", 4)
    assert reopen(fs)[1] == numbers(5)


def test_a_half_written_snapshot_is_ignored_and_removed() -> None:
    fs = MemoryFiles()
    journal = fresh(fs, 3)
    journal.begin_compaction()
    fs.overwrite(SNAPSHOT + ".tmp", b"half")
    _, records, report = reopen(fs)
    assert records == numbers(3)
    assert report.removed == [SNAPSHOT + ".tmp"]
    assert SNAPSHOT + ".tmp" not in fs.listdir(DIRECTORY)


def test_what_an_interrupted_compaction_left_is_removed() -> None:
    fs = MemoryFiles()
    journal = fresh(fs, 3)
    old = fs.read(FIRST)
    compaction = journal.begin_compaction()
    compaction.write([("n", "all")])
    fs.overwrite(FIRST, old)
    _, records, report = reopen(fs)
    assert records == [("n", "all")]
    assert report.removed == [FIRST]


def test_a_damaged_snapshot_stops() -> None:
    for place in (3, 40, -3):
        fs = MemoryFiles()
        compaction = fresh(fs, 3).begin_compaction()
        compaction.write([("n", number) for number in range(9)])
        damage(fs, SNAPSHOT, place)
        with pytest.raises(StoreCorrupt, match=r"metadata\.snapshot\.1"):
            reopen(fs)


def test_a_snapshot_without_its_end_stops() -> None:
    fs = MemoryFiles()
    compaction = fresh(fs, 3).begin_compaction()
    compaction.write([("n", 1)])
    compaction_bytes = fs.read(SNAPSHOT)
    fs.overwrite(SNAPSHOT, compaction_bytes[:-26])
    with pytest.raises(StoreCorrupt, match=r"metadata\.snapshot\.1"):
        reopen(fs)


class PowerLoss(Exception):
    """Raised inside a file operation, after the image of the disk was taken."""


def lose_power(fs: MemoryFiles, crash_at: int, images: list[MemoryFiles], operation: str, path: str) -> None:
    if fs.calls.total() == crash_at:
        images += [fs.crash(Random(seed)) for seed in range(6)]
        raise PowerLoss


def test_power_loss_at_each_call_of_a_compaction_loses_nothing_acknowledged() -> None:
    calls = 0
    for crash_at in range(1, 200):
        fs = MemoryFiles()
        journal = fresh(fs, 30)
        journal.sync()
        fs.calls.clear()
        images: list[MemoryFiles] = []
        fs.before_call = partial(lose_power, fs, crash_at, images)
        acknowledged = 30
        try:
            compaction = journal.begin_compaction()
            journal.append("n", 30)
            compaction.write([("n", number) for number in range(30)])
            journal.end_compaction(compaction)
            journal.sync()
            acknowledged = 31
            journal.append("n", 31)
            journal.sync()
        except PowerLoss:
            calls += 1
        else:
            break
        for image in images:
            again, records, _ = reopen(image)
            assert records[:acknowledged] == numbers(acknowledged), crash_at
            assert records == numbers(len(records))
            again.append("n", "goes on")
    assert 40 < calls < 199


@pytest.mark.parametrize("operation", ["open", "write", "sync", "fsync_dir", "rename"])
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_a_compaction_that_fails_at_any_call_costs_nothing(operation: str, code: int) -> None:
    failed = 0
    for nth in range(1, 50):
        fs = MemoryFiles()
        journal = fresh(fs, 20)
        compaction = journal.begin_compaction()
        journal.append("n", 20)
        fs.faults.fail(operation, nth=nth, code=code)
        try:
            compaction.write([("n", number) for number in range(20)])
        except StoreError:
            failed += 1
        fs.faults.clear()
        journal.end_compaction(compaction)
        journal.append("n", 21)
        journal.sync()
        assert reopen(fs.killed())[1] == numbers(22)
        assert [name for name in fs.listdir(DIRECTORY) if name.endswith(".tmp")] == []
        if compaction.snapshot_bytes:
            break
    assert failed


@pytest.mark.parametrize("room", range(0, 1000, 50))
def test_a_disk_that_is_full_in_a_compaction_costs_nothing(room: int) -> None:
    fs = MemoryFiles()
    journal = fresh(fs, 30)
    journal.sync()
    fs.capacity = fs.used() + room
    with contextlib.suppress(StoreError):
        compaction = journal.begin_compaction()
        try:
            compaction.write([("n", number) for number in range(30)])
        finally:
            journal.end_compaction(compaction)
    assert reopen(fs.killed())[1] == numbers(30)
    fs.capacity = 1 << 30
    journal.append("n", 30)
    journal.sync()
    assert reopen(fs.crash(Random(room)))[1] == numbers(31)
