"""Blocks of a store on a disk that lies: what the healer finds out, writes, and leaves alone."""

import errno
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from zlib import crc32

import pytest
import trio
import trio.testing

from skylark.broker.healing import healer as healer_module
from skylark.broker.healing.figures import HealingFigures
from skylark.broker.healing.healer import LogHealer, no_entries
from skylark.broker.healing.judgement import Copy, EntrySum
from skylark.broker.healing.rewriting import LogBlocks
from skylark.broker.store.queue.entry import BLANK_SIZE, ENTRY
from skylark.broker.store.store import MessageStore
from skylark.broker.store.sums.block_sums import Block, BlockSum
from tests.broker.store.support import open_store, put
from tests.support.memory_files import MemoryFiles
from tests.support.waiting import until

FILE = 4096
PATH = f"/store/commitlog/{0:020d}"
BLOCK = Block(0, FILE)


@dataclass
class Others:
    """Replicas in memory: each has a log, its sums, and perhaps a limit."""

    logs: list[bytes] = field(default_factory=list)
    sums: list[BlockSum | None] = field(default_factory=list)
    asked: int = 0
    gate: trio.Event | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()

    async def copies(self, block: Block, own: Copy, own_sum: BlockSum | None) -> list[Copy]:
        self.asked += 1
        if self.gate is not None:
            await self.gate.wait()
        found: list[Copy] = []
        for number, log in enumerate(self.logs):
            sum_ = self.sums[number] if number < len(self.sums) else None
            found.append(Copy(f"peer-{number}", own.start, log[own.start : own.start + len(own.data)], sum_))
        return found


@dataclass
class Healing:
    """A store of several files, its disk, and its healer, which runs."""

    fs: MemoryFiles
    store: MessageStore
    others: Others
    healer: LogHealer
    log: bytes

    def seal(self, *, is_attested: bool = True) -> None:
        self.store.log.sums.seal(BLOCK, crc32(self.log[:FILE]), is_attested=is_attested)

    def damage(self, at: int, data: bytes = b"\xff\xff", *, in_memory: bool = True, on_disk: bool = True) -> None:
        self.fs.damage(PATH, at, data, in_memory=in_memory, on_disk=on_disk)

    @property
    def is_right(self) -> bool:
        right = self.log[:FILE]
        return self.fs.read(PATH) == right == self.fs.read_direct(PATH, 0, FILE)

    @property
    def kept(self) -> list[str]:
        return self.fs.listdir("/store/damaged")


@asynccontextmanager
async def healing(
    disk: MemoryFiles | None = None, entries: Callable[[Block], Sequence[EntrySum]] = no_entries
) -> AsyncIterator[Healing]:
    fs = disk or MemoryFiles()
    store = open_store(fs)
    if disk is None:
        for number in range(30):
            put(store, "topic", 0, bytes([97 + number % 26]) * 200, b"KEYS\x01k\x02")
        store.close()
        store = open_store(fs)  # all of it is known to be on disk
    log = b"".join(fs.read(f"/store/commitlog/{name}") for name in fs.listdir("/store/commitlog"))
    others = Others()
    made = LogHealer(store, LogBlocks(fs, "/store"), others, trio.Lock(), trio.Lock(), entries)
    async with trio.open_nursery() as nursery:
        await nursery.start(made.run)
        yield Healing(fs, store, others, made, log)
        nursery.cancel_scope.cancel()
    store.close()


async def test_with_an_attested_sum_one_replica_gives_the_bytes_and_the_bad_ones_are_kept(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    async with healing() as one:
        one.seal()
        told: list[Block] = []
        one.healer.on_repaired.append(told.extend)
        at = one.log.index(b"KEYS") + 5
        one.damage(at)
        one.others.logs = [one.log]
        assert await one.healer.heal([BLOCK]) and one.is_right
        assert one.healer.figures == HealingFigures(blocks_repaired=1, bytes_repaired=2, bad_in_cycle=1)
        assert told == [BLOCK] and one.kept == [f"{0:020d}.disk"]
        assert one.fs.read(f"/store/damaged/{0:020d}.disk")[at : at + 2] == b"\xff\xff"
    assert [r.getMessage() for r in caplog.records] == [
        f"the block at 0 of the log ({PATH}) was damaged, and is right again: peer-0 matches the attested sum;"
        f" wrong bytes: 2; the bad block: /store/damaged/{0:020d}.disk"
    ]


async def test_a_block_that_is_right_is_not_touched_and_nobody_is_asked() -> None:
    async with healing() as one:
        one.seal()
        before = one.fs.calls["sync"]
        assert await one.healer.heal([BLOCK])
        assert one.healer.figures == HealingFigures() and not one.others.asked and one.fs.calls["sync"] == before


async def test_a_log_that_was_cut_before_the_write_keeps_its_bytes() -> None:
    """Messages may have been appended since where the block was read."""
    async with healing() as one:
        one.seal()
        one.damage(700)
        one.others.logs = [one.log]
        before, healed = one.fs.read(PATH), list[bool]()

        async def heal() -> None:
            healed.append(await one.healer.heal([BLOCK]))

        async with trio.open_nursery() as nursery, one.healer._writing:
            nursery.start_soon(heal)
            await until(lambda: one.healer._writing.statistics().tasks_waiting == 1)
            one.store.log.cuts += 1
        assert healed == [False] and one.fs.read(PATH) == before
        assert await one.healer.heal([BLOCK]) and one.is_right


async def test_damage_in_memory_only_ends_without_a_write() -> None:
    async with healing() as one:
        one.seal()
        one.damage(700, on_disk=False)
        assert not one.is_right
        before = one.fs.calls["sync"]
        assert await one.healer.heal([BLOCK]) and one.is_right
        assert one.healer.figures == HealingFigures(memory_only=1) and not one.others.asked
        assert one.fs.calls["sync"] == before and not one.kept


async def test_messages_of_a_repaired_block_get_the_entries_that_are_blank() -> None:
    async with healing() as one:
        one.seal()
        queue = one.store.queues.get("topic", 0)
        before = queue.entry(2)
        assert queue.replace_entries(2, ENTRY.pack(*before), ENTRY.pack(0, BLANK_SIZE, 0)) == [2]
        one.damage(before[0] + 30)
        one.others.logs = [one.log]
        assert await one.healer.heal([BLOCK]) and one.is_right
        assert queue.entry(2) == before


async def test_damage_on_disk_only_is_written_again_from_memory() -> None:
    async with healing() as one:
        one.seal()
        one.damage(700, in_memory=False)
        assert await one.healer.heal([BLOCK]) and one.is_right
        assert one.healer.figures.blocks_repaired == 1 and not one.others.asked


async def test_an_unstable_disk_is_counted_and_has_no_vote() -> None:
    async with healing() as one:
        one.fs.make_unstable(PATH, 100, 4)
        one.damage(100, b"abcd", on_disk=False)
        one.others.logs = [one.log]
        # Two replicas and no sum: the one that is sure of its bytes is alone, and the records here are not sound.
        assert await one.healer.heal([BLOCK]) and one.is_right
        assert (one.healer.figures.unstable, one.healer.figures.blocks_repaired) == (1, 1)


async def test_sectors_that_cannot_be_read_are_written_whole() -> None:
    async with healing() as one:
        one.seal()
        one.fs.make_unreadable(PATH, 1024, 1024)
        one.fs.cold.mark(PATH)
        one.others.logs = [one.log]
        assert await one.healer.heal([BLOCK]) and one.is_right
        assert (one.healer.figures.unreadable, one.healer.figures.blocks_repaired) == (1, 1)


async def test_a_file_whose_sectors_cannot_be_written_is_made_anew() -> None:
    async with healing() as one:
        one.seal()
        one.fs.make_unreadable(PATH, 1024, 512, stuck=True)
        one.fs.cold.mark(PATH)
        one.others.logs = [one.log]
        assert await one.healer.heal([BLOCK]) and one.is_right
        assert (one.healer.figures.files_made_anew, one.healer.figures.blocks_repaired) == (1, 1)
        assert one.store.log.copy(0, FILE) == one.log[:FILE], "readers see the new file"
        assert [name for name in one.fs.listdir("/store/commitlog") if "tmp" in name] == []


async def test_the_file_that_is_written_to_is_not_made_anew() -> None:
    async with healing() as one:
        last = one.store.log.chain.segments[-1]
        block = one.store.log.sums.block_at(last.base)
        one.fs.make_unreadable(last.path, 0, 512, stuck=True)
        one.fs.cold.mark(last.path)
        one.others.logs = [one.log]
        assert not await one.healer.heal([block])
        assert one.healer.figures.damaged == {last.base} and not one.healer.figures.files_made_anew


async def test_a_full_disk_or_a_failed_write_leaves_the_block_to_the_next_try(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(healer_module, "RETRY_S", 0.0)
    async with healing() as one:
        one.seal()
        one.damage(700)
        one.others.logs = [one.log]
        one.fs.faults.fail("sync", times=9, code=errno.ENOSPC, path_part="commitlog")
        assert not await one.healer.heal([BLOCK])
        assert one.healer.figures.damaged == {0} and one.healer.figures.unrepaired == 1
        one.fs.faults.clear()
        assert await one.healer.heal([BLOCK]) and one.is_right
        assert one.healer.figures.damaged == set()
    assert "is damaged, and is not repaired: it cannot be written" in caplog.text


async def test_of_two_replicas_without_a_sum_nothing_is_overwritten_and_all_copies_are_kept(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(healer_module, "RETRY_S", 0.0)
    async with healing() as one:
        at = one.log.index(b"KEYS") + 5
        one.damage(at, b"x")
        one.others.logs = [one.log]
        for _ in range(2):
            assert not await one.healer.heal([BLOCK])
        assert one.fs.read(PATH)[at] == ord("x") and one.fs.read_direct(PATH, at, 1) == b"x"
        assert one.kept == [f"{0:020d}.disk", f"{0:020d}.peer-0"]
        one.others.logs = [one.log, one.log]
        assert await one.healer.heal([BLOCK]) and one.is_right
    assert [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR] == [
        f"the block at 0 of the log is damaged, and is not repaired: bytes differ at {at}, 2 versions are sound and"
        " there is no majority"
    ]


async def test_a_body_that_does_not_match_its_crc_is_mended_from_one_replica_without_a_sum() -> None:
    async with healing() as one:
        one.damage(one.log.index(b"bbbb"))
        one.others.logs = [one.log]
        assert await one.healer.heal([BLOCK]) and one.is_right


async def test_more_of_the_log_is_read_only_for_records_that_reach_beyond_what_was_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(healer_module, "MARGINS", (10, 400))
    async with healing() as one:
        block = Block(1024, 512)  # records are larger than the first margin
        one.others.logs = [one.log]
        one.damage(one.log.index(b"KEYS", 1024) - 100)
        assert await one.healer.heal([block]) and one.is_right
        assert one.others.asked == 2
    async with healing() as one:
        one.others.logs = [one.log]
        one.damage(one.log.index(b"KEYS", 1024) + 5, b"x")
        monkeypatch.setattr(healer_module, "MARGINS", (400, 1000))
        assert not await one.healer.heal([block])
        assert one.others.asked == 1


async def test_when_all_copies_are_bad_that_is_said_and_nothing_is_invented(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(healer_module, "RETRY_S", 0.0)
    for is_sealed in (True, False):
        async with healing() as one:
            if is_sealed:
                one.seal()
            one.damage(one.log.index(b"bbbb"))
            bad = one.fs.read(PATH)
            one.others.logs = [bad + one.log[FILE:]] * 2
            assert not await one.healer.heal([BLOCK])
            assert one.fs.read(PATH) == bad == one.fs.read_direct(PATH, 0, FILE)
            assert one.healer.figures.damaged == {0}


async def test_a_block_that_was_sealed_when_it_was_damaged_is_decided_by_the_others_and_gets_another_sum() -> None:
    async with healing() as one:
        at = one.log.index(b"KEYS") + 5
        one.damage(at)
        one.store.log.sums.seal(BLOCK, crc32(one.fs.read(PATH)))
        one.others.logs = [one.log, one.log]
        assert await one.healer.heal([BLOCK]), "as far as this broker knows it is right"
        assert one.fs.read(PATH)[at : at + 2] == b"\xff\xff"
        one.healer.suspect([BLOCK])
        assert await one.healer.heal([BLOCK]) and one.is_right
        assert one.store.log.sums.sum_of(BLOCK) == BlockSum(crc32(one.log[:FILE]), False)


async def test_a_broker_alone_says_that_a_block_is_wrong_and_keeps_its_sum() -> None:
    async with healing() as one:
        one.seal(is_attested=False)
        at = one.log.index(b"KEYS") + 5
        one.damage(at)
        assert not await one.healer.heal([BLOCK]), "though each record is sound"
        assert one.store.log.sums.sum_of(BLOCK) == BlockSum(crc32(one.log[:FILE]), False)
        assert one.healer.figures.damaged == {0}


async def test_a_fault_of_a_repair_is_logged_and_ends_nothing_else(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with healing() as one:
        one.damage(700)
        with monkeypatch.context() as patched:
            patched.setattr(one.others, "copies", None)
            assert not await one.healer.heal([BLOCK])
        one.seal()
        one.others.logs = [one.log]
        assert await one.healer.heal([Block(FILE, FILE)]), "another block"
    assert "the repair of the block at 0 of the log failed" in caplog.text


async def test_a_suspect_that_is_right_stays_as_it_is() -> None:
    async with healing() as one:
        one.seal()
        one.others.logs = [bytes(len(one.log))] * 2
        one.healer.suspect([BLOCK])
        assert await one.healer.heal([BLOCK]) and one.is_right and one.others.asked == 1


async def test_the_entries_of_a_group_decide() -> None:
    entries: list[EntrySum] = []
    async with healing(entries=lambda block: entries) as one:
        entries += [EntrySum(at, 512, crc32(one.log[at : at + 512])) for at in range(0, FILE, 512)]
        one.damage(one.log.index(b"KEYS") + 5)
        one.others.logs = [one.log]
        assert await one.healer.heal([BLOCK]) and one.is_right


async def test_all_who_need_a_block_wait_for_the_same_repair_which_goes_on_without_them() -> None:
    async with healing() as one:
        one.seal()
        one.damage(700)
        one.others.logs, one.others.gate = [one.log], trio.Event()
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(one.healer.heal, [BLOCK])
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        one.others.gate.set()
        assert await one.healer.heal([BLOCK]) and one.is_right
        assert (one.others.asked, one.healer.figures.blocks_repaired) == (1, 1)


async def test_a_block_that_was_removed_needs_no_repair() -> None:
    async with healing() as one:
        one.store.log.chain.retire_before(FILE)
        one.store.log.chain.remove_retired()
        assert await one.healer.heal([BLOCK]) and not one.others.asked


async def test_a_block_whose_file_somebody_has_removed_is_not_called_right(caplog: pytest.LogCaptureFixture) -> None:
    async with healing() as one:
        one.fs.remove(PATH)
        assert not await one.healer.heal([BLOCK]) and one.healer.figures.damaged == {0}
        one.fs.rename(f"/store/commitlog/{FILE:020d}", "/store/elsewhere")
        for _ in range(2):
            one.healer.suspect([Block(FILE, 512), Block(FILE + 512, 512)])
            assert not await one.healer.heal([Block(FILE, 512), Block(FILE + 512, 512)])
        assert one.healer.figures.damaged == {0, FILE, FILE + 512} and one.healer.figures.bad_in_cycle == 2
        one.healer.figures.begin_cycle()
        assert one.healer.figures.bad_in_cycle == 2
        one.fs.rename("/store/elsewhere", f"/store/commitlog/{FILE:020d}")
        one.others.logs = [one.log]
        assert await one.healer.heal([Block(FILE, FILE)])
    assert [r.getMessage() for r in caplog.records if "is missing: put it back" in r.getMessage()] == [
        f"{path} is missing: put it back from another replica, or a backup, before a restart"
        for path in (PATH, f"/store/commitlog/{FILE:020d}")
    ]


async def test_a_repair_that_takes_too_long_ends_and_is_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(healer_module, "TIMEOUT_S", 0)
    async with healing() as one:
        one.others.gate = trio.Event()
        assert not await one.healer.heal([BLOCK])
    assert "the repair of the block at 0 of the log took over 0 s" in caplog.text


async def test_bytes_after_the_end_of_the_log_are_not_written() -> None:
    async with healing() as one:
        last = one.store.log.chain.segments[-1]
        block = one.store.log.sums.block_at(last.base)
        end = one.store.log.end
        one.others.logs = [one.log[:end] + b"z" * (last.end - end)]
        one.fs.damage(last.path, one.log.index(b"KEYS", last.base) - last.base - 40, b"\xff")
        assert await one.healer.heal([block])
        assert one.fs.read(last.path) == one.log[last.base : last.end]


async def test_the_last_block_that_a_start_has_found_damaged_is_mended_by_the_sum_that_the_checkpoint_has() -> None:
    """A property of it has changed, and the other replica has a sum of the whole block: it has gone on since."""
    fs = MemoryFiles()
    store = open_store(fs)
    for _ in range(4):
        put(store, "topic", 0, bytes(500), b"KEYS\x01a key\x02")
    store.close()
    log = fs.read(PATH)
    fs.damage(PATH, log.index(b"a key"), b"x")
    async with healing(fs) as one:
        assert one.store.damaged_tail is not None
        put(one.store, "topic", 0, bytes(500))
        right = log[: one.store.damaged_tail.part.size] + one.log[one.store.damaged_tail.part.size :]
        one.others.logs = [right]
        one.others.sums = [BlockSum(crc32(right[:FILE]), True)]
        assert await one.healer.heal([BLOCK])
        assert fs.read(PATH)[: one.store.damaged_tail.part.size] == log[: one.store.damaged_tail.part.size]
        assert one.healer.figures.blocks_repaired == 1


async def test_a_power_loss_between_the_steps_leaves_a_block_that_is_repaired_again() -> None:
    left: list[MemoryFiles] = []
    async with healing() as one:
        one.seal()
        one.damage(700, bytes(2000))
        one.others.logs = [one.log]

        def before_sync(operation: str, path: str) -> None:
            if operation == "sync" and path == PATH:
                left.extend(one.fs.crash(Random(seed)) for seed in range(12))

        one.fs.before_call = before_sync
        assert await one.healer.heal([BLOCK]) and one.is_right
    assert len({fs.read(PATH) for fs in left}) > 2, "as it was, mended in part, and mended"
    for fs in left:
        async with healing(fs) as again:
            again.log = one.log
            again.seal()
            again.others.logs = [one.log]
            assert await again.healer.heal([BLOCK]) and again.is_right


def test_over_sixteen_blocks_a_cycle_the_disk_counts_as_failing() -> None:
    figures = HealingFigures(bad_in_cycle=16, damaged={0})
    assert not figures.is_disk_failing
    figures.bad_in_cycle += 1
    assert figures.is_disk_failing
    figures.begin_cycle()
    assert not figures.is_disk_failing and figures.bad_in_cycle == 1
