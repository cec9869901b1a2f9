"""The CRC of each block of the log, and how far it can be trusted. Pure.

A file of the log has blocks of `BLOCK_BYTES`; the last one of a file may be shorter. A block is sealed once: when it is
full, on disk and confirmed, so that nothing may change its bytes any more. It is attested when another replica has the
same sum: then the sum, and not one of the replicas, is the judge of damage that comes later.
Neighbours: sum_files.py (on disk).
"""

from collections.abc import Iterator
from typing import NamedTuple
from zlib import crc32

BLOCK_BYTES = 256 * 1024


class Block(NamedTuple):
    """Bytes of the log from the physical offset ``start`` on."""

    start: int
    size: int

    @property
    def end(self) -> int:
        return self.start + self.size


class BlockSum(NamedTuple):
    """The CRC-32 of a sealed block. ``is_attested``: another replica has the same."""

    crc: int
    is_attested: bool


class BlockSums:
    """The sums of a log whose files have ``segment_bytes`` each."""

    def __init__(self, segment_bytes: int) -> None:
        self._segment_bytes = segment_bytes
        self._sums: dict[int, BlockSum] = {}

    def __len__(self) -> int:
        """How many blocks are sealed."""
        return len(self._sums)

    def block_at(self, offset: int) -> Block:
        """The block that holds ``offset``."""
        base = offset // self._segment_bytes * self._segment_bytes
        start = base + (offset - base) // BLOCK_BYTES * BLOCK_BYTES
        return Block(start, min(BLOCK_BYTES, base + self._segment_bytes - start))

    def blocks(self, start: int, end: int) -> Iterator[Block]:
        """The blocks that hold bytes from ``start`` to ``end``."""
        while start < end:
            block = self.block_at(start)
            yield block
            start = block.end

    def sum_of(self, block: Block) -> BlockSum | None:
        """The sum of a sealed block; None for a block that is not sealed. For any thread."""
        return self._sums.get(block.start)

    def seal(self, block: Block, crc: int, *, is_attested: bool = False) -> None:
        """Keep the sum of a block that has none."""
        self._sums.setdefault(block.start, BlockSum(crc, is_attested))

    def attest(self, block: Block, crc: int) -> bool:
        """Another replica has this sum for the block: whether the block has the same, and so is attested now."""
        own = self._sums.get(block.start)
        if own is None or own.crc != crc:
            return False
        self._sums[block.start] = BlockSum(crc, True)
        return True

    def drop_from(self, offset: int) -> None:
        """Forget the sums of all blocks with bytes from ``offset`` on: the log is cut there."""
        self._sums = {start: kept for start, kept in self._sums.items() if self.block_at(start).end <= offset}

    def remove_before(self, offset: int) -> None:
        """Forget the sums of all blocks before ``offset``: their files were removed."""
        self._sums = {start: kept for start, kept in self._sums.items() if start >= offset}

    def is_right(self, block: Block, data: bytes | memoryview) -> bool:
        """Whether ``data`` are the bytes of the block, as far as that is known. For any thread."""
        own = self._sums.get(block.start)
        return own is None or crc32(data) == own.crc
