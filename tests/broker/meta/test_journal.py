"""The ways in which a journal can die, one by one; test_journal_model.py has them all at once."""

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.meta.journal import Journal
from mqcommon.errors import DiskFull, StoreCorrupt, StoreError
from tests.broker.meta.journals import FIRST, SECOND, damage, fresh, numbers, reopen
from tests.broker.meta.support import DIRECTORY
from tests.support.memory_files import MemoryFiles


def test_records_come_back_in_order() -> None:
    fs = MemoryFiles()
    fresh(fs, 5).close()
    _, records, report = reopen(fs)
    assert records == numbers(5)
    assert report.cuts == []


def test_synced_records_survive_power_loss_and_unsynced_ones_the_death_of_the_process() -> None:
    fs = MemoryFiles()
    journal = fresh(fs, 3)
    journal.sync()
    journal.append("n", 3)
    assert reopen(fs.killed())[1] == numbers(4)
    for seed in range(20):
        assert reopen(fs.crash(Random(seed)))[1] in (numbers(3), numbers(4))


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


def test_rot_before_the_tail_stops_with_file_and_offset() -> None:
    fs = MemoryFiles()
    journal = fresh(fs, 3)
    journal.sync()
    journal.append("n", 3)
    damage(fs, FIRST, 60)
    with pytest.raises(StoreCorrupt) as caught:
        reopen(fs)
    assert caught.value.file == FIRST
    assert caught.value.offset <= 60


def test_rot_of_the_last_record_is_seen_after_a_clean_stop() -> None:
    fs = MemoryFiles()
    journal = fresh(fs, 1)
    last = fs.size(FIRST) - 1
    journal.close()
    damage(fs, FIRST, last)
    with pytest.raises(StoreCorrupt):
        reopen(fs)


def test_a_full_disk_refuses_the_change_and_leaves_nothing_torn() -> None:
    fs = MemoryFiles()
    journal = fresh(fs, 2)
    fs.capacity = fs.used() + 10
    with pytest.raises(DiskFull):
        journal.append("n", "too much")
    fs.capacity = 1 << 30
    journal.append("n", 2)
    _, records, report = reopen(fs)
    assert records == numbers(3)
    assert report.cuts == []


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
    for _ in range(20):
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


def test_append_tells_the_shell() -> None:
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
