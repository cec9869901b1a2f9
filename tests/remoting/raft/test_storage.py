"""The disk of a node: what was acknowledged is there after each kind of crash, and rot is not taken for a torn end."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqcommon.errors import StoreCorrupt, StoreLocked
from mqcommon.raft.membership import Members
from mqcommon.raft.messages import APPLICATION, Entry, Snapshot
from mqcommon.raft.ready import HardState, Persist
from remoting.raft.storage import FileStorage, Stored
from tests.support.memory_files import MemoryFiles

FIRST = Snapshot(0, 0, Members({"n0": "a:1"}), b"")


def entries(first: int, count: int, term: int = 1) -> tuple[Entry, ...]:
    return tuple(Entry(index, term, APPLICATION, b"%d of %d" % (index, term)) for index in range(first, first + count))


def persist(*new: Entry, state: HardState | None = None, snapshot: Snapshot | None = None) -> Persist:
    return Persist(state, new, snapshot, ())


def begun(fs: MemoryFiles) -> FileStorage:
    storage = FileStorage(fs, "/raft")
    storage.begin("n0", FIRST)
    storage.load()
    return storage


def loaded(fs: MemoryFiles) -> Stored:
    storage = FileStorage(fs, "/raft")
    stored = storage.load()
    storage.close()
    assert stored is not None
    return stored


def test_an_empty_disk_has_nothing() -> None:
    assert FileStorage(MemoryFiles(), "/raft").load() is None


def test_a_directory_has_one_user() -> None:
    fs = MemoryFiles()
    begun(fs)
    with pytest.raises(StoreLocked):
        FileStorage(fs, "/raft")


def test_what_was_written_is_read() -> None:
    fs = MemoryFiles()
    storage = begun(fs)
    storage.write(persist(*entries(1, 3), state=HardState(1, "n0")))
    storage.write(persist(*entries(3, 2, term=2), state=HardState(2, "n1")))
    storage.write(persist(*entries(5, 1, term=2)))
    stored = loaded(fs.killed())
    assert stored.hard_state == HardState(2, "n1")
    assert stored.entries == entries(1, 2) + entries(3, 3, term=2)
    assert stored.snapshot == FIRST


@given(st.randoms(use_true_random=False), st.integers(1, 8))
def test_power_loss_takes_nothing_that_was_written(random: Random, writes: int) -> None:
    fs = MemoryFiles()
    storage = begun(fs)
    expected: list[Entry] = []
    for number in range(writes):
        first = random.randint(max(len(expected) - 2, 0), len(expected)) + 1
        new = entries(first, random.randint(1, 3), term=number + 1)
        expected[first - 1 :] = new
        storage.write(persist(*new, state=HardState(number + 1, "n0")))
    stored = loaded(fs.crash(random))
    assert (list(stored.entries), stored.hard_state) == (expected, HardState(writes, "n0"))


@given(st.randoms(use_true_random=False))
def test_power_loss_while_a_snapshot_is_stored_leaves_the_old_or_the_new(random: Random) -> None:
    fs = MemoryFiles()
    storage = begun(fs)
    storage.write(persist(*entries(1, 6), state=HardState(1, "n0")))
    snapshot = Snapshot(4, 1, FIRST.members, b"four")
    calls = random.randint(1, 12)
    after: list[MemoryFiles] = []

    def count(operation: str, path: str) -> None:
        nonlocal calls
        calls -= 1
        if calls == 0:
            after.append(fs.crash(random))

    fs.before_call = count
    storage.compact(snapshot, (2, 1), entries(3, 4))
    fs.before_call = None
    stored = loaded(after[0] if after else fs.crash(random))
    assert stored.snapshot in (FIRST, snapshot)
    assert stored.entries in (entries(1, 6), entries(3, 4))
    assert stored.hard_state == HardState(1, "n0")


def test_a_leaders_snapshot_replaces_a_log_that_does_not_fit_to_it() -> None:
    fs = MemoryFiles()
    storage = begun(fs)
    storage.write(persist(*entries(1, 3), state=HardState(1, "n0")))
    snapshot = Snapshot(9, 2, FIRST.members, b"nine")
    storage.write(persist(*entries(10, 1, term=2), state=HardState(2, ""), snapshot=snapshot))
    stored = loaded(fs.killed())
    assert (stored.snapshot, stored.base, stored.entries) == (snapshot, (9, 2), entries(10, 1, term=2))


def test_a_torn_end_is_cut_and_written_over() -> None:
    fs = MemoryFiles()
    storage = begun(fs)
    storage.write(persist(*entries(1, 2), state=HardState(1, "n0")))
    whole = fs.read("/raft/log")
    storage.write(persist(*entries(3, 2)))
    torn = fs.killed()
    torn.overwrite("/raft/log", fs.read("/raft/log")[: len(whole) + 9])
    storage = FileStorage(torn, "/raft")
    stored = storage.load()
    assert stored is not None and stored.entries == entries(1, 2)
    storage.write(persist(*entries(3, 1, term=2)))
    assert loaded(torn.killed()).entries == entries(1, 2) + entries(3, 1, term=2)


def test_rot_before_other_records_stops_the_node() -> None:
    fs = MemoryFiles()
    storage = begun(fs)
    start = len(fs.read("/raft/log"))
    storage.write(persist(*entries(1, 2), state=HardState(1, "n0")))
    storage.write(persist(*entries(3, 2)))
    rotten = fs.killed()
    rotten.flip("/raft/log", start + 12)
    with pytest.raises(StoreCorrupt, match="damaged"):
        loaded(rotten)


def test_a_rotten_snapshot_stops_the_node() -> None:
    fs = MemoryFiles()
    begun(fs)
    rotten = fs.killed()
    rotten.flip("/raft/snapshot", 12)
    with pytest.raises(StoreCorrupt, match="damaged"):
        loaded(rotten)
