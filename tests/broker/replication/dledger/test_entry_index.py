"""The side file: what was synced is there after each kind of crash, and nothing that never was an entry."""

import errno
import itertools
from collections.abc import Callable
from random import Random
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.broker.replication.dledger import entry_index
from skylark.broker.replication.dledger.entry_file import (
    HEAD_SLOTS,
    IN_LOG,
    INLINE,
    PAGE_BYTES,
    SLOT_BYTES,
    IndexedEntry,
    SlotRun,
)
from skylark.broker.replication.dledger.entry_index import EntryIndex
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
    index.use_copy(oldest, fs.open_map(path, oldest.file.size, create=True))
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


@given(
    st.lists(MADE, min_size=1, max_size=30), st.lists(st.tuples(st.integers(0), st.integers(0, 239)), max_size=4),
    st.integers(0, 2_000),
)  # fmt: skip
def test_only_slots_that_are_as_they_were_written_tell_what_was_lost(
    made: list[Made], flips: list[tuple[int, int]], log_start: int
) -> None:
    index = new(MemoryFiles())
    for each in made:
        add(index, each)
    right = index.last_lost(log_start)
    places = [(entry.place, entry.end) for entry, _ in all_of(index)]
    for where, bit in flips:
        file = index.files[where % len(index.files)]
        number = file.first + where % file.count if file.count else None
        if number is not None:
            file.file.view[file.slot_of(number) * SLOT_BYTES + bit // 8] ^= 1 << bit % 8
    proven = [number for number in range(1, right + 1) if places[number - 1][0] == IN_LOG and index.is_sound(number)]
    assert index.last_lost(log_start) == max(proven, default=0)
    ending = [number for number in range(1, index.last + 1) if index.is_sound(number) and places[number - 1][1] <= 500]
    assert max(ending, default=0) <= index.last_ending_by(500) <= max(
        (number for number, (_, end) in enumerate(places, 1) if end <= 500), default=0
    )  # fmt: skip


def lost_page(fs: MemoryFiles, path: str) -> None:
    fs.cold.mark(path, PAGE_BYTES, PAGE_BYTES)
    fs.make_unreadable(path, PAGE_BYTES, PAGE_BYTES)


def test_slots_that_the_disk_cannot_read_are_damaged_slots_and_are_written_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    fs, slots = MemoryFiles(), 3 * PAGE_BYTES // SLOT_BYTES
    index = EntryIndex(fs, "/entries", slots)
    index.begin(0, 0, 0)
    for number in range(slots):
        add(index, (0, 10 + number % 3))
    index.sync()
    right, lost = all_of(index), range(PAGE_BYTES // SLOT_BYTES - 1, 2 * PAGE_BYTES // SLOT_BYTES)
    path = index.files[0].path
    lost_page(fs, path)
    again = EntryIndex(fs, "/entries", slots)
    again.load(index.last)
    again.accept(index.last, index.last)
    damaged = [number for number in range(1, again.last + 1) if not again.is_sound(number)]
    assert damaged == [*lost]
    assert len(caplog.messages) == 1 and "the disk cannot read the page at offset 4096" in caplog.text
    assert [again.last_sound(number) for number in (lost[0] - 1, *lost, lost[-1] + 1)] == [
        *[lost[0] - 1] * (len(lost) + 1),
        lost[-1] + 1,
    ]
    assert again.last_lost(right[lost[0] + 20][0].start) == lost[0] - 1
    *_, around = again.damaged_around(lost[7])
    run = SlotRun.of(around[0], again.chain_at(around[0] - 1), right[around[0] - 1 : around[-1]])
    assert around == lost and run is not None and again.mend(run)
    assert all_of(again) == right and again.sync_rewritten() == ""
    assert fs.read_direct(path, 0, fs.size(path)) == fs.read(path)


def test_a_run_of_slots_is_written_again_only_if_it_is_the_original_one() -> None:
    index, other = new(MemoryFiles()), new(MemoryFiles())
    for number in range(20):
        add(index, (0, b"%d" % number * (number % 3)))
        add(other, (0, b"%d" % number * (number % 3)) if number != 15 else (0, 7))
    right = all_of(index)
    for file in index.files[:2]:
        file.file.view[HEAD_SLOTS * SLOT_BYTES :] = bytes(file.file.size - HEAD_SLOTS * SLOT_BYTES)
    *_, lost = index.damaged_around(2)
    end = lost[-1]
    assert SlotRun.of(1, 1, right[:end]) is None
    for found in (all_of(other)[: end + 9], right[: end - 1], [*right, right[-1]]):
        run = SlotRun.of(1, 0, found)
        assert run is None or not index.mend(run)
    run = SlotRun.of(1, 0, right[:end])
    assert run is not None and index.mend(run) and all_of(index) == right


def test_damaged_slots_are_looked_at_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry_index, "LOOK_ENTRIES", 10)
    index = EntryIndex(MemoryFiles(), "/entries", 200)
    index.begin(0, 0, 0)
    for _ in range(198):
        add(index, (0, 10))
    view = index.files[0].file.view
    for fill in (b"\0", b"x"):
        view[12 * SLOT_BYTES : 112 * SLOT_BYTES] = fill * (100 * SLOT_BYTES)
        found = list(index.damaged_around(60))
        assert found[-1] == range(11, 112)
        assert len(found) > 9 and all(len(then) - len(now) <= 20 for now, then in itertools.pairwise(found))
    looks = index.damaged_around(60)
    next(looks)
    index.forget_after(50)
    assert [*looks] == [range(0)]


def flip_once(fs: MemoryFiles, at: int) -> None:
    fs.flip("/entries/00000000000000000001", at, at % 8)


def two_bytes(fs: MemoryFiles, at: int) -> None:
    fs.damage("/entries/00000000000000000001", at, b"\1\1")


@pytest.mark.parametrize(("damage", "is_tail"), [(flip_once, True), (two_bytes, False)])
def test_one_byte_where_the_next_entry_goes_was_never_an_entry(
    damage: Callable[[MemoryFiles, int], None], is_tail: bool
) -> None:
    fs = MemoryFiles()
    index = new(fs)
    for number in range(3):
        add(index, (0, number))
    index.sync()
    end = (HEAD_SLOTS + 3) * SLOT_BYTES
    for at in range(end, end + SLOT_BYTES - 1):
        left = fs.killed()
        damage(left, at)
        left.damage("/entries/00000000000000000001", 7 * SLOT_BYTES, b"left of a torn entry")
        again = EntryIndex(left, "/entries", SLOTS)
        again.load()
        assert again.last == 3 and again.stray is not None and bool(again.damage) != is_tail, at
        assert (again.stray.at, again.stray.data) == (end, left.read(again.stray.path)[end : end + SLOT_BYTES])
        again.accept(3, 3)
        again.sync()
        assert left.crash(Random(at)).read(again.stray.path) == fs.read(again.stray.path)


@pytest.mark.parametrize("made", [(0, b""), (0, 0), (0, b"x"), (0, 300)])
def test_no_changed_bit_of_an_entry_makes_it_a_tail(made: Made) -> None:
    fs = MemoryFiles()
    index = new(fs)
    add(index, made)
    index.sync()
    changed = 0
    for bit in range(SLOT_BYTES * 8):
        left = fs.killed()
        left.flip("/entries/00000000000000000001", HEAD_SLOTS * SLOT_BYTES + bit // 8, bit % 8)
        again = EntryIndex(left, "/entries", SLOTS)
        again.load()
        # The last two bytes are padding.
        assert again.last == 1 if bit >= 240 else again.last == 0 and again.damage, bit
        changed += again.last == 0
    assert changed == 240


def test_bytes_behind_the_last_entry_of_an_older_file_mean_nothing() -> None:
    fs = MemoryFiles()
    index = new(fs)
    for number in range(4):
        add(index, (0, number))
    add(index, (0, b"does not fit into the two slots that are left" * 2))
    index.sync()
    left = fs.killed()
    left.damage(index.files[0].path, (SLOTS - 1) * SLOT_BYTES, b"\1\1\1")
    left.damage(index.files[0].path, (SLOTS - 2) * SLOT_BYTES, b"\1\1\1")
    again = EntryIndex(left, "/entries", SLOTS)
    again.load()
    assert len(index.files) == 2 and all_of(again) == all_of(index)
    assert (again.damage, again.stray) == ("", None)
