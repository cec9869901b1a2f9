"""The ways in which a journal can die, one by one; test_journal_model.py has them all at once.

A snapshot in place of a long chain replaces it whole, or costs nothing, whatever happens on the way.
"""

import errno
from functools import partial
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.broker.meta.journal import COMPACT_MIN_BYTES, Journal, JournalReport
from skylark.mqcommon.errors import StoreCorrupt, StoreError
from tests.broker.meta.support import DIRECTORY
from tests.support.memory_files import MemoryFiles

FIRST = f"{DIRECTORY}/metadata.journal.0"
SECOND = f"{DIRECTORY}/metadata.journal.1"
SNAPSHOT = f"{DIRECTORY}/metadata.snapshot.1"


def reopen(fs: MemoryFiles) -> tuple[Journal, list[Any], JournalReport]:
    records: list[Any] = []
    journal = Journal(fs, DIRECTORY)
    report = journal.replay(lambda kind, payload: records.append((kind, payload)))
    return journal, records, report


def fresh(fs: MemoryFiles, count: int = 0) -> Journal:
    journal = reopen(fs)[0]
    for number in range(count):
        journal.append("n", number)
    return journal


def compact(journal: Journal, state: list[tuple[str, Any]]) -> None:
    compaction = journal.begin_compaction()
    compaction.write(state)
    journal.end_compaction(compaction)


def numbers(count: int) -> list[tuple[str, int]]:
    return [("n", number) for number in range(count)]


def damage(fs: MemoryFiles, path: str, place: int) -> None:
    data = bytearray(fs.read(path))
    data[place] ^= 0xFF
    fs.overwrite(path, bytes(data))


def test_a_torn_tail_is_cut_and_reported_and_appending_goes_on() -> None:
    fs = MemoryFiles()
    fresh(fs, 3)
    fs.overwrite(FIRST, fs.read(FIRST)[:-1])
    journal, records, report = reopen(fs)
    assert records == numbers(2)
    (cut,) = report.cuts
    assert cut.file == FIRST
    assert "unacknowledged bytes cut at offset" in str(cut)
    journal.append("n", "again")
    assert reopen(fs)[1] == [*numbers(2), ("n", "again")]


def test_after_a_failed_fsync_nothing_more_is_accepted() -> None:
    fs = MemoryFiles()
    journal = fresh(fs, 1)
    fs.faults.fail("sync")
    with pytest.raises(StoreError, match="read-only until a restart"):
        journal.sync()
    with pytest.raises(StoreError, match="read-only until a restart"):
        journal.append("n", 1)
    with pytest.raises(StoreError, match="read-only until a restart"):
        journal.sync()


@pytest.mark.parametrize("compacts", [False, True])
def test_what_a_failed_fsync_did_not_write_the_next_process_writes(compacts: bool) -> None:
    fs = MemoryFiles()
    journal = fresh(fs, 1)
    journal.sync()
    for number in range(1, 100):
        journal.append("n", number)
    if compacts:  # the snapshot of the next journal is not there yet
        journal.begin_compaction()
    journal.append("n", 100)
    fs.faults.fail("sync", path_part="journal")
    with pytest.raises(StoreError, match="read-only until a restart"):
        journal.sync()
    fs = fs.killed()
    journal = reopen(fs)[0]
    journal.append("n", 101)
    journal.sync()
    for seed in range(20):
        assert reopen(fs.crash(Random(seed)))[1] == numbers(102)


def test_a_write_that_cannot_be_undone_stops_the_journal() -> None:
    fs = MemoryFiles()
    journal = fresh(fs, 1)
    fs.faults.fail("write")
    fs.faults.fail("truncate")
    with pytest.raises(StoreError):
        journal.append("n", 1)
    with pytest.raises(StoreError, match="read-only until a restart"):
        journal.append("n", 1)


def test_a_missing_journal_stops() -> None:
    fs = MemoryFiles()
    journal = fresh(fs, 3)
    journal.begin_compaction()
    fs.remove(FIRST)
    with pytest.raises(StoreCorrupt, match=r"metadata\.journal\.0.*missing"):
        reopen(fs)


def test_a_missing_journal_between_unsynced_ones_ends_the_chain() -> None:
    fs = MemoryFiles()
    journal = fresh(fs, 3)
    journal.begin_compaction()
    journal.begin_compaction()
    journal.append("n", 3)
    fs.remove(SECOND)
    _, records, report = reopen(fs)
    assert records == numbers(3)
    assert "journal 1, which follows it, is missing" in str(report.cuts[0])


def test_a_torn_journal_with_an_unsynced_one_behind_it_is_cut_there() -> None:
    fs = MemoryFiles()
    journal = fresh(fs, 3)
    journal.begin_compaction()
    journal.append("n", 3)
    fs.overwrite(FIRST, fs.read(FIRST)[:-1])
    journal, records, report = reopen(fs)
    assert records == numbers(2)
    assert [cut.file for cut in report.cuts] == [FIRST, SECOND]
    journal.append("n", 2)
    assert reopen(fs)[1] == numbers(3)


def test_a_journal_that_lost_whole_records_is_noticed_by_the_next_ones_header() -> None:
    fs = MemoryFiles()
    journal = fresh(fs, 2)
    short = fs.read(FIRST)
    journal.append("n", 2)
    journal.begin_compaction()
    journal.append("n", 3)
    fs.overwrite(FIRST, short)
    assert reopen(fs)[1] == numbers(2)


def test_a_torn_journal_with_a_synced_one_behind_it_is_rot() -> None:
    fs = MemoryFiles()
    journal = fresh(fs, 3)
    journal.begin_compaction()
    journal.append("n", 3)
    journal.sync()
    journal.append("n", 4)
    fs.overwrite(FIRST, fs.read(FIRST)[:-1])
    with pytest.raises(StoreCorrupt, match=r"metadata\.journal\.0"):
        reopen(fs)


@given(st.text("nnnsb", min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_power_loss_with_a_chain_of_journals_keeps_a_prefix(steps: str, random: Random) -> None:
    fs = MemoryFiles()
    journal = fresh(fs)
    acknowledged = 0
    for number, step in enumerate(steps):
        if step == "n":
            journal.append("n", number)
        elif step == "s":
            journal.sync()
            acknowledged = number
        else:
            journal.begin_compaction()
    appended = [("n", number) for number, step in enumerate(steps) if step == "n"]
    for _ in range(5):
        records = reopen(fs.crash(random))[1]
        assert records == appended[: len(records)]
        assert len(records) >= steps[:acknowledged].count("n")


def test_a_journal_cut_to_nothing_in_the_middle_of_a_chain_is_begun_again() -> None:
    fs = MemoryFiles()
    journal = fresh(fs, 3)
    journal.begin_compaction()
    fs.overwrite(SECOND, b"")
    journal, records, _ = reopen(fs)
    assert records == numbers(3)
    journal.append("n", 3)
    journal.sync()
    assert reopen(fs.crash(Random(3)))[1] == numbers(4)


def test_a_record_that_no_table_can_use_names_its_place() -> None:
    fs = MemoryFiles()
    fresh(fs, 1)

    def refuse(kind: str, payload: Any) -> None:
        raise KeyError(kind)

    with pytest.raises(StoreCorrupt, match="the record 'n' cannot be used"):
        Journal(fs, DIRECTORY).replay(refuse)


def test_append_calls_its_listener() -> None:
    told = []
    journal = fresh(MemoryFiles())
    journal.on_append = lambda: told.append(1)
    journal.append("n", 0)
    assert told == [1]


def test_a_closed_journal_refuses() -> None:
    journal = fresh(MemoryFiles(), 1)
    journal.close()
    journal.close()
    with pytest.raises(StoreError, match="closed"):
        journal.append("n", 1)


def test_compaction_is_wanted_when_the_chain_is_long_and_far_longer_than_what_lives() -> None:
    fs = MemoryFiles()
    journal = fresh(fs)
    blob = bytes(COMPACT_MIN_BYTES // 4)
    wanted = []
    for _ in range(5):
        wanted.append(journal.wants_compaction)
        journal.append("n", blob)
    assert wanted == [False] * 4 + [True]
    compact(journal, [("n", blob)] * 4)
    appended = 0
    while not journal.wants_compaction:
        journal.append("n", blob)
        appended += 1
    assert appended == 17  # just over four times the snapshot


@pytest.mark.parametrize("operation", ["open", "write"])
def test_a_compaction_that_cannot_begin_leaves_the_journal_as_it_is(operation: str) -> None:
    fs = MemoryFiles()
    journal = fresh(fs, 3)
    fs.faults.fail(operation, code=errno.ENOSPC)
    with pytest.raises(StoreError, match=r"metadata\.journal\.1 cannot be made"):
        journal.begin_compaction()
    assert not journal.wants_compaction
    journal.append("n", 3)
    assert fs.listdir(DIRECTORY) == ["metadata.journal.0"]
    assert reopen(fs)[1] == numbers(4)


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


def test_files_that_an_interrupted_compaction_left_are_removed() -> None:
    fs = MemoryFiles()
    journal = fresh(fs, 3)
    old = fs.read(FIRST)
    compaction = journal.begin_compaction()
    compaction.write([("n", "all")])
    fs.overwrite(FIRST, old)
    _, records, report = reopen(fs)
    assert records == [("n", "all")]
    assert report.removed == [FIRST]


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


@given(
    st.lists(st.sampled_from(["append", "compact", "begin", "reopen"]), max_size=12),
    st.lists(st.just("append"), max_size=4),
)
def test_the_files_up_to_a_position_restore_the_state_there(before: list[str], after: list[str]) -> None:
    fs = MemoryFiles()
    journal, count = fresh(fs), 0
    for step in before:
        if step == "append":
            journal.append("n", count)
            count += 1
        elif step == "compact":
            compact(journal, numbers(count))
        elif step == "begin":  # a compaction that fails: the chain gets longer
            journal.end_compaction(journal.begin_compaction())
        else:
            journal.close()
            journal = reopen(fs)[0]
    files = journal.files_to(journal.position)
    for _ in after:
        journal.append("later", 0)
    copied = MemoryFiles()
    for path, limit in files:
        copied.overwrite(path, fs.read(path)[:limit])
    assert reopen(copied)[1] == numbers(count)
    assert not reopen(copied)[2].cuts
