"""Checks the files of a DLedger member's entries on the medium, and mends them from memory or from another member.

Each slot has a CRC that goes on from the slot before it, so the bytes prove themselves. Entries that are right in
memory are written to the medium again, and entries that are right on the medium to memory. For entries that are wrong
in both, the other members of the group are asked.
Entries' bytes in the log are blocks of the log: the scrub of the log checks them.
Neighbours: replication/dledger/entry_file.py (one file), mending.py beside it (asks); other_files.py (calls this).
"""

import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from random import Random
from typing import NamedTuple

import trio

from skylark.broker.healing.other_files import CheckedFile, Job
from skylark.broker.replication.dledger.entry_file import EntryFile, EntrySpan
from skylark.broker.replication.dledger.log_disk import LogDisk
from skylark.mqcommon.disk.files import FileSystem, MappedFile
from skylark.mqcommon.disk.loading import load
from skylark.mqcommon.errors import FileClosed, OutOfDescriptors, SkylarkError

logger = logging.getLogger(__name__)

# Entries of one check, some 64 KiB: a thread looks at each of them, and holds up the event loop meanwhile.
SPAN_ENTRIES = 2048
# What the check of one entry counts as: it takes as long as a scrub takes for some 2,000 bytes, but a store with small
# entries must be read in time, too.
ENTRY_COSTS_BYTES = 512
# How often one span is looked at: entries may be cut meanwhile, and what was mended is read once more.
LOOKS = 4


class _Look(NamedTuple):
    """What a thread has found: what should be written in place of the bytes, and the entries that must be mended.

    ``right``: None if nothing need be written.
    """

    problem: str = ""
    right: bytes | None = None
    damaged: Sequence[int] = ()
    is_missing: bool = False


class EntryFiles:
    """The check of all files of entries. ``mend`` mends entries from other members; returns why not, "" if it has."""

    def __init__(self, fs: FileSystem, disk: LogDisk, mend: Callable[[Sequence[int]], Awaitable[str]]) -> None:
        self._fs = fs
        self._disk = disk
        self._mend = mend

    def jobs(self, random: Random) -> Iterator[Job]:
        """The checks of all entries that there are now."""
        index = self._disk.index
        for file in index.files:
            first = file.first
            while (span := index.span(file, first, SPAN_ENTRIES)) is not None:
                yield partial(self._check, file, first)
                first = span.last + 1

    async def _check(self, file: EntryFile, first: int) -> CheckedFile:
        index, problem, size = self._disk.index, "", 0
        for _ in range(LOOKS):
            span = index.span(file, first, SPAN_ENTRIES)
            if span is None:
                return CheckedFile(file.path, size)  # cut, or removed
            size = (span.last + 1 - span.first) * ENTRY_COSTS_BYTES
            look = await trio.to_thread.run_sync(self._look, file, span)
            if look is None or index.cuts != span.cuts or file not in index.files:
                continue
            if not look.problem:
                if problem:
                    logger.warning("%s: entries %d to %d: %s: mended", file.path, span.first, span.last, problem)
                return CheckedFile(file.path, size, problem, is_mended=bool(problem))
            problem = problem or look.problem
            if reason := await self._put_right(file, span, look):
                return CheckedFile(file.path, size, f"entries {span.first} to {span.last}: {problem}: {reason}")
        return CheckedFile(file.path, size, problem)

    async def _put_right(self, file: EntryFile, span: EntrySpan, look: _Look) -> str:
        """Write what is known to be right; returns why that is not all, "" if it is."""
        index = self._disk.index
        try:
            if look.is_missing:
                index.use_copy(file, await trio.to_thread.run_sync(self._new_file, file))
            elif look.right is not None:
                # In the event loop, which alone cuts entries: at most 64 KiB into pages that are in memory.
                index.write_again(file, span, look.right)
        except (OSError, SkylarkError) as error:
            return str(error)
        reason = await self._disk.sync_entries()
        return reason or (await self._mend(look.damaged) if look.damaged else "")

    # --- in threads

    def _look(self, file: EntryFile, span: EntrySpan) -> _Look | None:
        """None if the file was removed meanwhile, or no descriptor is left: the next cycle looks again."""
        try:
            memory = file.pread(span.at, span.size)
        except FileClosed:
            return None
        is_readable, medium, problem = True, b"", ""
        try:
            medium = self._fs.read_direct(file.path, span.at, span.size)
        except FileNotFoundError:
            return _Look("the file is missing", is_missing=True)
        except OutOfDescriptors:
            return None
        except OSError:
            is_readable = False
        if len(medium) < span.size and is_readable:
            return _Look(f"the file ends after {span.at + len(medium)} bytes")
        right = self._with_head(file, span, memory)
        damaged = span.damaged(memory)
        if medium == memory == right and not damaged:
            return _Look()
        problem = "their bytes are not those that were written" if is_readable else "they cannot be read"
        if damaged and medium != memory and is_readable:
            # Else memory would be written over entries that only the medium has right.
            right = self._with_head(file, span, span.mended(memory, medium))
            damaged = span.damaged(right)
        return _Look(problem, right, damaged)

    def _with_head(self, file: EntryFile, span: EntrySpan, data: bytes) -> bytes:
        return data if span.at else file.head + data[len(file.head) :]

    def _new_file(self, file: EntryFile) -> MappedFile:
        load(file.file, 0, file.file.size)
        return self._fs.open_map(file.path, file.file.size, create=True)
