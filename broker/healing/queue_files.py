"""Checks the files of queues on the medium, block by block, and mends them: what a read would find too late, or never.

Bytes that fit the sum of their block are right. Entries without a sum, which an earlier version or another broker
wrote, are compared with the records that they name; then they have one. Whatever is wrong is made again from the log,
so no other replica is needed.

A search reads the log, perhaps for minutes, so no lock is held meanwhile: it works on copies, and the event loop
replaces only entries that are still as the search saw them. Files are written again under `Flusher.one_at_a_time`.
Neighbours: store/queue/entry_repair.py (the search); store/sums/growing_sums.py; other_files.py (calls this).
"""

import logging
from collections.abc import Iterator
from functools import partial
from random import Random
from typing import NamedTuple

import trio

from skylark.broker.healing.other_files import CheckedFile, Job
from skylark.broker.store.log.segment import file_path
from skylark.broker.store.queue.consumequeue import ConsumeQueue
from skylark.broker.store.queue.entry_repair import EntriesDamaged, places_of
from skylark.broker.store.store import MessageStore
from skylark.broker.store.sums.block_sums import Block
from skylark.broker.store.sums.growing_sums import PrefixSum
from skylark.broker.tasks.flush import Flusher
from skylark.mqcommon.disk.files import FileSystem
from skylark.mqcommon.errors import SkylarkError, StoreError

logger = logging.getLogger(__name__)

# What the comparison of one entry with its record counts as: it takes as long as this many bytes of a scrub.
COMPARED_BYTES = 2048
# A sector that cannot be read is made readable by writing this much.
PAGE_BYTES = 4096


class _Place(NamedTuple):
    """The part of a block that a queue has in its files."""

    number: int
    block: Block
    path: str
    at: int
    size: int


class QueueChecks:
    """The check of all queues of one store."""

    def __init__(self, fs: FileSystem, store: MessageStore, flusher: Flusher) -> None:
        self._fs = fs
        self._store = store
        self._flusher = flusher

    def jobs(self, random: Random) -> Iterator[Job]:
        """The checks of all blocks of the queues that there are now, from a random queue on."""
        queues = list(self._store.queues)
        first = random.randrange(len(queues)) if queues else 0
        for queue in (*queues[first:], *queues[:first]):
            start = queue.first_place * queue.entry_bytes
            while start < queue.stored_bytes and self._is_there(queue):
                place = _place_at(queue, start)
                yield partial(self._check, queue, place)
                start = place.block.end

    def _is_there(self, queue: ConsumeQueue) -> bool:
        return self._store.queues.find(queue.topic, queue.queue_id) is queue

    async def _check(self, queue: ConsumeQueue, place: _Place) -> CheckedFile:
        place = _place_at(queue, place.block.start)  # the queue has grown, or was cut
        if place.size <= 0 or not self._is_there(queue):
            return CheckedFile(place.path, 0)
        known = queue.sums.sum_of(place.number)
        data = await trio.to_thread.run_sync(self._on_medium, place)
        if data == b"":
            is_gone = queue.first_place * queue.entry_bytes >= place.block.end or not self._is_there(queue)
            return CheckedFile(place.path, 0, "" if is_gone else "the file is missing; a restart makes it again")
        if data is not None and known.fits(data):
            if known.size >= place.size:
                return CheckedFile(place.path, place.size)
            problem = ""
        else:
            problem = "it cannot be read" if data is None else "its bytes are not those that were written"
            problem = f"block at byte {place.at}: {problem}"
            if await self._write_again(queue, place, known):
                logger.warning("%s: %s on the disk: written again from memory", place.path, problem)
                return CheckedFile(place.path, place.size, problem, is_mended=True)
        checked = await self._compare(queue, place, known, problem)
        if problem and checked.is_mended and queue.sums.sum_of(place.number) == PrefixSum.of(data or b""):
            return checked._replace(problem="", is_mended=False)  # the sum was stale, and the medium had what is right
        return checked

    async def _compare(self, queue: ConsumeQueue, place: _Place, known: PrefixSum, problem: str) -> CheckedFile:
        """Compare the entries of the block with the log, all of them or those without a sum, and mend them."""
        places = places_of(queue, place.block)
        if not problem:
            first = max(places.start, (place.block.start + known.size) // queue.entry_bytes)
            places = range(first, places.stop)
        cost = place.size + len(places) * COMPARED_BYTES
        was_wrong = False
        if places:
            try:
                damaged = EntriesDamaged(self._store.log, queue, places.start, places.stop, whole=True)
                was_wrong = damaged.replace(await trio.to_thread.run_sync(damaged.search))
            except SkylarkError as error:  # a batch queue that the log has no entries for
                logger.error("%s: %s: %s", place.path, problem, error)
                return CheckedFile(place.path, cost, problem or str(error))
            if damaged.unresolved:
                problem = problem or f"{damaged.unresolved} entries at byte {place.at} or after it name no message"
                return CheckedFile(place.path, cost, problem)
        if was_wrong and not problem:
            problem = f"entries at byte {place.at} or after it did not name their messages"
        is_right = await self._settle(queue, place, must_write=bool(problem))
        if not is_right and not problem:
            problem = f"block at byte {place.at}: the disk has other bytes than were written"
            is_right = await self._settle(queue, place, must_write=True)
        return CheckedFile(place.path, cost, problem, is_mended=is_right)

    async def _settle(self, queue: ConsumeQueue, place: _Place, *, must_write: bool) -> bool:
        """Whether the medium has the bytes that memory has: then the block gets its sum.

        ``must_write``: write them first.
        """
        async with self._flusher.one_at_a_time:
            # Entries that came meanwhile are this process's, and right.
            now = _place_at(queue, place.block.start)
            if not self._is_there(queue) or now.size < place.size:
                return True  # the queue was cut or removed meanwhile
            data = await trio.to_thread.run_sync(self._same_on_medium, now, must_write)
            if data is None:
                return False
            queue.sums.forget(place.number)
            queue.sums.put(place.number, PrefixSum.of(data))
            return True

    async def _write_again(self, queue: ConsumeQueue, place: _Place, known: PrefixSum) -> bool:
        """Whether the bytes in memory are right, and the medium has them now, too."""
        async with self._flusher.one_at_a_time:
            is_same = queue.sums.sum_of(place.number) == known
            if not is_same or not self._is_there(queue) or _place_at(queue, place.block.start).size < place.size:
                return False
            return await trio.to_thread.run_sync(self._rewrite, place, known)

    # --- in threads

    def _on_medium(self, place: _Place) -> bytes | None:
        """The bytes that the medium has; None if it cannot be read."""
        try:
            return self._fs.read_direct(place.path, place.at, place.size)
        except FileNotFoundError:
            return b""
        except OSError:
            return None

    def _rewrite(self, place: _Place, known: PrefixSum) -> bool:
        try:
            file = self._fs.open_map(place.path, 0, create=False)
        except (OSError, StoreError):
            return False
        try:
            data = bytearray()
            # Whole pages: the kernel would first read the rest of a page that is written in part.
            for at in range(place.at, place.at + place.size, PAGE_BYTES):
                size = min(PAGE_BYTES, file.size - at)
                try:
                    data += file.pread(at, size)
                except OSError:
                    # Zeros are no entry: a read that meets them has them made again from the log, as `_compare` does.
                    file.pwrite(at, memoryview(bytes(size)))
                    data += bytes(size)
            right = bytes(data[: place.size])
            if not known.size or not known.fits(right):
                return False
            file.pwrite(place.at, memoryview(data))
            file.sync()
        except OSError:
            return False  # the sector cannot be written either
        finally:
            file.close()
        return self._on_medium(place) == right

    def _same_on_medium(self, place: _Place, must_write: bool) -> bytes | None:
        """The bytes in memory, if the medium has the same."""
        try:
            file = self._fs.open_map(place.path, 0, create=False)
            try:
                end = min(-(-(place.at + place.size) // PAGE_BYTES) * PAGE_BYTES, file.size)
                data = file.pread(place.at, end - place.at)
                if must_write:
                    file.pwrite(place.at, memoryview(data))
                    file.sync()
            finally:
                file.close()
        except (OSError, StoreError):
            return None
        right = data[: place.size]
        return right if self._on_medium(place) == right else None


def _place_at(queue: ConsumeQueue, position: int) -> _Place:
    """The block that holds ``position`` of the queue's files."""
    number = queue.sums.number_at(position)
    block = queue.sums.block(number)
    base = position // queue.segment_bytes * queue.segment_bytes
    size = min(block.end, queue.stored_bytes) - block.start
    return _Place(number, block, file_path(queue.directory, base), block.start - base, size)
