"""What one member keeps on its disk, and takes of a leader: full and damaged disks, and stops at bad moments."""

import errno
import zlib
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from random import Random
from types import SimpleNamespace
from typing import Any
from zlib import crc32

import cbor2
import pytest
import trio
import trio.testing

from skylark.broker.options import BrokerOptions
from skylark.broker.replication.copying import CopiedLog, QueueBuilding
from skylark.broker.replication.dledger import entry_index, log_disk
from skylark.broker.replication.dledger.entry_file import HEAD_SLOTS, PAGE_BYTES, SLOT_BYTES
from skylark.broker.replication.dledger.entry_index import EntryIndex
from skylark.broker.replication.dledger.log_disk import CopyingTo, GroupLog, LogDisk
from skylark.broker.replication.dledger.log_entries import Reference
from skylark.broker.replication.dledger.member import GroupMember, LeadershipEffects
from skylark.broker.replication.replica import Replica
from skylark.broker.replication.role import RoleMachine
from skylark.broker.store.store import MessageStore
from skylark.broker.tasks.flush import Flusher
from skylark.broker.tasks.truncate import LogTruncation
from skylark.broker.writing.admission import Admission
from skylark.broker.writing.elected import Elected
from skylark.broker.writing.waits import LogWaits
from skylark.mqcommon.disk.atomic import read_with_crc, write_with_crc
from skylark.mqcommon.errors import NewerVersion
from skylark.mqcommon.raft.config import Config
from skylark.mqcommon.raft.membership import Members
from skylark.mqcommon.raft.messages import (
    APPLICATION,
    EMPTY,
    AppendRequest,
    Heartbeat,
    InstallSnapshot,
    RaftEntry,
    RaftMessage,
    Snapshot,
)
from skylark.mqcommon.raft.raft import Raft
from tests.broker.replication.test_replica import log_bytes
from tests.broker.store.cleaning import clean
from tests.broker.store.support import bodies, open_store, put
from tests.support.clock import ManualClock
from tests.support.memory_files import MemoryFiles

NEW = Snapshot(0, 0, Members({"n0": "", "n1": ""}), b"")


@pytest.fixture(autouse=True)
def no_pauses_and_small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_disk, "FULL_PAUSE_S", 0)
    monkeypatch.setattr(log_disk, "open_index", lambda fs, root: EntryIndex(fs, f"{root}/dledger/entries", 64))


class Member:
    """Member n0, which gets messages of n1."""

    def __init__(self, fs: MemoryFiles) -> None:
        self.fs = fs
        self.store = open_store(fs)
        flusher = Flusher(self.store, LogWaits(), Admission(), BrokerOptions(), trio.lowlevel.checkpoint)
        cut = LogTruncation(fs, "/store", self.store, flusher).cut
        self.disk = LogDisk(fs, "/store", GroupLog(self.store.log, flusher.flush, cut, sync_flush=False))
        replica, guard = Replica(self.store), flusher.one_at_a_time
        self.copying = CopyingTo(replica, QueueBuilding(CopiedLog(replica, lambda: None, guard)), guard)
        self.raft: Raft

    async def start(self) -> "Member":
        await self.disk.follow(self.copying)
        loaded = await self.disk.load()
        if loaded is None:
            await self.disk.begin("n0", NEW)
            loaded = await self.disk.load()
        assert loaded is not None
        self.raft = Raft(Config("n0"), loaded.hard_state, loaded.snapshot, loaded.entries, 0)
        return self

    async def take(self, message: RaftMessage) -> bool:
        """Take a message as the node does; returns whether it was taken."""
        if not self.disk.is_ready(self.raft, message) and not await self.disk.prepare(self.raft, message):
            return False
        self.raft.step(message)
        return True


def leader(*messages: bytes) -> MessageStore:
    store = open_store(MemoryFiles())
    for message in messages:
        put(store, "t", 0, message)
    return store


def log_of(store: MessageStore, term: int) -> AppendRequest:
    """All messages of a leader, as one entry after that with which it began its term."""
    data = log_bytes(store, 0, store.log.end)
    found = Reference(0, len(data), crc32(data)).pack() + data
    entries = RaftEntry(1, term, EMPTY, b""), RaftEntry(2, term, APPLICATION, found)
    return AppendRequest("n1", "n0", term, 0, 0, entries, 0)


def entries_of(store: MessageStore) -> tuple[RaftEntry, ...]:
    """The entry with which a leader began term 1, and an entry for each of its messages."""
    entries = [RaftEntry(1, 1, EMPTY, b"")]
    queue = store.queues.get("t", 0)
    starts = [queue.entry(offset)[0] for offset in range(queue.next_offset)]
    for start, end in pairwise([*starts, store.log.end]):
        data = log_bytes(store, start, end)
        found = Reference(start, len(data), crc32(data)).pack() + data
        entries.append(RaftEntry(entries[-1].index + 1, 1, APPLICATION, found))
    return tuple(entries)


def no_room_for_what_is_cut(fs: MemoryFiles) -> None:
    """Once."""
    fs.faults.fail("open", code=errno.ENOSPC, path_part="/store/cut/")


async def test_a_deposed_leader_without_room_for_its_tail_follows_when_there_is_room() -> None:
    member = await Member(MemoryFiles()).start()
    assert await member.take(log_of(leader(b"one"), 1))
    await member.disk.end_following(member.copying)
    put(member.store, "t", 0, b"nobody else has it")
    no_room_for_what_is_cut(member.fs)
    await member.disk.follow(member.copying)
    assert not member.fs.faults.pending
    assert bodies(member.store, "t", 0) == [b"one"]


async def test_a_start_without_room_for_what_is_no_entry_ends_when_there_is_room() -> None:
    fs = MemoryFiles()
    member = await Member(fs).start()
    assert await member.take(log_of(leader(b"one"), 1))
    await member.disk.end_following(member.copying)
    put(member.store, "t", 0, b"nobody else has it")
    left = fs.killed()
    no_room_for_what_is_cut(left)
    again = await Member(left).start()
    assert not left.faults.pending
    assert bodies(again.store, "t", 0) == [b"one"]


async def test_a_message_that_waits_for_a_member_to_follow_is_taken_at_its_next_try() -> None:
    member = await Member(MemoryFiles()).start()
    await member.disk.end_following(member.copying)
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(member.take, log_of(leader(b"one"), 1))
            await trio.testing.wait_all_tasks_blocked()
            await member.disk.end_following(member.copying)
            await member.disk.follow(member.copying)
    member.disk.build_queues()
    assert bodies(member.store, "t", 0) == [b"one"]


class LeadingNode:
    """The node of a leader that knows all that is committed."""

    is_leader = True
    term = 7

    async def read(self, timeout_ms: float) -> None:
        await trio.lowlevel.checkpoint()


async def test_an_elected_member_without_room_for_its_tail_leads_when_there_is_room(
    autojump_clock: trio.testing.MockClock,
) -> None:
    found = await Member(MemoryFiles()).start()
    await found.disk.end_following(found.copying)
    put(found.store, "t", 0, b"nobody else has it")
    no_room_for_what_is_cut(found.fs)
    terms: list[int] = []
    unused: Any = SimpleNamespace(peers={})
    effects = LeadershipEffects(
        RoleMachine(1), Elected(trio.current_time), unused, 1, terms.append, unused, unused, list, lambda: 1.0, int
    )
    part = GroupMember(unused, found.disk, effects, unused, ManualClock())
    node: Any = LeadingNode()
    part.node = node
    assert await part.prepare_to_lead()
    assert terms == [7]
    assert found.store.log.end == found.disk.entries.position == 0


@pytest.mark.parametrize("code", [errno.EIO, errno.EMFILE, errno.ENOENT])
async def test_entries_that_cannot_be_read_are_not_sent_and_other_messages_are(
    code: int, caplog: pytest.LogCaptureFixture
) -> None:
    member = await Member(MemoryFiles()).start()
    lacking = log_of(leader(b"one"), 1)
    assert await member.take(lacking)
    beat = Heartbeat("n0", "n1", 1, 0, 0)
    entries = member.disk.entries.read(1, 3, 1 << 20)
    request = replace(lacking, sender="n0", to="n1", entries=entries)
    for number in range(3):
        member.fs.faults.fail("read", code=code, path_part="/commitlog/")
        assert member.disk.decode(await member.disk.encode([request, beat])) == [beat], number
    assert member.disk.decode(await member.disk.encode([request])) == [replace(lacking, sender="n0", to="n1")]
    assert caplog.text.count("cannot be read from the log") == (0 if code == errno.ENOENT else 1)


async def test_a_new_member_that_was_stopped_in_the_leaders_snapshot_takes_it_again() -> None:
    base, member = 200_000, await Member(MemoryFiles()).start()
    begin = member.store.log.chain.segment_bytes
    snapshot = Snapshot(base, 1, NEW.members, zlib.compress(begin.to_bytes(8, "big")))
    first = InstallSnapshot("n1", "n0", 1, snapshot)
    left: list[MemoryFiles] = []
    # Wherever it is killed, until the state that has the snapshot is written.
    member.fs.before_call = lambda operation, path: left.append(member.fs.killed())
    assert await member.take(first)
    persist = member.raft.ready().persist
    assert persist is not None and persist.snapshot == snapshot
    await member.disk.write(persist)
    member.fs.before_call = None
    assert len(left) > 10
    for fs in [*left, member.fs.killed(), *[member.fs.crash(Random(seed)) for seed in range(3)]]:
        again = await Member(fs).start()
        if again.raft.log.snapshot.index == base:
            assert fs is not left[0]
            continue
        assert (again.disk.entries.base, again.disk.entries.last) == (0, 0)
        assert await again.take(first)
        assert (again.store.log.start, again.disk.entries.position) == (begin, begin)
        assert again.disk.entries.last == base


async def test_a_member_that_is_killed_after_it_forgot_a_tail_has_lost_nothing_that_it_promised() -> None:
    member = await Member(MemoryFiles()).start()
    assert await member.take(log_of(leader(b"old", b"older"), 1))
    persist = member.raft.ready().persist
    assert persist is not None and persist.entries
    await member.disk.write(persist)
    left: list[MemoryFiles] = []
    member.fs.before_call = lambda operation, path: left.append(member.fs.killed())
    assert await member.take(replace(log_of(leader(b"new"), 2), entries=()))
    assert await member.take(log_of(leader(b"new"), 2))
    member.fs.before_call = None
    for fs in [*left, member.fs.killed()]:
        await Member(fs).start()  # no LostDisk
    assert left


async def test_no_tail_is_cut_behind_an_entry_whose_slot_is_damaged() -> None:
    entries = entries_of(leader(b"old", b"older"))
    member = await Member(MemoryFiles()).start()
    assert await member.take(AppendRequest("n1", "n0", 1, 0, 0, entries, 0))
    before_last = member.disk.index.entry(3).start
    damaged: list[int] = []
    member.disk.on_damaged = damaged.append
    size_at = (HEAD_SLOTS + 1) * SLOT_BYTES + 19
    member.fs.flip(f"/store/dledger/entries/{1:020d}", size_at, 6)
    tail, log = AppendRequest("n2", "n0", 2, 2, 1, (RaftEntry(3, 2, EMPTY, b""),), 0), member.disk.entries
    before = log.last, member.store.log.raw_end
    assert not await member.take(tail) and damaged == [2] and (log.last, member.store.log.raw_end) == before
    member.fs.flip(f"/store/dledger/entries/{1:020d}", size_at, 6)
    assert await member.take(tail) and member.store.log.raw_end == before_last
    assert (log.last, log.term(3)) == (3, 2)


def flip_slot(fs: MemoryFiles, path: str) -> range:
    fs.flip(path, (HEAD_SLOTS + 4) * SLOT_BYTES)
    return range(5, 6)


def lose_page(fs: MemoryFiles, path: str) -> range:
    fs.cold.mark(path, PAGE_BYTES, PAGE_BYTES)
    fs.make_unreadable(path, PAGE_BYTES, PAGE_BYTES)
    # An entry is judged by the slot before it, too.
    return range(PAGE_BYTES // SLOT_BYTES - 1, 2 * PAGE_BYTES // SLOT_BYTES)


@pytest.mark.parametrize(("damage", "slots"), [(flip_slot, 64), (lose_page, 3 * PAGE_BYTES // SLOT_BYTES)])
async def test_a_start_finds_damaged_slots_of_a_full_file_among_the_entries_since_the_checkpoint(
    damage: Callable[[MemoryFiles, str], range], slots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_disk, "open_index", lambda fs, root: EntryIndex(fs, f"{root}/dledger/entries", slots))
    entries = entries_of(leader(*(b"%d" % number for number in range(slots))))
    member = await Member(MemoryFiles()).start()
    assert await member.take(AppendRequest("n1", "n0", 1, 0, 0, entries, 0))
    await member.disk.flush()
    assert [file.count for file in member.disk.index.files] == [slots - HEAD_SLOTS, 3]
    left = member.fs.killed()
    expected = damage(left, f"/store/dledger/entries/{1:020d}")
    again = Member(left)
    damaged: list[int] = []
    again.disk.on_damaged_at_start = damaged.extend
    await again.start()
    assert damaged == [*expected]


async def cleaned(entries: tuple[RaftEntry, ...]) -> Member:
    """A member that has these entries, and has removed the first file of its log."""
    member = await Member(MemoryFiles()).start()
    assert await member.take(AppendRequest("n1", "n0", 1, 0, 0, entries, 0))
    await member.disk.end_following(member.copying)
    await member.disk.flush()
    assert clean(member.fs, member.store, 1) == 1
    return member


async def test_members_that_have_removed_a_message_still_mend_the_slot_of_its_entry() -> None:
    """The slot says where the log begins, for a member that joins."""
    entries = entries_of(leader(*(b"%d" % number for number in range(60))))
    damaged, other = [await cleaned(entries) for _ in range(2)]
    last_lost = other.disk.entries.base
    damaged.fs.flip(damaged.disk.index.files[0].path, (HEAD_SLOTS + last_lost - 1) * SLOT_BYTES + 19)
    assert damaged.disk.entries.base == last_lost - 1 and await damaged.disk.damage_of(last_lost)
    found = await other.disk.whole(last_lost)
    assert found is not None
    changed = found[0]._replace(term=7)
    assert not await damaged.disk.mend(last_lost, changed, b"")
    assert await damaged.disk.mend(last_lost, *found)
    assert damaged.disk.entries.base == last_lost and not await damaged.disk.damage_of(last_lost)
    assert damaged.disk.entries.position == damaged.store.log.raw_end


async def test_a_start_beside_very_many_damaged_slots_reads_no_message_that_was_removed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slots = 130
    monkeypatch.setattr(log_disk, "open_index", lambda fs, root: EntryIndex(fs, f"{root}/dledger/entries", slots))
    monkeypatch.setattr(entry_index, "LOOK_ENTRIES", 4)
    monkeypatch.setattr(entry_index, "MOST_LOOKS", 16)
    entries = entries_of(leader(*(b"%d" % number for number in range(slots))))
    member = await cleaned(entries[:60])
    await member.disk.follow(member.copying)
    assert await member.take(AppendRequest("n1", "n0", 1, 60, 1, entries[60:], 0))
    await member.disk.flush()
    left = member.fs.killed()
    for number in range(45, 91):
        left.flip(f"/store/dledger/entries/{1:020d}", (HEAD_SLOTS + number - 1) * SLOT_BYTES + 3)
    again = Member(left)
    damaged: list[int] = []
    again.disk.on_damaged_at_start = damaged.extend
    await again.start()
    assert again.store.log.start > 0 and damaged == [*range(45, 91)]


async def test_the_state_of_a_newer_version_is_refused_with_the_reason() -> None:
    member = await Member(MemoryFiles()).start()
    left, path = member.fs.killed(), "/store/dledger/state"
    _, *rest = cbor2.loads(read_with_crc(left, path) or b"")
    write_with_crc(left, path, cbor2.dumps([99, *rest]))
    with pytest.raises(NewerVersion, match=r"/store/dledger/state was written by a newer Skylark \(version 99 of"):
        await Member(left).start()


async def test_a_tail_that_finds_no_room_to_be_saved_is_cut_later() -> None:
    member = await Member(MemoryFiles()).start()
    assert await member.take(log_of(leader(b"old"), 1))
    no_room_for_what_is_cut(member.fs)
    news = log_of(leader(b"one", b"two"), 2)
    assert not await member.take(news)
    assert await member.take(news)
    await member.disk.end_following(member.copying)
    assert bodies(member.store, "t", 0) == [b"one", b"two"]
    assert member.disk.entries.position == member.store.log.raw_end
