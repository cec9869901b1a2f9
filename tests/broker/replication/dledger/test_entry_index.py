"""The side file: what was synced is there after each kind of crash, and nothing that never was an entry."""

import errno
from random import Random
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.broker.replication.dledger.entry_index import (
    HEAD_SLOTS,
    IN_LOG,
    INLINE,
    SLOT_BYTES,
    EntryIndex,
    IndexedEntry,
)
from skylark.mqcommon.errors import OutOfDescriptors, StoreCorrupt
from tests.support.memory_files import MemoryFiles

SLOTS = 8

# Term, and the size of an entry whose bytes are in the commit log, or the bytes of an entry with bytes of its own.
Made = tuple[int, int | bytes]
MADE = st.tuples(st.integers(0, 1), st.integers(0, 500) | st.binary(max_size=100))


def new(fs: MemoryFiles, base: int = 0, position: int = 0) -> EntryIndex:
    index = EntryIndex(fs, "/entries", SLOTS)
    index.begin(base, 0, position)
    return index


def loaded(fs: MemoryFiles) -> EntryIndex:
    index = EntryIndex(fs, "/entries", SLOTS)
    index.load()
    index.accept(index.last, 0)
    return index


def add(index: EntryIndex, made: Made, term: int = 1) -> None:
    _, what = made
    if isinstance(what, int):
        index.append(term, 0, IN_LOG, what, what)
    else:
        index.append(term, 1, INLINE, len(what), crc32(what), what)


def all_of(index: EntryIndex) -> list[tuple[IndexedEntry, bytes]]:
    entries = [index.entry(each) for each in range(index.first, index.last + 1)]
    return [
        (entry, index.data(number, entry.size) if entry.place == INLINE else b"")
        for number, entry in enumerate(entries, index.first)
    ]


@given(st.lists(MADE, max_size=40), st.data())
def test_entries_are_read_as_they_were_added_cut_and_added_again(made: list[Made], data: st.DataObject) -> None:
    fs = MemoryFiles()
    index = new(fs)
    expected: list[Made] = []
    for each in made:
        add(index, each)
        expected.append(each)
        if data.draw(st.integers(0, 5)) == 0:
            keep = data.draw(st.integers(0, len(expected)))
            index.forget_after(keep)
            del expected[keep:]
    for read in (index, loaded(fs)):
        assert (read.first, read.last, read.chain) == (1, len(expected), index.chain)
        at = 0
        for (entry, inline), (_, what) in zip(all_of(read), expected, strict=True):
            assert entry.start == at
            assert (entry.size, inline) == ((what, b"") if isinstance(what, int) else (len(what), what))
            at = entry.end
        assert read.position == at


@given(st.lists(MADE, max_size=30), st.lists(MADE, max_size=30), st.randoms(use_true_random=False))
def test_what_was_synced_survives_power_loss(first: list[Made], then: list[Made], random: Random) -> None:
    fs = MemoryFiles()
    index = new(fs)
    for each in first:
        add(index, each)
    index.sync()
    synced = all_of(index)
    for each in then:
        add(index, each)
    everything = all_of(index)
    left = all_of(loaded(fs.crash(random)))
    assert left[: len(synced)] == synced
    assert left == everything[: len(left)]


@given(st.lists(MADE, min_size=1, max_size=30), st.lists(MADE, max_size=30), st.randoms(use_true_random=False))
def test_a_power_loss_after_a_cut_brings_back_no_mixture(first: list[Made], then: list[Made], random: Random) -> None:
    fs = MemoryFiles()
    index = new(fs)
    for each in first:
        add(index, each)
    index.sync()
    before = all_of(index)
    index.forget_after(random.randrange(len(first)))
    for each in then:
        add(index, each, term=2)
    after = all_of(index)
    left = all_of(loaded(fs.crash(random)))
    assert left in (before[: len(left)], after[: len(left)])


def test_a_kill_loses_nothing() -> None:
    fs = MemoryFiles()
    index = new(fs, base=7, position=100)
    for number in range(20):
        add(index, (0, number))
    assert all_of(loaded(fs.killed())) == all_of(index)
    assert (index.first, index.term(7), index.end(7)) == (8, 0, 100)


def test_what_a_killed_process_wrote_is_on_disk_after_the_next_sync() -> None:
    fs = MemoryFiles()
    index = new(fs)
    for number in range(20):
        add(index, (0, number))
    left = fs.killed()
    again = loaded(left)
    again.sync()
    assert all_of(loaded(left.crash(Random(0)))) == all_of(index)


@pytest.mark.parametrize("operation", ["sync", "fsync_dir"])
def test_entries_that_no_descriptor_was_left_to_sync_are_synced_the_next_time(operation: str) -> None:
    fs = MemoryFiles()
    index = new(fs)
    for number in range(20):
        add(index, (0, number))
    fs.faults.fail(operation, code=errno.EMFILE)
    with pytest.raises(OutOfDescriptors):
        index.sync()
    index.sync()
    for seed in range(5):
        assert all_of(loaded(fs.crash(Random(seed)))) == all_of(index)


def test_an_unused_copy_of_a_file_leaves_no_file() -> None:
    fs = MemoryFiles()
    index = new(fs)
    for number in range(20):
        add(index, (0, number))
    oldest = index.files[0]
    (path,) = index.forget_before(oldest.last + 1)
    fs.remove(path)
    assert not index.use_copy(oldest, fs.open_map(path, oldest.file.size, create=True))
    assert not fs.exists(path)


def test_logs_with_the_same_chain_have_the_same_entries() -> None:
    one, other = new(MemoryFiles()), new(MemoryFiles())
    add(one, (0, 10))
    add(other, (0, 11))
    add(one, (0, 11))
    add(other, (0, 10))
    assert one.position == other.position
    assert one.chain != other.chain


def test_entries_end_at_the_first_damaged_one() -> None:
    fs = MemoryFiles()
    index = new(fs)
    for number in range(20):
        add(index, (0, number))
    index.sync()
    fs.flip("/entries/00000000000000000007", (HEAD_SLOTS + 1) * SLOT_BYTES)
    assert all_of(loaded(fs)) == all_of(index)[:7]
    assert fs.listdir("/entries") == ["00000000000000000001", "00000000000000000007"]


def test_a_first_file_without_its_head_is_refused() -> None:
    fs = MemoryFiles()
    new(fs).sync()
    fs.flip("/entries/00000000000000000001", 3)
    with pytest.raises(StoreCorrupt, match="the head of the file is damaged"):
        loaded(fs)


def test_files_whose_entries_are_all_gone_are_forgotten() -> None:
    fs = MemoryFiles()
    index = new(fs)
    for _ in range(20):
        add(index, (0, 10))
    gone = index.forget_before(index.last_lost(100))
    assert index.last_lost(100) == 10
    assert gone == ["/entries/00000000000000000001"]
    assert (index.first, index.term(6), index.term(5), index.end(6)) == (7, 1, None, 60)
    for path in gone:
        fs.remove(path)
    assert all_of(loaded(fs)) == all_of(index)


def test_entries_without_bytes_of_the_log_are_not_lost_with_it() -> None:
    index = new(MemoryFiles())
    add(index, (0, b""))
    assert index.last_lost(0) == 0
    add(index, (0, 10))
    add(index, (0, b"members"))
    assert index.last_lost(10) == 2


def test_the_entries_of_some_bytes_of_the_log_are_found_unless_their_slots_are_damaged() -> None:
    index = new(MemoryFiles())
    for _ in range(6):
        add(index, (0, 10))
        add(index, (0, b"members"))
    for start, end, found in ((0, 60, [*range(0, 60, 10)]), (15, 25, [10, 20]), (20, 30, [20]), (59, 90, [50])):
        assert [each.start for each in index.in_log(start, end)] == found
    assert index.in_log(60, 90) == []
    third = index._file_of(5)
    third.file.view[third.slot_of(5) * SLOT_BYTES + 16] ^= 1  # its size
    assert index.in_log(20, 30) == []
    assert [each.start for each in index.in_log(0, 20)] == [0, 10]
