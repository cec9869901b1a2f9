"""The disk of a node: what was acknowledged is there after each kind of crash, and rot is not taken for a torn end."""

from random import Random
from typing import Any
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.mqcommon.errors import NewerVersion, StoreCorrupt, StoreLocked
from skylark.mqcommon.raft.membership import Members
from skylark.mqcommon.raft.messages import APPLICATION, RaftEntry, Snapshot
from skylark.mqcommon.raft.ready import HardState, Persist
from skylark.remoting.protocol.strict_cbor import dumps, loads
from skylark.remoting.raft.storage import HEAD, MARK, MARKS_AT, FileStorage, Stored
from tests.support.memory_files import MemoryFiles

FIRST = Snapshot(0, 0, Members({"n0": "a:1"}), b"")


def entries(first: int, count: int, term: int = 1) -> tuple[RaftEntry, ...]:
    return tuple(
        RaftEntry(index, term, APPLICATION, b"%d of %d" % (index, term)) for index in range(first, first + count)
    )


def persist(*new: RaftEntry, state: HardState | None = None, snapshot: Snapshot | None = None) -> Persist:
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


def test_what_a_node_finds_after_a_kill_survives_power_loss() -> None:
    """Though it was killed before the fsync: from the start on the node promises what it found."""
    fs = MemoryFiles()
    storage = begun(fs)
    left: list[MemoryFiles] = []

    def before_call(operation: str, path: str) -> None:
        if operation == "sync":
            left.append(fs.killed())

    fs.before_call = before_call
    storage.write(persist(*entries(1, 3), state=HardState(1, "n0")))
    found = loaded(left[0])
    assert found.entries == entries(1, 3)
    for seed in range(10):
        assert loaded(left[0].crash(Random(seed))) == found


def test_what_a_node_finds_after_a_failed_sync_survives_power_loss() -> None:
    """The kernel has it, and counts it as written."""
    fs = MemoryFiles()
    storage = begun(fs)
    storage.write(persist(*entries(1, 3), state=HardState(1, "n0")))
    fs.faults.fail("sync")
    with pytest.raises(OSError, match="injected"):
        storage.write(persist(*entries(4, 300), state=HardState(2, "n1")))
    fs = fs.killed()
    found = loaded(fs)
    assert found.hard_state == HardState(2, "n1")
    for seed in range(10):
        assert loaded(fs.crash(Random(seed))) == found


@given(st.randoms(use_true_random=False), st.integers(1, 8))
def test_power_loss_takes_nothing_that_was_written(random: Random, writes: int) -> None:
    fs = MemoryFiles()
    storage = begun(fs)
    expected: list[RaftEntry] = []
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
    torn = fs.killed()
    storage.write(persist(*entries(3, 2)))
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


# --- a log that has lost records


def used() -> MemoryFiles:
    """A disk with several records, a snapshot and a hard state, after a kill."""
    fs = MemoryFiles()
    storage = begun(fs)
    storage.write(persist(*entries(1, 6), state=HardState(1, "n0")))
    storage.compact(Snapshot(4, 1, FIRST.members, b"four"), (2, 1), entries(3, 4))
    for number in range(7, 12):
        storage.write(persist(*entries(number, 1, term=2), state=HardState(2, "n1")))
    return fs.killed()


def test_a_log_that_is_cut_anywhere_stops_the_node() -> None:
    fs = used()
    whole = fs.read("/raft/log")
    for size in range(len(whole)):
        cut = fs.killed()
        cut.overwrite("/raft/log", whole[:size])
        for _ in range(2):  # the refusal changes nothing
            with pytest.raises(StoreCorrupt, match="node n0 has forgotten what it promised") as raised:
                FileStorage(cut, "/raft").load()
            cut = cut.killed()
    assert "move the directory /raft away" in str(raised.value)


def test_a_log_that_is_removed_stops_the_node() -> None:
    fs = used()
    fs.remove("/raft/log")
    with pytest.raises(StoreCorrupt, match="it has lost its first records"):
        FileStorage(fs, "/raft").load()


@given(st.randoms(use_true_random=False), st.integers(1, 12))
def test_no_kill_and_no_power_loss_is_taken_for_a_lost_log(random: Random, steps: int) -> None:
    fs = MemoryFiles()
    storage = begun(fs)
    last, term = 0, 1
    for _ in range(steps):
        if last and random.random() < 0.3:
            storage.compact(Snapshot(last, term, FIRST.members, b""), (last, term), ())
        storage.write(persist(*entries(last + 1, 2, term), state=HardState(term, "n0")))
        last += 2
        if random.random() < 0.4:
            fs = fs.killed() if random.random() < 0.5 else fs.crash(random)
            storage = FileStorage(fs, "/raft")
            stored = storage.load()
            assert stored is not None and stored.entries[-1].index == last


def older(fs: MemoryFiles) -> MemoryFiles:
    """The disk as an older version would have left it: no copy of the mark, which the log does not mention."""
    data = fs.read("/raft/log")
    size, _ = HEAD.unpack_from(data)
    vote, base, fields = loads(data[HEAD.size : HEAD.size + size])
    payload = dumps([vote, base[:2], fields])
    first = HEAD.pack(len(payload), crc32(payload)) + payload
    left = fs.killed()
    log = first + data[HEAD.size + size :]
    left.overwrite("/raft/log", log)
    known = MARK.pack(first[: HEAD.size], len(log), 0)[:-4]
    left.overwrite("/raft/mark", known + crc32(known).to_bytes(4, "big"))
    return left


def test_a_log_of_an_older_version_gets_its_mark() -> None:
    fs = older(used())
    assert loaded(fs) == loaded(used())
    for mark in (None, bytes(MARK.size)):
        fs = older(used())
        if mark is None:
            fs.remove("/raft/mark")
        else:
            fs.overwrite("/raft/mark", mark)
        assert loaded(fs) == loaded(used())
        fs = fs.crash(Random(1))
        fs.remove("/raft/mark")
        with pytest.raises(StoreCorrupt, match="it is not known how long it was"):
            FileStorage(fs, "/raft").load()


def test_a_snapshot_that_is_removed_stops_the_node() -> None:
    fs = used()
    fs.remove("/raft/snapshot")
    with pytest.raises(StoreCorrupt, match="the file is gone, and the log that follows it is there"):
        FileStorage(fs, "/raft").load()


def test_a_node_that_was_stopped_before_its_first_snapshot_begins_again() -> None:
    fs = MemoryFiles()
    left: list[MemoryFiles] = []
    fs.before_call = lambda operation, path: left.append(fs.killed())
    begun(fs)
    for each in left:
        storage = FileStorage(each, "/raft")
        if storage.load() is None:
            storage.begin("n0", FIRST)
            assert storage.load() is not None


# --- the table of docs/how/raft.md: each file, each position


@pytest.mark.parametrize("name", ["log", "snapshot", "mark"])
def test_one_bit_that_changes_anywhere_loses_nothing_or_stops_the_node(name: str) -> None:
    whole, outcomes = loaded(used()), set()
    fs = used()
    for at in range(fs.size(f"/raft/{name}")):
        if name == "mark" and MARK.size <= at < MARKS_AT[1]:
            continue  # between the copies
        damaged = fs.killed()
        damaged.flip(f"/raft/{name}", at, at % 8)
        try:
            assert loaded(damaged) == whole, at
            outcomes.add("repaired")
        except StoreCorrupt as error:
            assert "move the directory /raft away" in str(error)
            outcomes.add("refused")
    assert outcomes == ({"repaired"} if name == "mark" else {"refused"})


@pytest.mark.parametrize("name", ["log", "snapshot", "mark"])
def test_a_file_that_is_cut_anywhere_stops_the_node(name: str) -> None:
    fs = used()
    whole = fs.read(f"/raft/{name}")
    for size in [*range(0, len(whole), 1 if len(whole) < 1000 else 97), None]:
        damaged = fs.killed()
        if size is None:
            damaged.remove(f"/raft/{name}")
        else:
            damaged.overwrite(f"/raft/{name}", whole[:size])
        if name == "mark" and size is not None and size >= MARK.size:
            loaded(damaged)  # one copy is left
            continue
        with pytest.raises(StoreCorrupt, match="must not go on"):
            FileStorage(damaged, "/raft").load()


def test_a_cut_log_with_a_damaged_mark_stops_the_node() -> None:
    fs = used()
    whole = fs.read("/raft/log")
    for size in range(0, len(whole), 7):
        cut = fs.killed()
        cut.overwrite("/raft/log", whole[:size])
        for at in MARKS_AT:
            cut.flip("/raft/mark", at + 9)
        with pytest.raises(StoreCorrupt, match="must not go on"):
            FileStorage(cut, "/raft").load()


@pytest.mark.parametrize("record", [[[1, ""], [0, 0, 1, 7], []], [None, None, [], "new"]])
def test_a_log_of_a_newer_version_is_refused_with_the_reason(record: list[Any]) -> None:
    fs = used()
    payload = dumps(record)
    fs.overwrite("/raft/log", fs.read("/raft/log") + HEAD.pack(len(payload), crc32(payload)) + payload)
    with pytest.raises(NewerVersion, match=r"/raft/log was written by a newer Skylark .*: run that version"):
        FileStorage(fs, "/raft").load()
