"""Reads blocks of the log from the medium, and writes blocks that are damaged again. Blocks: for threads.

A block is read past the page cache, since a page in memory hides what the disk has changed. A repair keeps the bad
bytes in ``damaged/``, writes the pages that differ, syncs, and reads the block back from the medium. A crash between
these steps leaves the block wrong, or right: in the former case it is found and repaired again.
Neighbours: judgement.py (what the right bytes are), healer.py (the steps).
"""

import logging
import mmap
from collections.abc import Callable, Iterator
from typing import NamedTuple

from skylark.broker.store.damaged_bytes import keep_damaged
from skylark.broker.store.log.segment import PIECE_BYTES, Segment
from skylark.broker.store.sums.block_sums import Block
from skylark.mqcommon.disk.atomic import write_atomic
from skylark.mqcommon.disk.files import FileSystem
from skylark.mqcommon.disk.loading import LOST_ERRNOS
from skylark.mqcommon.disk.write_again import sync_apart

logger = logging.getLogger(__name__)

# How much around a block is read, since records begin before it and end after it: mostly the first margin is enough. A
# larger record is only proven by a sum, or by most replicas.
MARGINS = (64 * 1024, 4 * 1024 * 1024 + 64 * 1024)
# How often a block is read that is not right at the first time. A disk that changes its mind is not trusted.
READS = 3
_PAGE_BYTES = mmap.PAGESIZE


class Reading(NamedTuple):
    """A block as this broker has it.

    ``on_disk``: what the direct reads gave, each once; one, unless the disk is unstable. Pages that cannot be read are
    zeros there, and ``is_readable`` is False. ``in_memory``: as readers see the block.
    """

    on_disk: tuple[bytes, ...]
    in_memory: bytes
    is_readable: bool

    @property
    def is_stable(self) -> bool:
        """Whether the disk gives the same bytes each time."""
        return len(self.on_disk) == 1


class LogBlocks:
    """The blocks of the log of the store in ``directory``."""

    def __init__(self, fs: FileSystem, directory: str) -> None:
        self._fs = fs
        self._directory = directory

    def read(self, segment: Segment, block: Block, is_right: Callable[[bytes], bool]) -> Reading:
        """Read a block; once if it is right at the first time. Raises FileClosed, or OSError."""
        found: dict[bytes, None] = {}
        is_readable = True
        for _ in range(READS):
            try:
                data = self._fs.read_direct(segment.path, block.start - segment.base, block.size)
            except OSError as error:
                if error.errno not in LOST_ERRNOS:
                    raise
                is_readable = False
                data = self._readable_pages(segment, block)
            found[data] = None
            if is_right(data):
                break
        on_disk = tuple(found)
        try:
            in_memory = segment.file.pread(block.start - segment.base, block.size)
        except OSError as error:
            if error.errno not in LOST_ERRNOS:
                raise
            in_memory = on_disk[0]
        return Reading(on_disk, in_memory, is_readable)

    def around(self, segment: Segment, start: int, end: int) -> bytes:
        """The bytes from ``start`` to ``end`` of a file; zeros where the disk cannot read. Raises as `read`."""
        if start >= end:
            return b""
        try:
            return segment.file.pread(start - segment.base, end - start)
        except OSError as error:
            if error.errno not in LOST_ERRNOS:
                raise
            return self._readable_pages(segment, Block(start, end - start))

    def _readable_pages(self, segment: Segment, block: Block) -> bytes:
        data = bytearray(block.size)
        at = block.start
        while at < block.end:
            end = min((at // _PAGE_BYTES + 1) * _PAGE_BYTES, block.end)
            try:
                data[at - block.start : end - block.start] = self._fs.read_direct(
                    segment.path, at - segment.base, end - at
                )
            except OSError as error:
                if error.errno not in LOST_ERRNOS:
                    raise
            at = end
        return bytes(data)

    def drop(self, segment: Segment, block: Block, right: bytes) -> bool:
        """Let memory have the disk's bytes again, which are ``right``; whether it has them now. Raises as `read`."""
        segment.file.drop(block.start - segment.base, block.size)
        return segment.file.pread(block.start - segment.base, block.size) == right

    def keep(self, block: Block, holder: str, data: bytes) -> str:
        """Keep bad bytes for people to look at; returns the file, or why there is none."""
        name = f"{block.start:020d}.{holder.replace('/', '_').replace(':', '_')}"
        return keep_damaged(self._fs, self._directory, name, data)

    def rewrite(self, segment: Segment, block: Block, right: bytes, now: Reading) -> bool:
        """Write ``right`` where the block differs; whether memory and disk have it now. Raises as `read`, OSError."""
        spans = _differing_pages(block, right, [*now.on_disk, now.in_memory])
        if not now.is_stable or not now.is_readable:
            spans = [block]
        return self._write(segment, block, right, spans) or self._write(segment, block, right, [block])

    def _write(self, segment: Segment, block: Block, right: bytes, spans: list[Block]) -> bool:
        file = segment.file
        try:
            for start, size in spans:
                at = start - block.start
                file.pwrite(start - segment.base, memoryview(right)[at : at + size])
            sync_apart(self._fs, segment.path)
            return self._fs.read_direct(segment.path, block.start - segment.base, block.size) == right
        except OSError as error:
            if error.errno not in LOST_ERRNOS:
                raise
            return False

    def make_file_anew(self, segment: Segment, block: Block, right: bytes) -> bool:
        """Replace a full file by a copy with ``right`` in it: its disk refuses to write the block; whether that helped.

        The caller lets the map of the old file go then. Nothing may remove or cut files meanwhile.
        Raises DiskFull and OSError; the file is then as it was.
        """
        write_atomic(self._fs, segment.path, self._pieces(segment, block, right))
        return self._fs.read_direct(segment.path, block.start - segment.base, block.size) == right

    def _pieces(self, segment: Segment, block: Block, right: bytes) -> Iterator[bytes]:
        first, last = block.start - segment.base, block.end - segment.base
        for start, end in ((0, first), (last, segment.size)):
            for at in range(start, end, PIECE_BYTES):
                yield segment.file.pread(at, min(PIECE_BYTES, end - at))
            if not start:
                yield right


def _differing_pages(block: Block, right: bytes, found: list[bytes]) -> list[Block]:
    """The pages of the block where something that was found differs; pages in a row are one span."""
    spans: list[Block] = []
    at = block.start
    while at < block.end:
        end = min((at // _PAGE_BYTES + 1) * _PAGE_BYTES, block.end)
        part = slice(at - block.start, end - block.start)
        if any(data[part] != right[part] for data in found):
            if spans and spans[-1].end == at:
                spans[-1] = Block(spans[-1].start, end - spans[-1].start)
            else:
                spans.append(Block(at, end - at))
        at = end
    return spans
