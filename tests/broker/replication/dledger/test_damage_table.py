"""The table of docs/operate/dledger.md: a member's files, damaged at each position, while it is down and while it runs.

Outcomes of its next start: "repaired" (it has all that it promised), "joins anew" (`LostDisk`: it must not go on as it
is), "refused" (the store is not opened, with the reason). There is no fourth one: an entry that was promised is never
missing.
A member that runs sends each entry as it was written, or has it mended first.
"""

import math
from collections.abc import AsyncIterator, Awaitable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from random import Random
from zlib import crc32

import pytest
import trio

from skylark.broker.broker import store_options
from skylark.broker.options import BrokerOptions
from skylark.broker.replication.dledger import log_disk
from skylark.broker.replication.dledger.entry_file import HEAD, SLOT_BYTES
from skylark.broker.replication.dledger.entry_index import EntryIndex
from skylark.broker.replication.dledger.group_store import LostDisk
from skylark.broker.replication.dledger.log_disk import GroupLog, LogDisk
from skylark.broker.store.checkpoint import StoreCheckpoint
from skylark.broker.store.queue.entry import BLANK_SIZE, ENTRY, ENTRY_BYTES
from skylark.broker.store.store import MessageStore
from skylark.broker.tasks import flush
from skylark.mqcommon.clock import SystemClock
from skylark.mqcommon.errors import StoreCorrupt, StoreError
from skylark.mqcommon.raft.messages import AppendRequest
from skylark.mqcommon.raft.ready import HardState, Persist
from skylark.remoting.raft.disk import Loaded
from tests.broker.replication.dledger.groups import group
from tests.broker.replication.sets import Running
from tests.broker.running import SMALL
from tests.support.memory_files import MemoryFiles

ENTRIES, MARK, STATE = (f"/store/dledger/{name}" for name in ("entries/00000000000000000001", "mark", "state"))
LOG, QUEUE = (f"/store/{name}/00000000000000000000" for name in ("commitlog", "consumequeue/topic/0"))
BODIES = [b"%d" % number * 10 for number in range(12)]
OPTIONS = BrokerOptions(**{**SMALL, "mapped_file_size_commit_log": 16 * 1024})


@pytest.fixture(autouse=True)
def _small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_disk, "open_index", lambda fs, root: EntryIndex(fs, f"{root}/dledger/entries", 128))


async def nothing() -> None:
    await trio.lowlevel.checkpoint()


async def no_cut(offset: int) -> None:
    raise AssertionError("nothing is cut")


class Started:
    """A start. ``outcome``: the column of the module's table."""

    def __init__(self, fs: MemoryFiles) -> None:
        self.entries: list[object] = []
        self.damaged: list[int] = []
        store = MessageStore(fs, store_options(OPTIONS), SystemClock(), b"\0" * 8)
        try:
            store.open(lambda line: None)
        except StoreError as error:
            assert str(error)
            self.outcome = "refused"
            return
        disk = LogDisk(fs, "/store", GroupLog(store.log, nothing, no_cut, False))
        try:
            disk.check()
        except LostDisk as error:
            assert "joins them anew" in str(error)
            self.outcome = "joins anew"
        except StoreCorrupt:
            self.outcome = "refused"
        else:
            self.outcome = "repaired"
            index = disk.index
            self.entries = [index.entry(number) for number in range(index.first, index.last + 1)]
            self.damaged = [number for number in range(index.first, index.last + 1) if trio.run(disk.damage_of, number)]
        disk.close()
        store.close()


async def run_and_kill() -> MemoryFiles:
    async with group("n0", flush_interval_commit_log=1_000_000) as made:
        member = await made.start("n0")
        await (await made.leader()).send("topic", *BODIES)
        return member.kill()


async def run_and_stop() -> MemoryFiles:
    async with group("n0") as made:
        member = await made.start("n0")
        await (await made.leader()).send("topic", *BODIES)
    return member.fs.killed()


@pytest.fixture
def killed() -> MemoryFiles:
    """The disk of a member that was killed before a flush of what it had promised."""
    return trio.run(run_and_kill)


@pytest.fixture
def stopped() -> MemoryFiles:
    """The disk of a member that was stopped."""
    return trio.run(run_and_stop)


def used(fs: MemoryFiles, path: str) -> int:
    return len(fs.read(path).rstrip(b"\0"))


def outcomes(fs: MemoryFiles, path: str, positions: Iterable[int]) -> set[str]:
    """The outcomes of one flipped bit at each of ``positions``, each on a disk of its own."""
    whole, found = Started(fs.killed()), set()
    assert whole.outcome == "repaired" and len(whole.entries) > len(BODIES)
    for at in positions:
        damaged = fs.killed()
        damaged.flip(path, at, at % 8)
        started = Started(damaged)
        assert started.outcome != "repaired" or started.entries == whole.entries, at
        if path != LOG:
            assert started.damaged == [], at
        found.add(started.outcome if not started.damaged else "repaired when a member needs it")
    return found


def check_table(fs: MemoryFiles) -> None:
    """Check the rows that are equal after a kill and after a clean stop."""
    assert outcomes(fs, ENTRIES, range(0, HEAD.size, 3)) == {"joins anew"}
    # "repaired": the padding after slots, which means nothing.
    assert outcomes(fs, ENTRIES, range(64, used(fs, ENTRIES), 23)) == {"joins anew", "repaired"}
    assert outcomes(fs, MARK, [*range(32), *range(4096, 4096 + 32)]) == {"repaired"}
    assert outcomes(fs, STATE, range(0, fs.size(STATE), 5)) == {"joins anew"}
    for path, sizes in ((ENTRIES, (0, 64, 500)), (MARK, (0, 31)), (STATE, (0, 3, 50)), (MARK, (5_000,))):
        for size in (None, *sizes):
            damaged = fs.killed()
            if size is None:
                damaged.remove(path)
            else:
                damaged.overwrite(path, fs.read(path)[:size])
            assert Started(damaged).outcome == ("repaired" if size == 5_000 else "joins anew"), (path, size)
    both = fs.killed()
    both.flip(MARK, 7)
    both.flip(MARK, 4096 + 7)
    assert Started(both).outcome == "joins anew"


def test_the_table_after_a_kill(killed: MemoryFiles) -> None:
    check_table(killed)
    # What was stored since the last checkpoint is read again.
    assert outcomes(killed, LOG, range(0, used(killed, LOG), 127)) <= {"joins anew", "refused"}


def test_the_table_after_a_clean_stop(stopped: MemoryFiles) -> None:
    check_table(stopped)
    assert outcomes(stopped, LOG, range(0, used(stopped, LOG), 127)) <= {"repaired when a member needs it", "refused"}


def test_a_power_loss_is_told_from_damage_up_to_the_last_flush(stopped: MemoryFiles, killed: MemoryFiles) -> None:
    whole = Started(stopped.killed())
    for seed in range(10):
        left = stopped.crash(Random(seed))
        assert Started(left.killed()).entries == whole.entries
        left.flip(ENTRIES, 64 + 32 * 5 + seed)
        assert Started(left).outcome == "joins anew"
        # Nothing was flushed: any part may be gone, and is no damage.
        assert Started(killed.crash(Random(seed))).outcome == "repaired"


def marked(fs: MemoryFiles) -> int:
    """How much of the log and of its entries the marks of a member's disk count."""
    entries = int.from_bytes(fs.read(MARK)[:8], "big")
    return StoreCheckpoint(fs, "/store/checkpoint").state.log_durable_to + entries


@pytest.fixture
def lost_power(monkeypatch: pytest.MonkeyPatch) -> MemoryFiles:
    """The disk of a member with SYNC_FLUSH: the power loss took its mark, which counted what it had promised."""
    monkeypatch.setattr(flush, "CHECKPOINT_INTERVAL_S", math.inf)

    async def run_and_lose_power() -> MemoryFiles:
        async with group("n0", flush_disk_type="SYNC_FLUSH", flush_interval_commit_log=1_000_000) as made:
            member = await made.start("n0")
            await (await made.leader()).send("topic", *BODIES)
            # The marks of the last flush, which else tell of damage, are lost as well.
            return min([member.fs.crash(Random(seed)) for seed in range(20)], key=marked)

    return trio.run(run_and_lose_power)


def test_one_bit_is_told_from_what_a_power_loss_tears_also_after_the_last_flush(lost_power: MemoryFiles) -> None:
    """A member with SYNC_FLUSH has promised what is on its disk, although the mark does not count it yet."""
    left, whole = lost_power, Started(lost_power.killed())
    assert whole.outcome == "repaired" and len(whole.entries) > len(BODIES)
    for path, step in ((ENTRIES, 97), (LOG, 331)):
        for at in range(HEAD.size if path == ENTRIES else 0, used(left, path), step):
            damaged = left.killed()
            damaged.flip(path, at, at % 8)
            # "repaired": the padding of a slot. The second start finds the bytes cut that were damaged.
            found = [Started(damaged) for _ in range(2)]
            assert found[0].outcome in ("joins anew", "refused") or found[0].entries == whole.entries, (path, at)
            assert found[1].outcome == found[0].outcome, (path, at)


def test_one_byte_behind_the_last_entry_is_cut_and_kept(lost_power: MemoryFiles) -> None:
    """Each bit of the slot that the next entry gets, after a power loss, when a slot there may have been promised."""
    whole = Started(lost_power.killed())
    end = -(-used(lost_power, ENTRIES) // SLOT_BYTES) * SLOT_BYTES
    for at in range(end, end + SLOT_BYTES, 5):
        damaged = lost_power.killed()
        damaged.flip(ENTRIES, at, at % 8)
        slot = damaged.read(ENTRIES)[end : end + SLOT_BYTES]
        found = [Started(damaged) for _ in range(2)]
        assert [(each.outcome, each.entries) for each in found] == [("repaired", whole.entries)] * 2, at
        assert damaged.read(f"/store/damaged/entries.{1:020d}.{end}.{crc32(slot):08x}") == slot, at
        assert used(damaged, ENTRIES) <= end, at
    damaged = lost_power.killed()
    damaged.damage(ENTRIES, end + 3, b"\1\1")
    assert Started(damaged).outcome == "joins anew", "this may be what the disk has left of an entry"


def test_what_a_power_loss_tears_is_no_damage() -> None:
    async def run_and_kill_longer() -> MemoryFiles:
        async with group("n0", flush_interval_commit_log=1_000_000) as made:
            member = await made.start("n0")
            await (await made.leader()).send("topic", *[b"%d " % number * (3 + number) for number in range(40)])
            return member.kill()

    left = trio.run(run_and_kill_longer)
    assert {Started(left.crash(Random(seed))).outcome for seed in range(12)} == {"repaired"}


# --- while the member runs


async def sent_by(disk: LogDisk) -> bytes:
    """The entries for another member that needs all of them: none while an entry is damaged."""
    index = disk.index
    entries = disk.entries.read(index.first, index.last + 1, 1 << 40)
    return await disk.encode([AppendRequest("n0", "n1", 1, index.first - 1, 0, entries, 0)])


async def outcomes_while_running(fs: MemoryFiles, disk: LogDisk, path: str, positions: Iterable[int]) -> set[str]:
    """The outcomes of one flipped bit at each of ``positions``, when another member needs all entries."""
    index, found = disk.index, set()
    numbers = range(index.first, index.last + 1)
    others = {number: entry for number in numbers if (entry := await disk.whole(number)) is not None}
    assert len(others) == len(numbers) > len(BODIES)
    whole, file = await sent_by(disk), fs.read(path)
    damaged: list[int] = []
    disk.on_damaged = damaged.append
    for at in positions:
        fs.flip(path, at, at % 8)
        outcome = "not needed"
        while (sent := await sent_by(disk)) != whole:
            outcome = "repaired"
            assert damaged, f"nothing is sent, and nobody learns why, after a flip at {at}"
            assert sent == await disk.encode([]), at
            # As mending.py does it.
            number = damaged.pop()
            assert await disk.mend(number, *others[number]), (at, number)
        if outcome == "not needed":
            fs.flip(path, at, at % 8)
        assert fs.read(path) == file, at
        found.add(outcome)
    return found


def loaded_disks(monkeypatch: pytest.MonkeyPatch) -> list[LogDisk]:
    """The disks of the members that start from now on."""
    disks: list[LogDisk] = []
    load = LogDisk.load

    def noted(disk: LogDisk) -> Awaitable[Loaded | None]:
        disks.append(disk)
        return load(disk)

    monkeypatch.setattr(LogDisk, "load", noted)
    return disks


@asynccontextmanager
async def one_that_runs(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Running, LogDisk]]:
    disks = loaded_disks(monkeypatch)
    async with group("n0", flush_interval_commit_log=1_000_000) as made:
        member = await made.start("n0")
        await (await made.leader()).send("topic", *BODIES)
        yield member, disks[-1]


async def test_entries_and_bytes_that_are_damaged_while_the_member_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    async with one_that_runs(monkeypatch) as (member, disk):
        fs = member.fs
        assert await outcomes_while_running(fs, disk, ENTRIES, range(0, HEAD.size, 3)) == {"not needed"}
        # "not needed": padding.
        slots = range(HEAD.size, used(fs, ENTRIES), 3)
        assert await outcomes_while_running(fs, disk, ENTRIES, slots) == {"repaired", "not needed"}
        assert await outcomes_while_running(fs, disk, LOG, range(0, used(fs, LOG), 127)) <= {"repaired", "not needed"}


async def test_messages_of_a_mended_entry_get_the_places_in_their_queues_that_a_start_left_blank(
    monkeypatch: pytest.MonkeyPatch, killed: MemoryFiles
) -> None:
    disks = loaded_disks(monkeypatch)
    async with group("n0") as made:
        member = await made.start("n0", killed)
        await made.leader()
        member.fs.damage(QUEUE, 5 * ENTRY_BYTES, ENTRY.pack(0, BLANK_SIZE, 0))
        assert await member.bodies("topic") == BODIES[:5] + BODIES[6:]
        index = disks[-1].index
        for number in range(index.first, index.last + 1):
            assert (entry := await disks[-1].whole(number)) is not None
            assert await disks[-1].mend(number, *entry)
        assert await member.bodies("topic") == BODIES


def test_the_mark_and_the_state_that_are_damaged_while_the_member_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A member that is killed then joins anew, unless it has written them again, the mark with each flush."""

    async def images() -> dict[str, list[MemoryFiles]]:
        found: dict[str, list[MemoryFiles]] = {"joins anew": [], "repaired": []}
        async with one_that_runs(monkeypatch) as (member, disk):
            fs, whole = member.fs, member.fs.read(STATE)
            for at in range(0, 32, 3):
                for copy in (at, 4096 + at):
                    fs.flip(MARK, copy, at % 8)
                found["joins anew"].append(fs.killed())
                await disk.flush()
                found["repaired"].append(fs.killed())
            for at in range(0, len(whole), 11):
                fs.flip(STATE, at, at % 8)
                found["joins anew"].append(fs.killed())
                await disk.write(Persist(HardState(1, "n0"), (), None, ()))
                found["repaired"].append(fs.killed())
        return found

    for outcome, left in trio.run(images).items():
        assert {Started(fs).outcome for fs in left} == {outcome}


def test_the_scrub_writes_the_state_and_the_mark_again_while_the_member_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> tuple[MemoryFiles, int]:
        async with one_that_runs(monkeypatch) as (member, disk):
            fs = member.fs
            state, mark = disk.as_small_files()
            for file in (state, mark):
                assert file.is_whole(fs.read(file.path))
                for damage in (partial(fs.flip, file.path, 9), partial(fs.remove, file.path)):
                    damage()
                    assert not fs.exists(file.path) or not file.is_whole(fs.read(file.path))
                    await file.restore()
                    assert file.is_whole(fs.read(file.path)), file.path
            older = fs.read(STATE)
            await disk.write(Persist(HardState(7, "n0"), (), None, ()))
            fs.overwrite(STATE, older)
            assert not state.is_whole(older), "the disk has lost a write"
            await state.restore()
            assert fs.read(STATE) != older
            # What is promised after the repair is in the new file, too.
            await member.send("topic", b"later")
            return fs.killed(), disk.index.last

    left, entries = trio.run(run)
    started = Started(left)
    assert started.outcome == "repaired" and len(started.entries) == entries
