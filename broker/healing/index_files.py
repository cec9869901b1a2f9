"""Checks the files of the index on the medium, block by block, and makes damaged ones again from the log.

A file that gets no more entries has sums of all its blocks, the last file has sums of its entries. A file without sums,
of an earlier version or another broker, is checked by its own links first. The slots of the last file change all the
time, so they are compared with the entries.

A damaged file is made again in a file of its own, from the part of the log that it covers, and what differs is written
to its place. Until then queries that need the file are refused: they could miss messages.
Neighbours: store/index/link_check.py; other_files.py (calls this).
"""

import logging
import struct
from array import array
from collections.abc import Iterator
from functools import partial
from random import Random
from typing import NamedTuple

import trio

from skylark.broker.healing.other_files import CheckedFile, Job
from skylark.broker.part import Part
from skylark.broker.store.index.index import Index
from skylark.broker.store.index.index_file import ENTRY_BYTES, SLOT_BYTES, SLOTS_AT, IndexFile
from skylark.broker.store.index.link_check import LinkCheck
from skylark.broker.store.log.segment import Segment
from skylark.broker.store.store import MessageStore
from skylark.broker.store.sums.derived_sums import DIRECTORY
from skylark.broker.store.sums.growing_sums import PrefixSum
from skylark.broker.tasks.flush import Flusher
from skylark.mqcommon.disk.files import FileSystem
from skylark.mqcommon.errors import FileClosed, SkylarkError

logger = logging.getLogger(__name__)

# How often to look for files that a query found damaged, and the pause after a file could not be made again.
LOOK_S = 1.0
PAUSE_S = 60.0
# How many records, and bytes of the log, one step of making a file again reads: some milliseconds.
STEP_RECORDS = 500
STEP_BYTES = 1024 * 1024
# The rest of a page is read before a part of it is written.
PAGE_BYTES = 4096


class _Reading:
    """One reading of a file: what its blocks had."""

    def __init__(self, file: IndexFile, *, is_last: bool) -> None:
        self.file = file
        self.is_last = is_last
        self.count = file.count
        self.used = file.used_bytes
        self.end_physical = file.end_physical
        self.links = LinkCheck(file.slots, file.count)
        self.found: dict[int, PrefixSum] = {}
        self.is_wrong = False


class IndexFiles(Part):
    """The check of the index of one store; makes files again that a query found damaged, too."""

    def __init__(self, fs: FileSystem, store: MessageStore, flusher: Flusher) -> None:
        self._fs = fs
        self._store = store
        self._flusher = flusher
        self._index = store.index
        self._making = trio.Lock()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Make files again that a query has found damaged, until cancelled."""
        task_status.started()
        try:
            await trio.to_thread.run_sync(remove_building, self._fs, self._store.options.directory)
        except OSError as error:
            logger.warning("what is left of an index file that was being made again cannot be removed: %s", error)
        while True:
            await trio.sleep(LOOK_S)
            for file in self._index.files[:-1]:
                if not file.sums.sum_of(0).size and file.is_new:
                    await self._seal_slots(file)
            for file in self._index.files[:]:
                if file.sums.suspects and not await self._make_again(file):
                    await trio.sleep(PAUSE_S)

    async def _seal_slots(self, file: IndexFile) -> None:
        """This process has filled the file: let header and slots have sums, as its entries do."""
        try:
            found = await trio.to_thread.run_sync(self._slot_sums, file)
        except (OSError, FileClosed):  # it was removed, or the check of all files finds it
            return
        # In the meantime the log may have been cut, and the file be the last one again.
        if any(each is file for each in self._index.files[:-1]):
            file.add_sums(found)

    def jobs(self, random: Random) -> Iterator[Job]:
        """The checks of all files that there are now, from a random one on."""
        files = self._index.files[:]
        first = random.randrange(len(files)) if files else 0
        for file in (*files[first:], *files[:first]):
            if file.end_physical >= self._store.log.start:  # else the cleaner removes it soon
                yield from self._jobs_of(file)

    def _jobs_of(self, file: IndexFile) -> Iterator[Job]:
        reading = _Reading(file, is_last=file is self._index.files[-1])
        at = file.entries_at
        while at < reading.used and not reading.is_wrong:
            end = min(file.sums.block(file.sums.number_at(at)).end, reading.used)
            yield partial(self._check_block, reading, at, end)
            at = end
        at = 0
        while at < file.entries_at and not reading.is_wrong:
            end = min(file.sums.block(file.sums.number_at(at)).end, file.entries_at)
            yield partial(self._check_block, reading, at, end)
            at = end
        if not reading.is_wrong:
            yield partial(self._settle, reading)

    def _is_there(self, file: IndexFile) -> bool:
        return any(each is file for each in self._index.files)

    async def _check_block(self, reading: _Reading, at: int, end: int) -> CheckedFile:
        """Check bytes ``at`` to ``end``, which are all slots, or all entries, of one block."""
        file = reading.file
        number = file.sums.number_at(at)
        block = file.sums.block(number)
        size = min(block.end, reading.used) - block.start
        path = file.file.path
        if reading.is_wrong or not self._is_there(file):
            reading.is_wrong = True
            return CheckedFile(path, 0)
        known = file.sums.sum_of(number)
        if reading.is_last and at < file.entries_at:
            return await self._check_open_slots(reading, at, end)
        data = await trio.to_thread.run_sync(self._on_medium, path, block.start, size)
        problem = ""
        if data is None or not known.fits(data):
            problem = f"block at byte {block.start}: " + (
                "it cannot be read" if data is None else "its bytes are not those that were written"
            )
            data = None
            if known.size and await trio.to_thread.run_sync(self._write_again, file, block.start, size, known):
                logger.warning("%s: %s on the disk: written again from memory", path, problem)
                data = await trio.to_thread.run_sync(self._on_medium, path, block.start, size)
        if data is not None:
            part = data[at - block.start : end - block.start]
            if known.size < size and await trio.to_thread.run_sync(self._is_other, file, at, part):
                # Nothing tells which bytes are right. Those in memory are used, so they are checked, and written again.
                written, problem = await self._settled(file, at, end)
                if written is None:
                    return await self._damaged(reading, number, problem, end - at)
                part = written or part
                data = data[: at - block.start] + part + data[end - block.start :]
            reading.found[number] = PrefixSum.of(data)
            if at >= file.entries_at:
                reading.links.add_entries(part)
            else:
                await trio.to_thread.run_sync(self._add_slots, reading, part, at)
            if not reading.links.problem:
                return CheckedFile(path, end - at, problem, is_mended=bool(problem))
            problem = problem or reading.links.problem
        return await self._damaged(reading, number, problem, end - at)

    async def _check_open_slots(self, reading: _Reading, at: int, end: int) -> CheckedFile:
        """As `_check_block`, of the slots of the file that gets entries now: its slots have no sums."""
        file = reading.file
        data, problem = await self._settled(file, at, end)
        if data is not None:
            await trio.to_thread.run_sync(self._add_slots, reading, data, at)
            if not reading.links.problem:
                return CheckedFile(file.file.path, end - at, problem, is_mended=bool(problem))
        problem = problem or reading.links.problem
        return await self._damaged(reading, file.sums.number_at(at), problem, end - at)

    async def _settled(self, file: IndexFile, at: int, end: int) -> tuple[bytes | None, str]:
        """The bytes in memory, which the medium has now, too; None if they cannot be read; and what was wrong."""
        async with self._flusher.one_at_a_time:
            if not self._is_there(file):
                return b"", ""
            # Memory and medium can only be compared while nothing is added to the index.
            self._index.is_being_cut = True
            try:
                return await trio.to_thread.run_sync(self._settle_bytes, file, at, end - at)
            finally:
                self._index.is_being_cut = False

    async def _damaged(self, reading: _Reading, number: int, problem: str, size: int) -> CheckedFile:
        """Make the file again: its block ``number`` is damaged."""
        file = reading.file
        reading.is_wrong = True
        file.sums.suspect(number)
        logger.error("%s: %s: the file is made again from the log", file.file.path, problem)
        return CheckedFile(file.file.path, size, problem, is_mended=await self._make_again(file))

    async def _settle(self, reading: _Reading) -> CheckedFile:
        """All blocks are right: let those have sums that had none, in a file that gets no more entries."""
        file = reading.file
        if self._is_there(file) and reading.links.last_physical not in (-1, reading.end_physical):
            problem = f"its last entry is not of the message at {reading.end_physical}"
            return await self._damaged(reading, file.sums.number_at(reading.used - 1), problem, 0)
        is_same = self._is_there(file) and not reading.is_last and file.count == reading.count
        if is_same and not file.sums.suspects:
            for number, found in reading.found.items():
                if file.sums.sum_of(number).size < found.size:
                    file.add_sums({number: found})
        return CheckedFile(file.file.path, 0)

    # --- in threads

    def _slot_sums(self, file: IndexFile) -> dict[int, PrefixSum]:
        file.file.pread(0, file.entries_at)  # so that no page fault blocks the interpreter
        return file.slot_sums()

    def _on_medium(self, path: str, at: int, size: int) -> bytes | None:
        """The bytes that the medium has; None if it cannot be read."""
        try:
            return self._fs.read_direct(path, at, size)
        except OSError:
            return None

    def _is_other(self, file: IndexFile, at: int, data: bytes) -> bool:
        """Whether memory has other bytes than ``data``, or cannot be read."""
        try:
            return file.file.pread(at, len(data)) != data
        except (OSError, FileClosed):
            return True

    def _settle_bytes(self, file: IndexFile, at: int, size: int) -> tuple[bytes | None, str]:
        on_medium = self._on_medium(file.file.path, at, size)
        problem = f"bytes {at} to {at + size}: the disk has other bytes than memory"
        try:
            data = file.file.pread(at, size)
            if on_medium == data:
                return data, ""
            end = min(-(-(at + size) // PAGE_BYTES) * PAGE_BYTES, file.file.size)
            file.file.pwrite(at, memoryview(file.file.pread(at, end - at)))
            file.file.sync()
        except (OSError, FileClosed):
            return None, problem
        return data, problem

    def _write_again(self, file: IndexFile, at: int, size: int, known: PrefixSum) -> bool:
        """Whether the bytes in memory are right, and the medium has them now, too."""
        try:
            end = min(-(-(at + size) // PAGE_BYTES) * PAGE_BYTES, file.file.size)
            data = file.file.pread(at, end - at)
            # Entries after those with a sum may be written meanwhile, by the event loop.
            if not known.fits(data) or known.size < size:
                return False
            file.file.pwrite(at, memoryview(data)[:size])
            file.file.sync()
        except (OSError, FileClosed):
            return False
        return self._on_medium(file.file.path, at, size) == data[:size]

    def _add_slots(self, reading: _Reading, data: bytes, at: int) -> None:
        file = reading.file

        def before(number: int) -> int:
            if number >= file.capacity:
                return 0
            raw = file.file.pread(file.entries_at + number * ENTRY_BYTES, ENTRY_BYTES)
            return int.from_bytes(raw[-SLOT_BYTES:], "big", signed=True)

        if at < SLOTS_AT:
            data = data[SLOTS_AT - at :]
        numbers = array("i", struct.unpack(f">{len(data) // SLOT_BYTES}i", data))
        try:
            reading.links.add_slots(numbers, before)
        except FileClosed:
            reading.is_wrong = True

    # --- making a file again

    async def _make_again(self, file: IndexFile) -> bool:
        """Make the file again from the log; returns whether it is right now, or gone."""
        async with self._making:
            if not self._is_there(file) or not file.sums.suspects:
                return True
            building = _Building(self._fs, self._store, file)
            try:
                try:
                    await trio.to_thread.run_sync(building.build, self._covered_to(file))
                    async with self._flusher.one_at_a_time:
                        return await self._replace(file, building)
                finally:
                    with trio.CancelScope(shield=True):
                        await trio.to_thread.run_sync(building.close)
            except (OSError, SkylarkError) as error:
                logger.error("%s is damaged, and could not be made again: %s", file.file.path, error)
                return False

    def _covered_to(self, file: IndexFile) -> int:
        """The physical offset up to which the messages are in this file."""
        files = self._index.files
        number = next(number for number, each in enumerate(files) if each is file)
        if file is files[-1]:
            return self._index.position
        end: int = max(files[number + 1].begin_physical, file.end_physical + 1)
        return end

    async def _replace(self, file: IndexFile, building: "_Building") -> bool:
        if not self._is_there(file):
            return True
        # The last file has got entries meanwhile. From here on it gets none until it is replaced.
        self._index.is_being_cut = True
        try:
            end, is_last = self._covered_to(file), file is self._index.files[-1]
            await trio.to_thread.run_sync(building.build, end)
            sums = await trio.to_thread.run_sync(building.replace, is_last)
        finally:
            self._index.is_being_cut = False
        if sums is None:
            logger.error("%s is damaged, and the log does not have what was in it", file.file.path)
            return False
        file.take_repair(sums)
        logger.warning("%s was damaged, and was made again from the log", file.file.path)
        return True


class _LogPart(NamedTuple):
    """The log up to ``end``, for `Index.build` in a thread."""

    chain: "_Files"
    start: int
    end: int


class _Files:
    """A copy of the list of the log's files."""

    def __init__(self, segments: list[Segment]) -> None:
        self._segments = segments

    def at(self, offset: int) -> Segment | None:
        """The file that holds ``offset``."""
        if not self._segments:
            return None  # a slave has removed its whole log
        first = self._segments[0]
        number = (offset - first.base) // first.size
        return self._segments[number] if 0 <= number < len(self._segments) else None


class _Building:
    """A file of the index that is made again, outside of the index's directory, where every name counts."""

    def __init__(self, fs: FileSystem, store: MessageStore, file: IndexFile) -> None:
        self._fs = fs
        self._store = store
        self._file = file
        self._directory = f"{store.options.directory}/{DIRECTORY}/building"
        self._index = Index(fs, self._directory, file.slots, file.capacity)
        self._index.position = file.begin_physical

    def close(self) -> None:
        """Remove the file. Blocks."""
        self._index.close()
        remove_building(self._fs, self._store.options.directory)

    def build(self, end: int) -> None:
        """Index the messages up to the physical offset ``end``. Blocks. Raises Damaged, if the log is."""
        if not self._index.files:
            remove_building(self._fs, self._store.options.directory)
        log = self._store.log
        while max(self._index.position, log.start) < end:
            part = _LogPart(_Files(log.chain.segments[:]), log.start, end)
            at = max(self._index.position, part.start)
            segment = part.chain.at(at)
            if segment is None:
                return
            # Damage of the log must not get into the index. And no page fault may block the interpreter below.
            log.blocks.read(at, min(STEP_BYTES, segment.end - at, end - at))
            self._index.build(part, STEP_RECORDS)
            if self._index.position <= at:
                return

    def replace(self, is_last: bool) -> dict[int, PrefixSum] | None:
        """Write what differs to the damaged file. Returns its sums; None if the log does not have what was in it."""
        files, old = self._index.files, self._file
        if len(files) != 1 or files[0].end_physical < self._file.end_physical:
            return None
        new = files[0]
        new.file.sync()
        sums: dict[int, PrefixSum] = {}
        at = 0
        while at < new.used_bytes:
            number = old.sums.number_at(at)
            block = old.sums.block(number)
            data = new.file.pread(at, block.size)
            self._write_differing(old, at, data)
            if not is_last or at >= old.entries_at:
                sums[number] = PrefixSum.of(data[: new.used_bytes - at])
            at = block.end
        old.file.sync()
        return sums

    def _write_differing(self, old: IndexFile, at: int, data: bytes) -> None:
        if not self._differs(old, at, data):
            return
        for start in range(0, len(data), PAGE_BYTES):
            page = data[start : start + PAGE_BYTES]
            if self._differs(old, at + start, page):
                old.file.pwrite(at + start, memoryview(page))

    def _differs(self, old: IndexFile, at: int, page: bytes) -> bool:
        """Whether memory or the medium has other bytes than ``page`` there."""
        try:
            return old.file.pread(at, len(page)) != page or self._fs.read_direct(old.file.path, at, len(page)) != page
        except OSError:
            return True


def remove_building(fs: FileSystem, directory: str) -> None:
    """Remove what a death left of a file that was being made again."""
    building = f"{directory}/{DIRECTORY}/building"
    for name in fs.listdir(building):
        fs.remove(f"{building}/{name}")
