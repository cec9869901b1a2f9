"""Blocks of the log are compared with their sums before anybody sees their bytes.

The kernel's read-ahead and sends to slaves bring pages into memory that nobody has compared, and a page may be evicted
and read again at any moment. So it says nothing that the bytes of a sealed block are in memory. A thread reads the
block whole and compares it. This process then keeps the block in memory of its own, where no disk can change it, and
reads are copies of the kept bytes. The last block, which is not sealed before it is full, is kept as this process has
written it. Old files that no scrub has sealed yet are read as they are.
A block that differs raises `Damaged`. `hold` has it mended; after a while it may give the block up, and then the block
is read as it is: each record is compared with its body's CRC, and readers skip what is damaged (entry_repair.py), or
may be (suspects.py).
Neighbours: store/sums/ (the sums), residency.py (how reads wait for a thread), damage_hold.py (the wait for repair).
"""

import threading
from collections import OrderedDict
from collections.abc import Iterable
from typing import NamedTuple, Protocol

from skylark.broker.store.log.residency import Damaged, Hold
from skylark.broker.store.log.segment import SegmentChain
from skylark.broker.store.log.suspects import suspects
from skylark.broker.store.sums.block_sums import BLOCK_BYTES, Block, BlockSums
from skylark.mqcommon.crc import large_crc32
from skylark.mqcommon.disk.files import MappedFile
from skylark.mqcommon.disk.loading import LOST_ERRNOS, SECTOR_BYTES
from skylark.mqcommon.errors import FileClosed

# Compared blocks that this process keeps: 16 MiB.
KEPT_BLOCKS = 64
# A read of more blocks than this keeps none of them: readers of many bytes come once.
KEPT_AT_ONCE = 8


class PartFile(Protocol):
    """A file whose parts a thread can read."""

    def pread(self, at: int, size: int) -> bytes:
        """See MappedFile."""


class _Kept(NamedTuple):
    #: The sum of ``data``; None for bytes of a block that was given up.
    crc: int | None
    data: bytes


class ComparedBlocks:
    """The blocks of one log. ``hold``: what has damage mended; None: nothing is compared."""

    def __init__(self, chain: SegmentChain, sums: BlockSums) -> None:
        self._chain = chain
        self._sums = sums
        self._kept: OrderedDict[int, _Kept] = OrderedDict()
        # Threads and the event loop keep blocks.
        self._lock = threading.Lock()
        #: Where the blocks start that nobody could mend in time, and the ranges of the log in them that may be wrong.
        self.given_up: dict[int, list[tuple[int, int]]] = {}
        self.hold: Hold | None = None
        # Where the bytes of the last `keep_tail` begin, and the bytes. Threads read both at once.
        self._tail = (0, b"")

    # --- in the event loop

    def give_up(self, block: Block, wrong: list[tuple[int, int]]) -> None:
        """From now on read the block as it is, record by record. ``wrong``: what `suspects` has found."""
        self.given_up[block.start] = wrong

    def repaired(self, blocks: Iterable[Block]) -> None:
        """``blocks`` have the right bytes on disk again: messages that were skipped in them are read again."""
        for block in blocks:
            if block.start <= self._tail[0] < block.end:
                self._tail = (0, b"")
            self.given_up.pop(block.start, None)
            with self._lock:
                self._kept.pop(block.start, None)

    def cut_at(self, offset: int) -> None:
        """The log is cut at ``offset``: what was damaged after it is gone."""
        for start in [start for start in self.given_up if self._sums.block_at(start).end > offset]:
            del self.given_up[start]
            with self._lock:
                self._kept.pop(start, None)
        at, tail = self._tail
        self._tail = at, tail[: max(offset - at, 0)]

    def keep_tail(self, start: int, end: int) -> None:
        """Keep the bytes of the last block of the log, which ends at ``end``. This process has written them lately.

        They are kept from ``start`` on at the earliest: what was there before it came from the disk.
        """
        start = max(start, self._sums.block_at(end).start)
        segment = self._chain.at(start)
        at, tail = self._tail
        if start == at and end - start == len(tail):
            return
        # What is kept already stays: the bytes in the map may be others by now.
        kept = tail[: end - start] if start == at else b""
        new = b"" if segment is None else segment.file.view[start + len(kept) - segment.base : end - segment.base]
        self._tail = start, kept + new

    def is_sealed(self, offset: int) -> bool:
        """Whether the block of ``offset`` has a sum, with which reads of it are compared."""
        return self.hold is not None and self._sums.sum_of(self._sums.block_at(offset)) is not None

    def are_vouched_for(self, start: int, end: int) -> bool:
        """Whether all bytes from ``start`` to ``end`` are in blocks that are right if they can be read."""
        return self.hold is not None and all(
            block.start not in self.given_up
            and (self._sums.sum_of(block) is not None or self._in_tail(max(start, block.start), min(end, block.end)))
            for block in self._sums.blocks(start, end)
        )

    def is_given_up(self, offset: int) -> bool:
        """Whether damage at ``offset`` is skipped: nobody could mend it, or there is nobody who could."""
        return self.hold is None or self._sums.block_at(offset).start in self.given_up

    def may_be_wrong(self, start: int, end: int) -> bool:
        """Whether bytes from ``start`` to ``end``, of blocks that were given up, may be wrong without a sign of it."""
        return bool(self.given_up) and any(
            first < end and start < last
            for block in self._sums.blocks(start, end)
            for first, last in self.given_up.get(block.start, ())
        )

    def at_hand(self, file: MappedFile, base: int, start: int, end: int) -> bool:
        """Whether these bytes can be read without waiting. ``file`` begins at ``base`` of the log."""
        if self.hold is not None:
            for block in self._sums.blocks(start, end):
                own, first, last = self._sums.sum_of(block), max(start, block.start), min(end, block.end)
                if own is not None:
                    is_there = self._kept_bytes(block, own.crc) is not None
                else:
                    is_there = self._in_tail(first, last) or file.resident(first - base, last - first)
                if not is_there:
                    return False
            return True
        return file.resident(start - base, end - start)

    def copy(self, file: MappedFile, base: int, start: int, end: int) -> bytes:
        """The bytes; blocks that are not kept are read and compared now, so the caller may wait."""
        data = self._copied(file, base, start, end, may_wait=True)
        assert data is not None
        return data

    def copy_at_hand(self, file: MappedFile, base: int, start: int, end: int) -> bytes | None:
        """The bytes if they can be read without waiting, else None."""
        return self._copied(file, base, start, end, may_wait=False)

    def _copied(self, file: MappedFile, base: int, start: int, end: int, *, may_wait: bool) -> bytes | None:
        if self.hold is None:
            is_there = may_wait or file.resident(start - base, end - start)
            return file.view[start - base : end - base] if is_there else None
        parts: list[bytes] = []
        for block in self._sums.blocks(start, end):
            first, last = max(start, block.start), min(end, block.end)
            own = self._sums.sum_of(block)
            if own is None:
                data = self._of_tail(first, last)
                if data is None and (may_wait or file.resident(first - base, last - first)):
                    data = file.view[first - base : last - base]
            else:
                data = self._kept_bytes(block, own.crc)
                if data is None and may_wait:
                    data = self._block(file, base, block)
                if data is not None:
                    data = data[first - block.start : last - block.start]
            if data is None:
                return None
            parts.append(data)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    # --- in any thread

    def read(self, start: int, size: int) -> bytes:
        """As `read_file`: ``size`` bytes of the log, at most to the end of a file; empty if the file is gone."""
        segment = self._chain.at(start)
        if segment is None:
            return b""
        return self.read_file(segment.file, segment.base, start, min(start + size, segment.end))

    def read_file(self, file: MappedFile, base: int, start: int, end: int) -> bytes:
        """The bytes of the log from ``start`` to ``end``, after all their blocks were compared. Blocks.

        ``file`` begins at ``base`` of the log, and holds them all. Raises Damaged, OSError, FileClosed.
        """
        if self.hold is None:
            return file.pread(start - base, end - start)
        blocks = list(self._sums.blocks(start, end))
        if len(blocks) <= KEPT_AT_ONCE:
            parts = []
            damaged: list[Block] = []
            for block in blocks:
                first, last = max(start, block.start), min(end, block.end)
                try:
                    if self._sums.sum_of(block) is None:
                        kept = self._of_tail(first, last)
                        parts.append(self._as_it_is(file, base, Block(first, last - first)) if kept is None else kept)
                    else:
                        parts.append(self._block(file, base, block)[first - block.start : last - block.start])
                except Damaged as error:
                    damaged += error.blocks
            if damaged:
                raise Damaged(damaged, self.hold)
            return parts[0] if len(parts) == 1 else b"".join(parts)
        # One read for all: copies of many bytes would hold up the other threads.
        data = self._as_it_is(file, base, Block(start, end - start))
        view = memoryview(data)
        damaged = []
        for block in blocks:
            own = self._sums.sum_of(block)
            if own is None:
                first, last = max(start, block.start), min(end, block.end)
                if (kept := self._of_tail(first, last)) is not None:
                    data = b"".join((data[: first - start], kept, data[last - start :]))
                continue
            if block.start in self.given_up:
                continue
            try:
                crc = large_crc32(file.pread(block.start - base, start - block.start)) if block.start < start else 0
                crc = large_crc32(view[max(block.start - start, 0) : block.end - start], crc)
                if block.end > end:
                    crc = large_crc32(file.pread(end - base, block.end - end), crc)
            except OSError as error:
                self._refuse_other(error)
                crc = ~own.crc
            if crc != own.crc and not self._is_right_now(block, crc):
                damaged.append(block)
        if damaged:
            raise Damaged(damaged, self.hold)
        return data

    def compare(self, file: PartFile, base: int, block: Block) -> None:
        """Raise Damaged if the block, of a file that begins at ``base``, differs from its sum, or cannot be read."""
        if self.hold is not None and block.start not in self.given_up:
            own = self._sums.sum_of(block)
            data = self._as_it_is(file, base, block)
            if own is not None and (crc := large_crc32(data)) != own.crc and not self._is_right_now(block, crc):
                raise Damaged([block], self.hold)

    def suspects(self, block: Block) -> list[tuple[int, int]]:
        """The ranges of a damaged block that may be wrong without a sign of it. Blocks, and takes some 100 ms."""
        segment, own = self._chain.at(block.start), self._sums.sum_of(block)
        if segment is None or own is None:
            return []
        # A record that begins in the block before may show the damage.
        before = max(segment.base, block.start - BLOCK_BYTES)
        try:
            data = segment.file.pread(before - segment.base, block.end - before)
        except FileClosed:
            return []
        except OSError:
            return [(block.start, block.end)]
        return suspects(data, before, block.start, own.crc)

    # --- inside

    def _in_tail(self, start: int, end: int) -> bool:
        at, tail = self._tail
        return at <= start and end <= at + len(tail)

    def _of_tail(self, start: int, end: int) -> bytes | None:
        """The bytes as they were written, if they are kept."""
        at, tail = self._tail
        return tail[start - at : end - at] if at <= start and end <= at + len(tail) else None

    def _kept_bytes(self, block: Block, crc: int) -> bytes | None:
        kept = self._kept.get(block.start)
        # Bytes with another sum are of a log that was cut since, or damaged.
        if kept is None or (kept.crc != crc if kept.crc is not None else block.start not in self.given_up):
            return None
        with self._lock:
            if block.start in self._kept:
                # Blocks that nobody has read for the longest time go first.
                self._kept.move_to_end(block.start)
        return kept.data

    def _block(self, file: PartFile, base: int, block: Block) -> bytes:
        """The bytes of a sealed block: the kept bytes, or else the bytes of the file, after a comparison."""
        own = self._sums.sum_of(block)
        if own is not None and (kept := self._kept_bytes(block, own.crc)) is not None:
            return kept
        data = self._as_it_is(file, base, block)
        if own is None:
            return data  # its sum was dropped meanwhile
        crc: int | None = own.crc
        if (found := large_crc32(data)) != own.crc:
            if self._is_right_now(block, found):
                return data
            if block.start not in self.given_up:
                raise Damaged([block], self.hold)
            crc = None
        with self._lock:
            self._kept[block.start] = _Kept(crc, data)
            self._kept.move_to_end(block.start)
            while len(self._kept) > KEPT_BLOCKS:
                self._kept.popitem(last=False)
        return data

    def _is_right_now(self, block: Block, crc: int) -> bool:
        """Whether bytes with the CRC ``crc``, which did not match the block's sum, are no damage after all.

        The log may have been cut there, or the sum replaced, while the bytes were read.
        """
        own = self._sums.sum_of(block)
        return own is None or own.crc == crc

    def _as_it_is(self, file: PartFile, base: int, part: Block) -> bytes:
        """The bytes of the file. Damaged if the disk cannot read them; zeros instead where that was given up."""
        try:
            return file.pread(part.start - base, part.size)
        except OSError as error:
            self._refuse_other(error)
        parts: list[bytes] = []
        damaged: dict[Block, None] = {}
        at = part.start
        while at < part.end:
            size = min(SECTOR_BYTES - (at - base) % SECTOR_BYTES, part.end - at)
            try:
                parts.append(file.pread(at - base, size))
            except OSError as error:
                self._refuse_other(error)
                parts.append(bytes(size))
                wrong = [block for block in self._sums.blocks(at, at + size) if block.start not in self.given_up]
                damaged.update(dict.fromkeys(wrong))
            at += size
        if damaged:
            raise Damaged([*damaged], self.hold)
        return b"".join(parts)

    def _refuse_other(self, error: OSError) -> None:
        """Raise ``error`` unless it says that the disk has lost the bytes."""
        if error.errno not in LOST_ERRNOS:
            raise error


class ComparedFile(NamedTuple):
    """A file of the log for reads within `resident_only`: threads get its bytes compared."""

    blocks: ComparedBlocks
    file: MappedFile
    base: int

    @property
    def path(self) -> str:
        return self.file.path

    @property
    def size(self) -> int:
        return self.file.size

    def resident(self, at: int, size: int) -> bool:
        """Whether ``size`` bytes from ``at`` on can be had without waiting, see `copy`."""
        return self.blocks.at_hand(self.file, self.base, *self._range(at, size))

    def pread(self, at: int, size: int) -> bytes:
        """As `ComparedBlocks.read_file`, from byte ``at`` of the file."""
        return self.blocks.read_file(self.file, self.base, *self._range(at, size))

    def copy(self, at: int, size: int) -> bytes:
        """As `pread`, from memory where the bytes are there."""
        return self.blocks.copy(self.file, self.base, *self._range(at, size))

    def copy_at_hand(self, at: int, size: int) -> bytes | None:
        """As `copy`; None for bytes that cannot be had without waiting."""
        return self.blocks.copy_at_hand(self.file, self.base, *self._range(at, size))

    def _range(self, at: int, size: int) -> tuple[int, int]:
        # Bytes that are no record may claim a size that goes beyond the file.
        return self.base + at, self.base + min(at + size, self.file.size)
