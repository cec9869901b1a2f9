"""Checks metadata and the small files of a store on the medium, and writes them again from memory.

A file that is missing is as wrong as a damaged one. The broker's tables are the truth while it runs, so damage of the
journal or of its snapshot is answered by a new snapshot.
Neighbour: other_files.py (calls this).
"""

import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from random import Random

import trio

from skylark.broker.healing.other_files import CheckedFile, Job
from skylark.broker.meta.journal import Journal, KnownFile
from skylark.broker.store.checkpoint import ABORT
from skylark.broker.store.inventory import FILE_NAME as INVENTORY
from skylark.broker.store.queue.ends import FILE_NAME as ENDS
from skylark.broker.store.queue.ends import SINCE_NAME, is_whole_since
from skylark.broker.store.store import MessageStore
from skylark.broker.store.sums.derived_sums import FILE_NAME as SUMS
from skylark.broker.store.sums.derived_sums import QueueRows
from skylark.broker.store.sums.sum_files import path_in
from skylark.broker.tasks.flush import Flusher
from skylark.broker.tasks.persist import Persister
from skylark.mqcommon.crc import large_crc32
from skylark.mqcommon.disk.atomic import without_crc
from skylark.mqcommon.disk.files import FileSystem
from skylark.mqcommon.disk.small_file import SmallFile
from skylark.mqcommon.errors import DiskFull, SkylarkError

logger = logging.getLogger(__name__)

# How much of a file is read at once.
PIECE_BYTES = 256 * 1024
DAMAGED = "its bytes are not those that were written"
# Of queues whose sums are copied in one turn of the event loop.
SLICE = 1000


class SmallFiles:
    """The check of small files."""

    def __init__(self, fs: FileSystem, files: Callable[[], Sequence[SmallFile]], flusher: Flusher) -> None:
        self._fs = fs
        self._files = files
        self._flusher = flusher

    def jobs(self, random: Random) -> Iterator[Job]:
        """The checks of all files."""
        for file in self._files():
            yield partial(self._check, file)

    async def _check(self, file: SmallFile) -> CheckedFile:
        size = 0
        # Twice: the file may be replaced while it is read.
        for _ in range(2):
            # The store's files are written under this lock.
            async with self._flusher.one_at_a_time:
                size, is_whole = await trio.to_thread.run_sync(self._look, file)
            if is_whole:
                return CheckedFile(file.path, size)
        if not any(each.path == file.path for each in self._files()):
            return CheckedFile(file.path, 0)  # sums whose log file was removed since the round began
        problem = DAMAGED if self._fs.exists(file.path) else "the file is missing"
        try:
            await file.restore()
        except (OSError, DiskFull, SkylarkError) as error:
            logger.error("%s: %s, and it could not be written again: %s", file.path, problem, error)
            return CheckedFile(file.path, size, problem)
        _, is_whole = await trio.to_thread.run_sync(self._look, file)
        if is_whole:
            logger.warning("%s: %s: written again from memory", file.path, problem)
        return CheckedFile(file.path, size, problem, is_mended=is_whole)

    def _look(self, file: SmallFile) -> tuple[int, bool]:
        """(size, whether the medium has it whole)."""
        try:
            data = self._fs.read_direct(file.path, 0, self._fs.size(file.path))
        except OSError:
            return 0, False
        return len(data), file.is_whole(data)


class MetadataFiles:
    """The check of the metadata's journal and snapshot."""

    def __init__(self, fs: FileSystem, journal: Journal, persister: Persister) -> None:
        self._fs = fs
        self._journal = journal
        self._persister = persister

    def jobs(self, random: Random) -> Iterator[Job]:
        """One check of all files: a new snapshot replaces all of them."""
        yield self._check

    async def _check(self) -> CheckedFile:
        async with self._persister.files_kept():
            known = self._journal.known_files()
            wrong = await trio.to_thread.run_sync(self._first_wrong, known)
        size = sum(file.size for file in known)
        if wrong is None:
            return CheckedFile(known[-1].path if known else "", size)
        logger.warning("%s: %s: metadata is written again from memory", wrong.path, DAMAGED)
        is_mended = await self._persister.compact()
        if is_mended:
            async with self._persister.files_kept():
                is_mended = await trio.to_thread.run_sync(self._first_wrong, self._journal.known_files()) is None
        return CheckedFile(wrong.path, size, DAMAGED, is_mended=is_mended)

    def _first_wrong(self, known: Sequence[KnownFile]) -> KnownFile | None:
        return next((file for file in known if not self._is_right(file)), None)

    def _is_right(self, file: KnownFile) -> bool:
        crc = 0
        try:
            for at in range(0, file.size, PIECE_BYTES):
                crc = large_crc32(self._fs.read_direct(file.path, at, min(PIECE_BYTES, file.size - at)), crc)
        except OSError:
            return False
        return crc == file.crc


def store_files(fs: FileSystem, store: MessageStore, flusher: Flusher) -> list[SmallFile]:
    """The small files of an open store."""
    directory = store.options.directory

    async def note_ends() -> None:
        await flusher.checkpoint(note_ends=True)

    def in_thread(step: Callable[[], None]) -> Callable[[], Awaitable[None]]:
        async def run() -> None:
            async with flusher.one_at_a_time:
                await trio.to_thread.run_sync(step)

        return run

    files = [
        SmallFile(f"{directory}/checkpoint", store.is_checkpoint, in_thread(store.write_checkpoint_again)),
        SmallFile(f"{directory}/{ENDS}", has_crc, note_ends),
        SmallFile(f"{directory}/{ABORT}", store.is_abort, in_thread(store.write_abort_again)),
    ]
    if store.inventory.is_kept:
        files.append(SmallFile(f"{directory}/{INVENTORY}", has_crc, in_thread(store.inventory.write_again)))
    if fs.exists(f"{directory}/{SINCE_NAME}"):
        files.append(SmallFile(f"{directory}/{SINCE_NAME}", is_whole_since, note_ends))
    for base in store.log.sums.written:
        files.append(SmallFile(path_in(directory, base), has_crc, partial(write_log_sums, store, flusher, base)))
    if fs.exists(f"{directory}/{SUMS}"):
        files.append(SmallFile(f"{directory}/{SUMS}", has_crc, partial(write_sums, store, flusher)))
    return files


async def write_log_sums(store: MessageStore, flusher: Flusher, base: int) -> None:
    """Write the sums of the log's file that begins at ``base``."""
    store.log.sums.write_again(base)
    await flusher.checkpoint(note_ends=True)


async def write_sums(store: MessageStore, flusher: Flusher) -> None:
    """Write the sums of queues and index. OSError, or DiskFull: the old ones stay."""
    rows: list[QueueRows] = []
    queues = list(store.queues)
    for at in range(0, len(queues), SLICE):
        rows += store.queue_sums(queues[at : at + SLICE])
        await trio.lowlevel.checkpoint()
    async with flusher.one_at_a_time:
        await trio.to_thread.run_sync(store.write_sums, rows)


def has_crc(data: bytes) -> bool:
    """Whether a file that `write_with_crc` wrote is whole."""
    return without_crc(data) is not None
