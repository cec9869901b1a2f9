"""Damaged files and power losses of members: no acknowledged message is missing, and none blocks the others."""

import math
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random

import pytest
import trio

from skylark.broker import cli
from skylark.broker.broker import Broker
from skylark.broker.options import BrokerOptions
from skylark.broker.replication.dledger import begin_anew, mending
from skylark.broker.replication.dledger.entry_file import HEAD_SLOTS, IN_LOG, SLOT_BYTES
from skylark.broker.replication.dledger.group_store import LostDisk
from skylark.broker.replication.stats import GROUP_PROBLEM
from skylark.broker.tasks import flush
from skylark.mqcommon.errors import StoreCorrupt
from skylark.remoting.protocol.body import KVTable
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.dialect import decode_body
from skylark.remoting.protocol.requests.brokers import GET_BROKER_RUNTIME_INFO
from skylark.remoting.raft.bootstrap import PROMOTION_LAG
from tests.broker.replication.dledger.groups import Group, group, started
from tests.broker.replication.dledger.test_damage_table import Started
from tests.broker.replication.dledger.test_group import members_request
from tests.broker.replication.sets import Running
from tests.broker.running import SMALL
from tests.support.memory_files import MemoryFiles
from tests.support.waiting import DEADLINE_S, until

BODIES = [b"%d" % number for number in range(20)]
ENTRIES = "/store/dledger/entries/00000000000000000001"
MARK, STATE = "/store/dledger/mark", "/store/dledger/state"
LOG = "/store/commitlog/00000000000000000000"


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(begin_anew, "ASK_S", 0.02)
    monkeypatch.setattr(mending, "RETRY_S", 0.02)


def flushed(member: Running) -> int:
    """The entry that the mark on the disk of ``member`` names."""
    return int.from_bytes(member.fs.read(MARK)[:8], "big")


async def until_flushed(made: Group) -> None:
    """All members have the log, and have flushed all of their entries."""
    await made.until_equal()

    def are_flushed() -> bool:
        marks = {flushed(member) for member in made.members.values()}
        promised = {int.from_bytes(member.fs.read(MARK)[12:20], "big") for member in made.members.values()}
        return len(marks) == 1 and marks == promised

    await until(are_flushed, "all entries are flushed")


async def test_a_power_loss_of_all_with_async_flush_takes_nothing_from_before_the_last_flush() -> None:
    random = Random(5)
    async with started(flush_interval_commit_log=20) as made:
        leader = await made.leader()
        await leader.send("topic", *BODIES)
        await until_flushed(made)
        for _ in range(1):
            for name, member in list(made.members.items()):
                left = member.fs.crash(random)
                member.scope.cancel()
                made.members[name].fs = left
            disks = {name: member.fs for name, member in made.members.items()}
            for name, disk in disks.items():
                await made.start(name, disk)
            leader = await made.leader()
            assert await leader.has("topic", len(BODIES)) == BODIES


async def killed_after(made: Group, *bodies: bytes) -> dict[str, MemoryFiles]:
    """The disks of all members, killed at once when they all had acknowledged ``bodies``."""
    leader = await made.leader()
    await leader.send("topic", *bodies)
    await made.until_equal()
    return {name: member.kill() for name, member in made.members.items()}


def cut_entries(fs: MemoryFiles, count: int) -> None:
    """Let the last ``count`` slots be gone."""
    slots = [fs.read_part(ENTRIES, at, SLOT_BYTES) for at in range(0, 300 * SLOT_BYTES, SLOT_BYTES)]
    used = max(number for number, slot in enumerate(slots) if any(slot))
    for number in range(used - count, used + 1):
        for at in range(SLOT_BYTES):
            byte = slots[number][at]
            for bit in range(8):
                if byte >> bit & 1:
                    fs.flip(ENTRIES, number * SLOT_BYTES + at, bit)


def flip_slot(fs: MemoryFiles) -> None:
    fs.flip(ENTRIES, (HEAD_SLOTS + 5) * SLOT_BYTES + 3)


def cut_tail(fs: MemoryFiles) -> None:
    cut_entries(fs, 8)


def cut_tail_without_mark(fs: MemoryFiles) -> None:
    cut_entries(fs, 8)
    fs.remove(MARK)


def cut_tail_and_flip_mark(fs: MemoryFiles) -> None:
    cut_entries(fs, 8)
    fs.flip(MARK, 7)
    fs.flip(MARK, 4096 + 7)


def remove_entries(fs: MemoryFiles) -> None:
    fs.remove(ENTRIES)


def flip_state(fs: MemoryFiles) -> None:
    fs.flip(STATE, 9)


def remove_state(fs: MemoryFiles) -> None:
    fs.remove(STATE)


# What each does to the files alone, test_damage_table.py shows.
DAMAGES = [
    cut_tail_without_mark,
    *(pytest.param(each, marks=pytest.mark.nightly) for each in (
        flip_slot, cut_tail, cut_tail_and_flip_mark, remove_entries, flip_state, remove_state
    )),
]  # fmt: skip


@asynccontextmanager
async def starting(made: Group, name: str, fs: MemoryFiles) -> AsyncIterator[None]:
    """The member starts meanwhile, and has started in the end."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(made.start, name, fs)
        yield


@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_damaged_member_is_not_elected_and_joins_anew_when_the_others_are_a_majority(
    damage: Callable[[MemoryFiles], None], caplog: pytest.LogCaptureFixture
) -> None:
    async with started() as made:
        disks = await killed_after(made, *BODIES)
        made.members.clear()
        damage(disks["n0"])
        files = kept(disks["n0"])
        async with starting(made, "n0", disks["n0"]):
            await made.start("n1", disks["n1"])
            await until(lambda: "waits until the other members are a majority" in caplog.text, "it waits")
            assert kept(disks["n0"]) == files
            await made.start("n2", disks["n2"])
        leader = await made.leader()
        await leader.send("topic", b"later")
        for member in made.members.values():
            assert await member.has("topic", len(BODIES) + 1) == [*BODIES, b"later"]
        assert made.members["n0"].fs.exists(f"/store/{_aside(disks['n0'])}/commitlog")


def flip_flushed_body(fs: MemoryFiles) -> None:
    fs.flip(LOG, fs.read(LOG).index(b"flushed body"))


def remove_journal(fs: MemoryFiles) -> None:
    (path,) = [path for path in fs.paths() if "metadata.journal." in path]
    fs.remove(path)


@pytest.mark.parametrize("damage", [flip_flushed_body, pytest.param(remove_journal, marks=pytest.mark.nightly)])
async def test_a_member_that_an_ordinary_start_would_refuse_joins_anew(
    damage: Callable[[MemoryFiles], None], caplog: pytest.LogCaptureFixture
) -> None:
    bodies = [b"flushed body" * 9, *BODIES]
    async with started(flush_interval_commit_log=20) as made:
        leader = await made.leader()
        await leader.send("topic", *bodies)
        await until_flushed(made)
        (name, member), *_ = [each for each in made.members.items() if each[1] is not leader]
        left = member.kill()
        damage(left)
        again = await made.start(name, left)
        assert await again.has("topic", len(bodies)) == bodies
        if "the disk has changed the block" in caplog.text:
            return  # a checkpoint has come in time: its sum of the last block is enough to mend that
        assert again.fs.exists(f"/store/{_aside(left)}/commitlog") and "joins them anew by itself" in caplog.text


async def test_a_property_that_has_changed_since_the_last_checkpoint_is_mended_by_the_start(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No CRC of RocketMQ covers it; the entry's does. Its block is not full, so no sums of blocks are compared."""
    monkeypatch.setattr(flush, "CHECKPOINT_INTERVAL_S", math.inf)
    monkeypatch.setattr(mending, "RETRY_UNMENDED_S", 0.02)
    async with started(flush_interval_commit_log=20) as made:
        leader = await made.leader()
        await leader.send("topic", *BODIES)
        await until_flushed(made)
        damaged = made.others(leader)[0]
        (name,) = [name for name, member in made.members.items() if member is damaged]
        left = damaged.kill()
        right = left.read(LOG)
        # A byte of the properties, which end the first message of the log.
        size = int.from_bytes(right[:4], "big")
        left.flip(LOG, size - 2)
        again = await made.start(name, left)
        await until(lambda: "is whole again" in caplog.text, "the entry is mended")
        assert again.fs.read(LOG)[: len(right)] == right and "since the last checkpoint" in caplog.text


def kept(fs: MemoryFiles) -> dict[str, bytes]:
    """The files that the member must not change before it may join anew."""
    return {path: fs.read(path) for path in fs.paths() if "/dledger/" in path or "/commitlog/" in path}


def _aside(fs: MemoryFiles) -> str:
    (name,) = [name for name in fs.listdir("/store") if name.startswith("lost-")]
    return name


async def test_a_damaged_member_and_one_that_was_away_form_no_group(caplog: pytest.LogCaptureFixture) -> None:
    """Together they are a majority, and none of them has what the third one and the damaged one acknowledged."""
    async with started() as made:
        leader = await made.leader()
        damaged, away = [name for name, member in made.members.items() if member is not leader]
        (whole,) = [name for name, member in made.members.items() if member is leader]
        behind = made.members[away].kill()
        await leader.send("topic", *BODIES)
        await made.until_equal()
        disks = {name: made.members[name].kill() for name in (damaged, whole)}
        made.members.clear()
        cut_tail_without_mark(disks[damaged])
        async with starting(made, damaged, disks[damaged]):
            await made.start(away, behind)
            await until(lambda: "waits until the other members are a majority" in caplog.text, "it waits")
            await made.start(whole, disks[whole])
        await (await made.leader()).send("topic", b"later")
        for member in made.members.values():
            assert await member.has("topic", len(BODIES) + 1) == [*BODIES, b"later"]


def flip_late_slot(fs: MemoryFiles) -> None:
    used = len(fs.read(ENTRIES).rstrip(b"\0")) // SLOT_BYTES
    fs.flip(ENTRIES, (used - 10) * SLOT_BYTES + 3)


def flip_late_body(fs: MemoryFiles) -> None:
    fs.flip(LOG, fs.read(LOG).index(b"after 10 "))


def lost_power(fs: MemoryFiles, flip: Callable[[MemoryFiles], None]) -> MemoryFiles:
    """What a power loss and a flip leave. The power loss takes the mark of the flush, which else tells of damage."""
    for seed in range(50):
        left = fs.crash(Random(seed))
        flip(left)
        if Started(left.killed()).outcome != "refused":
            return left
    raise AssertionError("no power loss takes the mark")


# What each does to the member alone, test_damage_table.py shows.
@pytest.mark.nightly
@pytest.mark.parametrize("flip", [flip_late_slot, flip_late_body])
async def test_one_bit_in_what_was_written_since_the_last_mark_loses_nothing_after_a_power_loss(
    flip: Callable[[MemoryFiles], None], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A member must not take a flipped bit for a torn tail: with one that was away it would be a majority."""
    late = [b"after %d " % number * 3 for number in range(20)]
    monkeypatch.setattr(flush, "CHECKPOINT_INTERVAL_S", math.inf)
    async with started(flush_disk_type="SYNC_FLUSH", flush_interval_commit_log=1_000_000) as made:
        leader = await made.leader()
        damaged, away = [name for name, member in made.members.items() if member is not leader]
        (whole,) = [name for name, member in made.members.items() if member is leader]
        await leader.send("topic", *BODIES)
        await made.until_equal()
        behind = made.members[away].kill()
        await leader.send("topic", *late)
        await made.until_equal()
        left = await trio.to_thread.run_sync(lost_power, made.members[damaged].fs, flip)
        made.members[damaged].scope.cancel()
        disks = {whole: made.members[whole].kill()}
        made.members.clear()
        async with starting(made, damaged, left):
            await made.start(away, behind)
            await until(lambda: "waits until the other members are a majority" in caplog.text, "it waits")
            await made.start(whole, disks[whole])
        await (await made.leader()).send("topic", b"later")
        for member in made.members.values():
            assert await member.has("topic", len(BODIES) + len(late) + 1) == [*BODIES, *late, b"later"]


async def damaged_disk(made: Group) -> MemoryFiles:
    """The damaged disk of a member that was alone in its group."""
    member = await made.start("n0", d_leger_peers=made.peers_of("n0"))
    await (await made.leader()).send("topic", *BODIES)
    left = member.kill()
    flip_slot(left)
    return left


def member_of(made: Group, fs: MemoryFiles) -> Broker:
    options = {"enable_dleger_commit_log": True, "d_leger_peers": made.peers, "d_leger_self_id": "n0"}
    return Broker(BrokerOptions(**{**SMALL, "mapped_file_size_commit_log": 16 * 1024, **options}), fs=fs)


async def test_a_member_of_a_group_without_a_majority_beside_it_is_refused() -> None:
    async with group("n0") as made:
        left = await damaged_disk(made)
        with pytest.raises(LostDisk, match="put a copy of the store back"):
            await member_of(made, left).run()
        flip_slot(left)  # back again
        remove_journal(left)
        with pytest.raises(StoreCorrupt, match="broker rebuildMetadata"), trio.fail_after(DEADLINE_S):
            await member_of(made, left).run()


@pytest.mark.parametrize("end", ["SIGTERM", "cancel"])
async def test_a_member_that_waits_to_join_anew_stops_at_once(end: str, caplog: pytest.LogCaptureFixture) -> None:
    async with group() as made:
        left = await damaged_disk(made)
        files, served = kept(left), list[str]()
        # The second one finds the ports and the store free.
        for _ in range(2):
            caplog.clear()
            stopping = trio.Event()
            with trio.fail_after(DEADLINE_S):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(cli._serve, member_of(made, left), stopping, served.append)
                    await until(lambda: "waits until the other members are a majority" in caplog.text, "it waits")
                    if end == "cancel":
                        nursery.cancel_scope.cancel()
                    else:
                        stopping.set()
        assert served == [] and kept(left) == files


# --- entries that are damaged while their member runs


def flip_bytes(member: Running) -> None:
    """Damage the log, in the first message."""
    member.fs.flip(LOG, member.fs.read(LOG).index(b"first message"))


def flip_term(member: Running) -> None:
    """Damage the side file, in the slot of the first message."""
    slots = member.fs.read(ENTRIES)
    at = next(
        at
        for at in range(HEAD_SLOTS * SLOT_BYTES, len(slots), SLOT_BYTES)
        if slots[at + 29] == IN_LOG and slots[at : at + 8] == bytes(8)
    )
    member.fs.flip(ENTRIES, at + 15, 2)


@pytest.mark.parametrize("flip", [flip_bytes, flip_term])
async def test_a_leader_gets_a_damaged_entry_from_another_member_before_it_sends_it(
    flip: Callable[[Running], None], caplog: pytest.LogCaptureFixture
) -> None:
    async with started() as made:
        leader = await made.leader()
        await leader.send("topic", b"first message", *BODIES)
        whole = await made.until_equal()
        flip(leader)
        empty = next(name for name, member in made.members.items() if member is not leader)
        made.members[empty].kill()
        new = await made.start(empty, MemoryFiles())
        assert await new.has("topic", 1 + len(BODIES)) == [b"first message", *BODIES]
        assert (await made.until_equal()).startswith(whole)
        assert "is whole again" in caplog.text


def damage_all_files(member: Running) -> None:
    """One bit in each third slot, each in another byte; in two messages; in the head, the mark and the state."""
    fs = member.fs
    slots, log = fs.read(ENTRIES), fs.read(LOG)
    numbers = range(HEAD_SLOTS, len(slots) // SLOT_BYTES)
    used = [number for number in numbers if any(slots[number * SLOT_BYTES : (number + 1) * SLOT_BYTES])]
    for count, number in enumerate(used[::3]):
        fs.flip(ENTRIES, number * SLOT_BYTES + count * 5 % 30, count % 8)
    for body in (b"first message", b"second message"):
        fs.flip(LOG, log.index(body))
    for path, at in ((ENTRIES, 17), (MARK, 7), (MARK, 4096 + 7), (STATE, 9)):
        fs.flip(path, at)


@pytest.mark.parametrize("who", ["leader", "follower"])
async def test_a_member_that_runs_with_all_of_its_files_damaged_loses_nothing(
    who: str, caplog: pytest.LogCaptureFixture
) -> None:
    bodies = [b"first message", *BODIES, b"second message"]
    async with started() as made:
        leader = await made.leader()
        await leader.send("topic", *bodies)
        await made.until_equal()
        damaged = leader if who == "leader" else made.others(leader)[0]
        damage_all_files(damaged)
        await leader.send("topic", b"later")
        (name,) = [name for name, member in made.members.items() if member is damaged]
        if damaged is not leader:
            await members_request(leader, "transfer", node=name)
            assert await made.leader() is damaged
        # It has to send all of its entries.
        empty = next(each for each in made.members if each != name)
        made.members[empty].kill()
        new = await made.start(empty, MemoryFiles())
        assert await new.has("topic", len(bodies) + 1) == [*bodies, b"later"]
        assert "is whole again" in caplog.text
        await made.until_equal()
        # The head of its file of entries, and perhaps its state, are damaged still.
        await made.start(name, damaged.kill())
        await (await made.leader()).send("topic", b"last")
        for member in made.members.values():
            assert await member.has("topic", len(bodies) + 2) == [*bodies, b"later", b"last"]
        assert f"{name} waits until the other members are a majority" in caplog.text or "joins them anew" in caplog.text


async def test_a_damaged_entry_that_no_member_has_is_shown_to_the_administrator(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with started() as made:
        leader = await made.leader()
        # A member that lacks few entries is a voter before it has them.
        await leader.send("topic", b"first message", *map(str.encode, map(str, range(PROMOTION_LAG + 10))))
        await made.until_equal()
        empty, other = [name for name, member in made.members.items() if member is not leader]
        flip_bytes(leader)
        flip_bytes(made.members[other])
        made.members[empty].kill()
        await made.start(empty, MemoryFiles())
        members = [leader, made.members[other]]

        async def problems() -> list[str]:
            tables = [await runtime_info(member) for member in members]
            return [table.get(GROUP_PROBLEM, "") for table in tables]

        async def is_shown() -> bool:
            return any("no other member has given it" in each for each in await problems())

        await until(is_shown, "the leader says what is damaged")
        assert "this leader steps aside" in caplog.text
        waits = re.compile("is not a voter yet: .*no other member has given it")
        await until(lambda: waits.search(caplog.text) is not None, "the new member says why it waits")


async def runtime_info(member: Running) -> dict[str, str]:
    answer = await member.client.invoke(member.addr, Command(GET_BROKER_RUNTIME_INFO.code), 5_000)
    return decode_body(KVTable, answer.body, answer.codec).table
