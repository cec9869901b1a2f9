"""A scrub finds each damaged block within a cycle, gives sums to old blocks, keeps its pace and its place."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import Any
from zlib import crc32

import pytest
import trio
from trio.testing import MockClock

from skylark.broker.healing.figures import HealingFigures
from skylark.broker.healing.other_files import CheckedFile
from skylark.broker.healing.scrub import LEAST_CYCLE_MS, LEAST_RECORDS_BYTES_PER_S, REST_S, RETRY_S, Scrub
from skylark.broker.healing.scrub_cycle import LEAST_BYTES_PER_S
from skylark.broker.options import BrokerOptions
from skylark.broker.store.store import MessageStore, StoreOptions
from skylark.broker.store.sums.block_sums import BLOCK_BYTES, Block
from skylark.mqcommon.errors import RequestRefused
from skylark.mqcommon.polling import poll_until
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.request import Answer
from skylark.remoting.protocol.requests.scrubs import SCRUB, ScrubRequestHeader, ScrubStatus
from tests.broker.store.support import open_store, put
from tests.support.memory_files import MemoryFiles

BLOCKS_PER_FILE = 5
FILE_BYTES = BLOCKS_PER_FILE * BLOCK_BYTES
OPTIONS = StoreOptions(
    directory="/store", commitlog_segment_bytes=FILE_BYTES, consumequeue_segment_bytes=20 * 1000,
    batchqueue_segment_bytes=46 * 4, index_slots=50, index_capacity=600,
)  # fmt: skip


class WallClock:
    """A wall clock that goes with trio's."""

    def now_ms(self) -> int:
        return 1_700_000_000_000 + self.monotonic_ms()

    def monotonic_ms(self) -> int:
        return round(trio.current_time() * 1_000)


class Healer:
    """Writes the bytes of ``sound`` again, while it ``can``."""

    def __init__(self, fs: MemoryFiles, sound: dict[str, bytes]) -> None:
        self.figures = HealingFigures()
        self.can = True
        self.asked: list[Block] = []
        self._fs = fs
        self._sound = sound

    async def heal(self, blocks: Sequence[Block]) -> bool:
        self.asked += blocks
        for block in blocks:
            base = block.start // FILE_BYTES * FILE_BYTES
            path = f"/store/commitlog/{base:020}"
            if self.can:
                file = self._fs.open_map(path, FILE_BYTES, create=False)
                file.pwrite(block.start - base, memoryview(self._sound[path])[block.start - base :][: block.size])
                self.figures.damaged.discard(block.start)
            else:
                self.figures.damaged.add(block.start)
        return self.can


class Others:
    """Files beside the log, checked in rounds."""

    def __init__(self, *files: CheckedFile) -> None:
        self.files = files
        self.checked = 0

    async def check_next(self) -> CheckedFile | None:
        place = self.checked % (len(self.files) + 1)
        self.checked += 1
        return self.files[place] if place < len(self.files) else None


class Channel:
    remote, max_frame_bytes = "somebody", 1 << 20


class Scrubbed:
    """A store of some files, and what scrubs it."""

    def __init__(self, files: float = 3, *, sealed: bool = True, **options: Any) -> None:
        self.fs = MemoryFiles()
        self.store = fill(open_store(self.fs, options=OPTIONS), files)
        self.sound = {path: self.fs.read(path) for path in self.fs.paths() if "/commitlog/" in path}
        self.healer = Healer(self.fs, self.sound)
        self.others = Others()
        self.is_held_up = False
        self.options = BrokerOptions(store_path_root_dir="/store", **options)
        self.sealed_to: Callable[[], int] = lambda: self.store.log.flushed
        if sealed:
            seal(self.store)
        self.scrub = self.new_scrub()

    def new_scrub(self, first_file: int = 0) -> Scrub:
        return Scrub(
            self.fs, self.options, self.store, self.healer, self.others, WallClock(),
            sealed_to=lambda: self.sealed_to(), is_held_up=lambda: self.is_held_up, choose=lambda files: first_file,
        )  # fmt: skip

    @property
    def blocks(self) -> list[Block]:
        """The blocks that are checked."""
        log = self.store.log
        return [block for block in log.sums.blocks(log.start, log.end) if block.end <= log.flushed]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Scrub]:
        async with trio.open_nursery() as nursery:
            await nursery.start(self.scrub.run)
            yield self.scrub
            await self.scrub.stop()
            nursery.cancel_scope.cancel()

    def ask(self, bytes_per_s: int = 0) -> ScrubStatus:
        request = SCRUB.command(ScrubRequestHeader(bytes_per_s))
        channel: Any = Channel()
        return Answer(SCRUB, self.scrub.begin(channel, request)).body()


def fill(store: MessageStore, files: float) -> MessageStore:
    random = Random(1)
    while store.log.end < files * FILE_BYTES:
        put(store, "t", 0, random.randbytes(random.randrange(60_000)))
    store.log.flush()
    return store


def seal(store: MessageStore) -> None:
    log = store.log
    for block in log.sums.blocks(log.start, log.end):
        if block.end <= log.flushed:
            log.sums.seal(block, crc32(log.copy(block.start, block.size)))


async def ended(scrub: Scrub, ended_ms: int = 0) -> None:
    with trio.fail_after(30 * 24 * 3600):
        pause_s = 1.0
        while scrub.figures.last_ended_ms <= ended_ms:
            await trio.sleep(pause_s)
            pause_s *= 1.01


def flip(fs: MemoryFiles, offset: int, *, in_memory: bool = False) -> None:
    """One bit at this offset of the log, on the medium."""
    base = offset // FILE_BYTES * FILE_BYTES
    path = f"/store/commitlog/{base:020}"
    was = fs.read_direct(path, offset - base, 1)[0]
    fs.damage(path, offset - base, bytes([was ^ 4]), in_memory=in_memory)


async def test_a_bit_that_only_the_medium_has_wrong_is_found_in_any_block(autojump_clock: MockClock) -> None:
    at = Scrubbed()
    damaged = [at.blocks[number] for number in (0, 6, len(at.blocks) - 1)]
    for block in damaged:
        flip(at.fs, block.end - 1)
    async with at.running() as scrub:
        await ended(scrub)
        assert at.healer.asked == damaged
        found = scrub.present()
        assert (found.problem_count, found.mended_count, found.suspects, found.running) == (3, 3, 0, False)
        assert found.problems[1] == (
            f"/store/commitlog/{FILE_BYTES:020}: offset {BLOCK_BYTES}: does not match its sum; repaired"
        )
        assert scrub.figures.blocks_checked == len(at.blocks)
        before = scrub.figures.last_ended_ms
        await ended(scrub, before)
        assert scrub.present().problem_count == 0 and scrub.figures.problems == 3


async def test_a_cycle_begins_at_any_file_and_ends_before_it(autojump_clock: MockClock) -> None:
    at = Scrubbed()
    at.scrub = at.new_scrub(first_file=1)
    read: list[int] = []
    read_direct = at.fs.read_direct

    def note(path: str, place: int, size: int) -> bytes:
        read.append(int(path[-20:]) + place)
        return read_direct(path, place, size)

    at.fs.read_direct = note  # type: ignore[method-assign]
    async with at.running() as scrub:
        await ended(scrub)
    starts = [block.start for block in at.blocks]
    assert read == starts[BLOCKS_PER_FILE:] + starts[:BLOCKS_PER_FILE]


async def test_a_cycle_begins_with_a_file_whose_blocks_have_no_sums_and_reads_it_soon(
    autojump_clock: MockClock,
) -> None:
    at = Scrubbed(files=4)
    lacking = at.blocks[BLOCKS_PER_FILE : 2 * BLOCKS_PER_FILE]
    for block in lacking:
        at.store.log.sums.drop(block)
    at.scrub = at.new_scrub(first_file=3)
    async with at.running() as scrub:
        await trio.sleep(REST_S + 2 * FILE_BYTES / LEAST_RECORDS_BYTES_PER_S)
        assert scrub.figures.blocks_sealed == len(lacking)
        assert scrub.figures.blocks_checked <= 2 * len(lacking) < len(at.blocks)


@pytest.mark.parametrize("stuck", [False, True])
async def test_a_sector_that_cannot_be_read_is_healed(autojump_clock: MockClock, stuck: bool) -> None:
    at = Scrubbed()
    block = at.blocks[3]
    at.fs.make_unreadable("/store/commitlog/" + "0" * 20, block.start + 5_000, 1, stuck=stuck)
    at.healer.can = not stuck
    async with at.running() as scrub:
        await ended(scrub)
        assert at.healer.asked == [block]
        (text,) = scrub.present().problems
        assert "cannot be read: " in text and text.endswith("NOT repaired" if stuck else "; repaired")


async def test_a_file_that_is_missing_is_one_problem(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    at = Scrubbed(files=4)
    at.healer.can = False
    path = f"/store/commitlog/{FILE_BYTES:020}"
    at.fs.remove(path)
    async with at.running() as scrub:
        await ended(scrub)
        assert at.healer.asked == at.blocks[BLOCKS_PER_FILE : 2 * BLOCKS_PER_FILE]
        assert scrub.present().problems == [f"{path}: offset 0: the file is missing; NOT repaired"]
        await trio.sleep(2.5 * RETRY_S)
        assert scrub.present().problem_count == 1 and caplog.text.count("NOT repaired") == 1


async def test_blocks_without_sums_get_them_if_all_their_records_are_sound(autojump_clock: MockClock) -> None:
    at = Scrubbed(sealed=False)
    async with at.running() as scrub:
        await ended(scrub)
    sums = at.store.log.sums
    for block in at.blocks[:-1]:
        kept = sums.sum_of(block)
        assert kept and kept.crc == crc32(at.store.log.copy(block.start, block.size)) and not kept.is_attested
    # The last record ends in a block that is not full yet.
    assert scrub.figures.blocks_sealed >= len(at.blocks) - 1
    assert not at.healer.asked and scrub.present().problem_count == 0


@pytest.mark.parametrize("can", [True, False])
async def test_an_unsound_record_is_healed_before_its_blocks_get_sums(autojump_clock: MockClock, can: bool) -> None:
    at = Scrubbed(sealed=False)
    at.healer.can = can
    offset = at.blocks[7].start + 1_000
    flip(at.fs, offset, in_memory=True)
    async with at.running() as scrub:
        await ended(scrub)
    touched = [block for block in at.blocks if block in at.healer.asked]
    assert any(block.start <= offset < block.end for block in touched) and len(touched) <= 2
    for block in at.blocks[:-1]:
        assert (at.store.log.sums.sum_of(block) is not None) == (can or block not in touched)
    assert scrub.figures.mended == can and scrub.figures.problems == 1


async def test_a_block_without_a_sum_amid_others_is_read_with_those_before_it(autojump_clock: MockClock) -> None:
    """Each start leaves such a block: the one in which the log goes on."""
    at = Scrubbed()
    lone = at.blocks[7]
    at.store.log.sums.drop(lone)
    async with at.running() as scrub:
        await ended(scrub)
    kept = at.store.log.sums.sum_of(lone)
    assert kept is not None and kept.crc == crc32(at.store.log.copy(lone.start, lone.size))
    # The two blocks before it in its file are read twice.
    assert scrub.figures.blocks_checked <= len(at.blocks) + 2 and not at.healer.asked


async def test_what_cannot_be_repaired_is_tried_again_first_of_all_and_is_one_problem(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    at = Scrubbed()
    at.healer.can = False
    flip(at.fs, at.blocks[2].start)
    async with at.running() as scrub:
        await ended(scrub)
        assert scrub.present().suspects == 1
        await trio.sleep(2.5 * RETRY_S)
        assert len(at.healer.asked) in (3, 4) and scrub.present().problem_count == 1
        assert caplog.text.count("NOT repaired") == 1
        at.healer.can = True
        await trio.sleep(RETRY_S + REST_S)
        found = scrub.present()
        assert (found.suspects, found.problem_count, found.mended_count) == (0, 1, 1)
        asked = len(at.healer.asked)
        await trio.sleep(3 * RETRY_S)
        assert len(at.healer.asked) == asked


async def test_damage_after_the_last_whole_block_is_not_forgotten(autojump_clock: MockClock) -> None:
    """Readers find it there; only its removal ends it."""
    at = Scrubbed()
    at.healer.can = False
    log = at.store.log
    tail = log.sums.block_at(log.end)
    at.healer.figures.damaged |= {tail.start, tail.start + FILE_BYTES}
    async with at.running():
        await trio.sleep(REST_S + 5)
        assert at.healer.figures.damaged == {tail.start} and at.healer.asked == [tail]


async def test_suspects_and_the_place_are_kept_over_a_restart(autojump_clock: MockClock) -> None:
    at = Scrubbed()
    at.healer.can = False
    flip(at.fs, at.blocks[0].start)
    async with at.running() as scrub:
        await trio.sleep(REST_S + 6)
        half = scrub.figures.blocks_checked
        assert 0 < half < len(at.blocks) and scrub.present().suspects == 1
    at.healer = Healer(at.fs, at.sound)
    at.scrub = at.new_scrub()
    async with at.running() as scrub:
        await ended(scrub)
        assert at.healer.asked == [at.blocks[0]]
        # One block more: the suspect.
        assert scrub.figures.blocks_checked == len(at.blocks) - half + 1
    ended_ms = scrub.figures.last_ended_ms
    at.scrub = at.new_scrub()
    async with at.running() as scrub:
        await trio.sleep(10 * REST_S)
        assert scrub.figures.last_ended_ms == ended_ms and scrub.figures.blocks_checked == 0


async def test_a_small_store_is_read_slowly_and_once_a_day(autojump_clock: MockClock) -> None:
    at = Scrubbed()
    async with at.running() as scrub:
        began = trio.current_time()
        await ended(scrub)
        took_s = trio.current_time() - began - REST_S
        wanted_s = len(at.blocks) * BLOCK_BYTES / LEAST_BYTES_PER_S
        assert 0.6 * wanted_s < took_s < 1.4 * wanted_s
        await trio.sleep(LEAST_CYCLE_MS / 1000 - 2 * took_s - 3 * REST_S)
        assert scrub.figures.blocks_checked == len(at.blocks)
        await trio.sleep(2 * took_s + 5 * REST_S)
        assert scrub.figures.blocks_checked == 2 * len(at.blocks)


async def test_it_waits_for_those_who_wait_for_the_disk_but_not_for_ever(autojump_clock: MockClock) -> None:
    at = Scrubbed()
    at.is_held_up = True
    async with at.running() as scrub:
        await trio.sleep(REST_S)
        at.ask(1 << 40)
        assert scrub.present().held_up
        began = trio.current_time()
        await ended(scrub)
        assert len(at.blocks) / 8 <= trio.current_time() - began < 3 * len(at.blocks)
        at.is_held_up = False
        at.ask(1 << 40)
        began, before = trio.current_time(), scrub.figures.last_ended_ms
        await ended(scrub, before)
        assert trio.current_time() - began < 3


async def test_a_scrub_that_is_asked_for_begins_at_once_and_reads_everything(autojump_clock: MockClock) -> None:
    at = Scrubbed(scrub_enable=False)
    at.others = Others(CheckedFile("/store/consumequeue/t/0/0", 100, "entry 3 is wrong", is_mended=True))
    at.scrub = at.new_scrub()
    async with at.running() as scrub:
        await trio.sleep(2 * LEAST_CYCLE_MS / 1000)
        assert scrub.figures.blocks_checked == 0 and not scrub.present().enabled
        began = at.ask()
        assert began.running and began.asked_ms and began.total_bytes == len(at.blocks) * BLOCK_BYTES
        with pytest.raises(RequestRefused, match="a scrub is running, 0 % of the log is checked") as caught:
            at.ask()
        assert caught.value.code == ResponseCode.SYSTEM_BUSY
        await ended(scrub)
        found = scrub.present()
        assert (found.running, found.asked_ms, found.problem_count, found.mended_count) == (False, began.asked_ms, 1, 1)
        assert found.problems == ["/store/consumequeue/t/0/0: entry 3 is wrong; repaired"]
        assert scrub.figures.blocks_checked == len(at.blocks)
        assert at.ask().asked_ms > began.asked_ms
        with pytest.raises(RequestRefused, match="are no rate"):
            at.ask(-1)


async def test_a_scrub_that_is_asked_for_amid_another_checks_all_other_files(autojump_clock: MockClock) -> None:
    at = Scrubbed()
    at.others = Others(*[CheckedFile(f"/{number}", BLOCK_BYTES) for number in range(5)])
    at.scrub = at.new_scrub()
    async with at.running() as scrub:
        assert await poll_until(lambda: at.others.checked >= 2, 600, 0.1)
        at.ask()
        done = at.others.checked
        await ended(scrub)
        # The rest of the round that had begun, and a whole one.
        assert at.others.checked - done >= 6
        assert at.others.checked % 6 == 0


async def test_bytes_of_a_log_that_was_cut_meanwhile_are_not_judged(autojump_clock: MockClock) -> None:
    at = Scrubbed()
    read_direct, log = at.fs.read_direct, at.store.log

    def cut_and_read(path: str, place: int, size: int) -> bytes:
        at.fs.read_direct = read_direct  # type: ignore[method-assign]
        trio.from_thread.run_sync(log.sums.drop_from, at.blocks[2].start)
        return bytes(size)

    at.fs.read_direct = cut_and_read  # type: ignore[method-assign]
    async with at.running() as scrub:
        await ended(scrub)
    assert not at.healer.asked and scrub.figures.problems == 0


async def test_files_that_are_removed_and_messages_that_come_are_no_damage(autojump_clock: MockClock) -> None:
    at = Scrubbed()
    async with at.running() as scrub:
        await trio.sleep(REST_S + 3)
        log = at.store.log
        log.chain.retire_before(FILE_BYTES)
        log.sums.remove_before(log.start)
        log.chain.remove_retired()
        fill(at.store, 4)
        await ended(scrub)
        assert scrub.figures.problems == 0 and not at.healer.asked


async def test_a_store_without_messages_is_left_alone(autojump_clock: MockClock) -> None:
    at = Scrubbed(files=0)
    async with at.running() as scrub:
        await trio.sleep(10 * REST_S)
        assert not scrub.present().running and at.others.checked == 0
    assert "/store/scrub" not in at.fs.paths()


async def test_the_place_is_not_kept_on_a_full_disk_and_nothing_else_happens(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    at = Scrubbed()
    async with at.running() as scrub:
        await trio.sleep(REST_S + 3)
        at.fs.capacity = at.fs.used()
        await ended(scrub)
    assert "the place of the scrub cannot be kept" in caplog.text
