"""Damaged files of a DLedger member's entries: one round of checks finds the damage, and mends it."""

import errno
import math
from collections.abc import Callable, Sequence
from random import Random
from zlib import crc32

import pytest

from skylark.broker.healing import entry_files
from skylark.broker.healing.entry_files import EntryFiles
from skylark.broker.healing.other_files import CheckedFile
from skylark.broker.replication.dledger import log_disk, mending
from skylark.broker.replication.dledger.entry_file import HEAD, HEAD_SLOTS, INLINE, SLOT_BYTES, IndexedEntry
from skylark.broker.replication.dledger.entry_index import EntryIndex
from skylark.broker.replication.stats import GROUP_PROBLEM
from skylark.mqcommon.raft.messages import APPLICATION
from skylark.remoting.net.call import Remote, call
from skylark.remoting.protocol.requests.scrubs import SCRUB, SCRUB_STATUS, ScrubRequestHeader, ScrubStatus
from tests.broker.replication.dledger.groups import started
from tests.broker.replication.dledger.test_damage import runtime_info
from tests.broker.replication.dledger.test_log_disk import Member
from tests.broker.replication.sets import Running
from tests.support.amounts import share_of
from tests.support.bad_medium import SECTOR_BYTES
from tests.support.memory_files import MemoryFiles
from tests.support.waiting import until

FILE = f"/store/dledger/entries/{1:020d}"
SLOTS, COUNT = 256, 240
BODIES = [b"%d" % number for number in range(20)]


@pytest.fixture(autouse=True)
def _small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_disk, "open_index", lambda fs, root: EntryIndex(fs, f"{root}/dledger/entries", SLOTS))
    monkeypatch.setattr(entry_files, "SPAN_ENTRIES", 50)


class Checked:
    """A member with the checks of its files of entries. Another member has the entries that it had at first."""

    def __init__(self, member: Member) -> None:
        self.fs = member.fs
        self.disk = member.disk
        self.index = index = member.disk.index
        assert member.disk.entries.base == 0
        entries = [(number, index.entry(number)) for number in range(index.first, index.last + 1)]
        self.others = {number: (entry, index.data(number, entry.size)) for number, entry in entries}
        self.asked: list[int] = []
        self.files = EntryFiles(member.fs, member.disk, self.mend)

    async def mend(self, indexes: Sequence[int]) -> str:
        self.asked += indexes
        for number in indexes:
            *_, around = self.index.damaged_around(number)
            around = around or range(number, number + 1)
            found = [self.others[each] for each in around if each in self.others]
            if len(found) < len(around) or not await self.disk.mend_slots(around[0], found):
                return "no other member has given it"
        await self.disk.sync_entries()
        return ""

    async def round(self) -> list[CheckedFile]:
        """One round of checks; returns those that found something."""
        found = [await job() for job in self.files.jobs(Random(1))]
        assert sum(each.size for each in found) > COUNT * SLOT_BYTES
        return [checked for checked in found if checked.problem]


async def checked(fs: MemoryFiles | None = None) -> Checked:
    """A member whose entries, with bytes of 0 to 60 bytes each, fill one file and begin a second one."""
    member = await Member(fs or MemoryFiles()).start()
    index = member.disk.index
    while index.last < COUNT:
        data = b"M" * (index.last % 20 * 3) if index.last % 4 == 0 else b""
        index.append(1, APPLICATION, INLINE, len(data), crc32(data), data)
    await member.disk.flush()
    assert len(index.files) == 2
    return Checked(member)


async def test_sound_entries_have_no_problem() -> None:
    made = await checked()
    assert await made.round() == [] and made.asked == []


async def test_each_bit_is_mended_by_another_member() -> None:
    made = await checked()
    sound = made.fs.read(FILE)
    positions = [*range(HEAD.size), *range(HEAD_SLOTS * SLOT_BYTES, len(sound.rstrip(b"\0")))]
    mended = 0
    for at in share_of(positions):
        made.fs.flip(FILE, at, at % 8)
        found = await made.round()
        if not found:
            # The bytes after the fields of a slot, and after an entry's bytes, mean nothing.
            assert sound[at] == 0, at
            made.fs.flip(FILE, at, at % 8)
        assert all(each.path == FILE and each.is_mended for each in found), at
        assert await made.round() == []
        assert made.fs.read(FILE) == sound == made.fs.read_direct(FILE, 0, len(sound)), at
        mended += bool(found)
    assert mended > 100 and made.asked


@pytest.mark.parametrize("is_cached", [True, False])
async def test_bytes_that_either_memory_or_the_disk_has_right_need_no_other_member(is_cached: bool) -> None:
    made = await checked()
    sound = made.fs.read(FILE)
    for at in (3, HEAD.size - 1, 2 * SLOT_BYTES, 9 * SLOT_BYTES + 5, 60 * SLOT_BYTES + 25):
        made.fs.damage(FILE, at, bytes([sound[at] ^ 8]), in_memory=not is_cached, on_disk=is_cached)
        found = await made.round()
        assert [each.path for each in found if each.is_mended] == [FILE] * len(found)
        assert made.fs.read(FILE) == sound == made.fs.read_direct(FILE, 0, len(sound)), at
    assert made.asked == []


@pytest.mark.parametrize("is_cached", [True, False])
async def test_a_sector_that_cannot_be_read_is_made_again(is_cached: bool) -> None:
    made = await checked()
    sound = made.fs.read(FILE)
    made.fs.make_unreadable(FILE, 3 * SECTOR_BYTES, 1)
    if not is_cached:
        made.fs.cold.mark(FILE, 3 * SECTOR_BYTES, SECTOR_BYTES)
    found = await made.round()
    assert found and all("they cannot be read" in each.problem and each.is_mended for each in found)
    assert bool(made.asked) == (not is_cached)
    assert await made.round() == [] and made.fs.read_direct(FILE, 0, len(sound)) == sound == made.fs.read(FILE)


async def test_a_file_that_is_gone_is_made_again_from_memory() -> None:
    made = await checked()
    made.fs.remove(FILE)
    (found,) = await made.round()
    assert found == CheckedFile(FILE, found.size, "the file is missing", is_mended=True)
    assert await made.round() == [] and made.asked == []
    data = b"later"
    made.index.append(1, APPLICATION, INLINE, len(data), crc32(data), data)
    await made.disk.flush()
    again = await Member(made.fs.crash(Random(3))).start()
    assert [again.disk.index.entry(number) for number in made.others] == [each for each, _ in made.others.values()]
    assert again.disk.index.last == COUNT + 1


@pytest.mark.parametrize("far", [1, 3])
async def test_of_entries_that_differ_memory_and_the_disk_each_have_some_right(far: int) -> None:
    made = await checked()
    sound, file = made.fs.read(FILE), made.index.files[0]
    for first in (2, 8, 30):
        for number, is_cached in ((first, True), (first + far, False)):
            at = file.slot_of(number) * SLOT_BYTES + 3
            made.fs.damage(FILE, at, bytes([sound[at] ^ 8]), in_memory=is_cached, on_disk=not is_cached)
        made.others.clear()
        found = await made.round()
        assert found and all(each.is_mended for each in found), first
        assert made.fs.read(FILE) == sound == made.fs.read_direct(FILE, 0, len(sound)), first
    assert made.asked == []


async def test_an_entry_that_no_member_has_is_no_lie() -> None:
    made = await checked()
    del made.others[7]
    made.fs.flip(FILE, made.index.files[0].slot_of(7) * SLOT_BYTES + 3)
    left = made.fs.read(FILE)
    (found,) = await made.round()
    assert not found.is_mended and found.problem.endswith("no other member has given it")
    assert made.fs.read(FILE) == left


async def test_a_full_file_that_the_disk_refuses_to_write_is_reported_and_ends_nothing() -> None:
    made = await checked()
    made.fs.damage(FILE, 9 * SLOT_BYTES, b"x", in_memory=False, on_disk=True)
    made.fs.faults.fail("sync", path_part=FILE)
    (found,) = await made.round()
    assert not found.is_mended and f"{FILE} cannot be written" in found.problem
    assert await made.round() == [] == made.asked


async def test_a_check_does_not_hide_that_the_disk_refuses_to_write_new_entries() -> None:
    made = await checked()
    last = made.index.files[-1].path
    made.fs.damage(last, HEAD_SLOTS * SLOT_BYTES, b"x", in_memory=False, on_disk=True)
    made.index.append(1, APPLICATION, INLINE, 0, 0)
    made.fs.faults.fail("sync", path_part=last)
    with pytest.raises(OSError, match="injected"):
        await made.round()


async def test_without_a_descriptor_nothing_is_called_damaged() -> None:
    made = await checked()
    made.fs.faults.fail("read_direct", times=1_000, code=errno.EMFILE)
    assert await made.round() == [] == made.asked


async def test_entries_that_are_cut_while_they_are_read_are_no_problem() -> None:
    made = await checked()

    def cut(operation: str, path: str) -> None:
        if operation == "read_direct" and made.index.last == COUNT:
            made.index.forget_after(20)
            made.index.append(2, APPLICATION, INLINE, 0, 0)

    made.fs.before_call = cut
    found = [await job() for job in made.files.jobs(Random(1))]
    assert made.index.last == 21 and [each.problem for each in found if each.problem] == [] == made.asked


# --- in a group


def flip_slot(fs: MemoryFiles) -> None:
    fs.flip(FILE, (HEAD_SLOTS + 9) * SLOT_BYTES + 3)


def lose_sector(fs: MemoryFiles) -> None:
    fs.damage(FILE, SECTOR_BYTES, bytes(SECTOR_BYTES))


def lose_all_slots(fs: MemoryFiles) -> None:
    fs.damage(FILE, HEAD.size, bytes(SLOTS * SLOT_BYTES - HEAD.size))


async def scrubbed(member: Running) -> ScrubStatus:
    """The status after a scrub of the whole store."""
    remote = Remote(member.client, member.addr, 5_000)
    await call(remote, SCRUB, ScrubRequestHeader())
    found: list[ScrubStatus] = []

    async def is_done() -> bool:
        found[:] = [(await call(remote, SCRUB_STATUS)).body()]
        return not found[0].running

    await until(is_done, "the scrub is done")
    return found[0]


@pytest.mark.parametrize("damage", [flip_slot, lose_sector, lose_all_slots])
async def test_a_scrub_of_a_member_mends_its_entries(
    damage: Callable[[MemoryFiles], None], caplog: pytest.LogCaptureFixture
) -> None:
    async with started() as made:
        leader = await made.leader()
        await leader.send("topic", *BODIES)
        await made.until_equal()
        for member in (made.others(leader)[0], leader):
            sound = member.fs.read(FILE)
            damage(member.fs)
            status = await scrubbed(member)
            assert (status.problem_count, status.mended_count) == (1, 1) and FILE in status.problems[0], status
            assert member.fs.read(FILE)[: len(sound.rstrip(b"\0"))] == sound.rstrip(b"\0")
            assert (await runtime_info(member))["scrubProblemsMended"] == "1"
        assert made.members and "steps aside" not in caplog.text


async def test_the_others_are_asked_once_for_a_lost_sector_that_no_member_has(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[int] = []
    ask = mending.Mending._ask

    async def noted(made: mending.Mending, addr: str, index: int) -> tuple[IndexedEntry, bytes]:
        asked.append(index)
        return await ask(made, addr, index)

    monkeypatch.setattr(mending.Mending, "_ask", noted)
    monkeypatch.setattr(mending, "RETRY_UNMENDED_S", math.inf)
    async with started() as made:
        leader = await made.leader()
        await leader.send("topic", *BODIES)
        await made.until_equal()
        for member in made.members.values():
            lose_sector(member.fs)
        status = await scrubbed(leader)
        assert (status.problem_count, status.mended_count) == (1, 0)
        assert len(asked) == len(made.others(leader)) and len(set(asked)) == 1
        assert caplog.text.count("are asked for them") == 1


async def test_a_member_says_what_no_member_can_mend_and_mends_it_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(mending, "RETRY_UNMENDED_S", 0.02)
    async with started() as made:
        leader = await made.leader()
        await leader.send("topic", *BODIES)
        await made.until_equal()
        for member in made.members.values():
            flip_slot(member.fs)
        status = await scrubbed(leader)
        assert (status.problem_count, status.mended_count) == (1, 0)
        assert "no other member has given it" in (await runtime_info(leader))[GROUP_PROBLEM]
        assert "NOT repaired" in caplog.text and "steps aside" not in caplog.text
        flip_slot(made.others(leader)[0].fs)  # as it was

        async def is_mended() -> bool:
            return not (await runtime_info(leader)).get(GROUP_PROBLEM)

        await until(is_mended, "the entry is mended")
        assert (await scrubbed(leader)).problem_count == 0
