"""The CRC of each block of the log, and how far it can be trusted. Pure.

A file of the log has blocks of `BLOCK_BYTES`; the last one of a file may be shorter. A block is sealed once: when it is
full, on disk and confirmed, so that nothing may change its bytes any more. It is attested when another replica has the
same sum: then the sum, and not one of the replicas, is the judge of damage that comes later.
Sums change on the event loop only; any thread may look at them. A gigabyte of the log takes 20 KiB of memory.
Neighbours: sum_files.py (on disk), tasks/block_sealing.py (seals what was appended).
"""

from array import array
from collections.abc import Callable, Iterator
from typing import NamedTuple

from skylark.mqcommon.crc import large_crc32

BLOCK_BYTES = 256 * 1024
#: One CRC-32 in an array of them.
CRC_BYTES = 4
#: Its type in `array`.
CRC_CODE = "I" if array("I").itemsize == CRC_BYTES else "L"
_SEALED, _ATTESTED = 1, 2
# Makes a named tuple without a call of Python, which takes a third of the time.
_new = tuple.__new__


class Block(NamedTuple):
    """Bytes of the log from the physical offset ``start`` on."""

    start: int
    size: int

    @property
    def end(self) -> int:
        return self.start + self.size


class BlockSum(NamedTuple):
    """The CRC-32 of a sealed block. ``is_attested``: another replica has the same sum."""

    crc: int
    is_attested: bool


class FileSums(NamedTuple):
    """The sums of the log file that begins at ``base``, one of each kind for each of its blocks.

    ``crcs``: CRCs in the byte order of this machine, `CRC_BYTES` each. ``states``: a byte each, 0 for a block that is
    not sealed, 1 for a sealed one, 2 for an attested one.
    """

    base: int
    crcs: bytes
    states: bytes

    @property
    def is_empty(self) -> bool:
        return not any(self.states)


class _Sums:
    """As `FileSums`, to be changed."""

    __slots__ = ("crcs", "states")

    def __init__(self, crcs: bytes, states: bytes) -> None:
        self.crcs = array(CRC_CODE, crcs)
        self.states = bytearray(states)


class BlockSums:
    """The sums of a log whose files have ``segment_bytes`` each."""

    def __init__(self, segment_bytes: int) -> None:
        self._segment_bytes = segment_bytes
        self._blocks_per_file = -(-segment_bytes // BLOCK_BYTES)
        self._files: dict[int, _Sums] = {}
        # The files whose sums have changed since `take_changed`.
        self._changed: set[int] = set()
        self._count = 0
        #: How often sums were dropped because the log was cut: a CRC of bytes that were read before such a cut must not
        #: be sealed after it.
        self.cuts = 0
        #: Where the sealing of appended blocks goes on; earlier blocks without a sum are a scrub's.
        self.next_to_seal = 0
        #: All bytes from this offset on were written by this process, or compared at its start with the `TailSum`.
        self.ours_from = 0

    def __len__(self) -> int:
        """How many blocks are sealed."""
        return self._count

    @property
    def has_changed(self) -> bool:
        """Whether `take_changed` has something to return."""
        return bool(self._changed)

    @property
    def written(self) -> list[int]:
        """The log files, by their first offsets, whose sums on disk are the sums in memory."""
        return [base for base in self._files if base not in self._changed]

    def lacks(self, base: int) -> bool:
        """Whether a block of the log file at ``base`` has no sum, and only a scrub will make the sum."""
        end = min(base + self._segment_bytes, self.next_to_seal)
        return base < end and self.next_unsealed(base).start < end

    @property
    def has_attested(self) -> bool:
        """Whether another replica has the sum of some block."""
        return any(_ATTESTED in sums.states for sums in self._files.values())

    def block_at(self, offset: int) -> Block:
        """The block that holds ``offset``."""
        base = offset // self._segment_bytes * self._segment_bytes
        start = base + (offset - base) // BLOCK_BYTES * BLOCK_BYTES
        return _new(Block, (start, min(BLOCK_BYTES, base + self._segment_bytes - start)))

    def first_block_after(self, offset: int) -> int:
        """Where the first block begins that has no bytes before ``offset``."""
        block = self.block_at(offset)
        return offset if block.start == offset else block.end

    def blocks(self, start: int, end: int) -> Iterator[Block]:
        """The blocks that hold bytes from ``start`` to ``end``."""
        while start < end:
            block = self.block_at(start)
            yield block
            start = block.start + block.size

    def newest(self) -> Iterator[Block]:
        """The sealed blocks, newest first."""
        for base in sorted(self._files, reverse=True):
            states = self._files[base].states
            for number in reversed(range(len(states))):
                if states[number]:
                    yield self.block_at(base + number * BLOCK_BYTES)

    def next_unattested(self, offset: int) -> Block | None:
        """The first block from ``offset`` on that is sealed and not attested."""
        for base in sorted(base for base in self._files if base + self._segment_bytes > offset):
            first = -(-max(offset - base, 0) // BLOCK_BYTES)
            number = self._files[base].states.find(_SEALED, first)
            if number >= 0:
                return self.block_at(base + number * BLOCK_BYTES)
        return None

    def next_unsealed(self, offset: int) -> Block:
        """The first block from the block of ``offset`` on that has no sum; it may be after the end of the log."""
        while True:
            block = self.block_at(offset)
            sums, number = self._place(block)
            found = number if sums is None else sums.states.find(0, number)
            base = block.start - number * BLOCK_BYTES
            if found >= 0:
                return self.block_at(base + found * BLOCK_BYTES)
            offset = base + self._segment_bytes

    def sum_of(self, block: Block) -> BlockSum | None:
        """The sum of a sealed block; None for a block that is not sealed. For any thread."""
        sums, number = self._place(block)
        # A block that is not sealed gets its CRC before its state, and a cut replaces the object: both are of one sum.
        if sums is None or not (state := sums.states[number]):
            return None
        return _new(BlockSum, (sums.crcs[number], state == _ATTESTED))

    def is_right(self, block: Block, data: bytes | memoryview) -> bool:
        """Whether ``data`` are the bytes of the block, as far as that is known. For any thread."""
        own = self.sum_of(block)
        return own is None or large_crc32(data) == own.crc

    def seal(self, block: Block, crc: int, *, is_attested: bool = False) -> bool:
        """Keep the sum of a block that has none; returns whether it was kept."""
        base = block.start // self._segment_bytes * self._segment_bytes
        sums, number = self._place(block)
        if sums is None:
            count = self._blocks_per_file
            sums = self._files[base] = _Sums(bytes(CRC_BYTES * count), bytes(count))
        if sums.states[number]:
            return False
        sums.crcs[number] = crc
        sums.states[number] = _ATTESTED if is_attested else _SEALED
        self._count += 1
        self._changed.add(base)
        return True

    def attest(self, block: Block, crc: int) -> bool:
        """Another replica has this sum for the block: whether the block has the same, and so is attested now."""
        own = self.sum_of(block)
        if own is None or own.crc != crc:
            return False
        if not own.is_attested:
            sums, number = self._place(block)
            assert sums is not None
            sums.states[number] = _ATTESTED
            self._changed.add(block.start // self._segment_bytes * self._segment_bytes)
        return True

    def replace(self, block: Block, crc: int, *, is_attested: bool) -> None:
        """Let a sealed block have another sum: it was sealed from wrong bytes, as other replicas have shown."""
        sums, number = self._place(block)
        if sums is None or not sums.states[number]:
            self.seal(block, crc, is_attested=is_attested)
            return
        # In place: without a sum in between, a thread that compares would let any bytes pass.
        sums.crcs[number] = crc
        sums.states[number] = _ATTESTED if is_attested else _SEALED
        self._changed.add(block.start // self._segment_bytes * self._segment_bytes)

    def drop(self, block: Block) -> None:
        """Forget the sum of one block: its bytes are replaced by others."""
        self._keep(block.start // self._segment_bytes * self._segment_bytes, lambda each: each != block)

    def drop_from(self, offset: int) -> None:
        """Forget the sums of all blocks with bytes from ``offset`` on: the log is cut there."""
        self.cuts += 1
        # The block of the cut keeps bytes of before it, so sealing goes on after that block.
        self.ours_from = self.first_block_after(offset)
        self.next_to_seal = min(self.next_to_seal, self.ours_from)
        for base in [base for base in self._files if base + self._segment_bytes > offset]:
            if base < offset:
                self._keep(base, lambda each: each.end <= offset)
            else:
                self._forget(base)

    def remove_before(self, offset: int) -> None:
        """Forget the sums of all files before ``offset``, where one begins: they were removed."""
        for base in [base for base in self._files if base < offset]:
            self._forget(base)

    def load(self, file: FileSums) -> None:
        """Take over sums as they are on disk."""
        self._files[file.base] = _Sums(file.crcs, file.states)
        self._count += len(file.states) - file.states.count(0)

    def take_changed(self) -> Iterator[FileSums]:
        """The sums of files that have changed since the last call, to be written. For any thread, one at a time."""
        while self._changed:
            # First: a change that comes after the copy is taken is left to the next call.
            base = self._changed.pop()
            sums = self._files.get(base)
            if sums is None:
                yield FileSums(base, b"", b"")
            else:
                # The states first: a block that is sealed meanwhile must not have its state without its CRC.
                states = bytes(sums.states)
                yield FileSums(base, sums.crcs.tobytes(), states)

    def write_again(self, base: int) -> None:
        """Have the next `take_changed` return the sums of the log file at ``base``: on disk they are not right.

        For any thread.
        """
        self._changed.add(base)

    def _forget(self, base: int) -> None:
        states = self._files.pop(base).states
        self._count -= len(states) - states.count(0)
        self._changed.add(base)

    def _keep(self, base: int, is_kept: Callable[[Block], bool]) -> None:
        """Forget the sums of this file's blocks that are not kept."""
        old = self._files.get(base)
        if old is None:
            return
        dropped = [
            number
            for number, state in enumerate(old.states)
            if state and not is_kept(self.block_at(base + number * BLOCK_BYTES))
        ]
        if not dropped:
            return
        # Another object: a thread that looks at the old one must not see the CRC of a block that is sealed later.
        sums = _Sums(old.crcs.tobytes(), bytes(old.states))
        for number in dropped:
            sums.states[number] = 0
        self._count -= len(dropped)
        if any(sums.states):
            self._files[base] = sums
        else:
            del self._files[base]
        self._changed.add(base)

    def _place(self, block: Block) -> tuple[_Sums | None, int]:
        base = block.start // self._segment_bytes * self._segment_bytes
        return self._files.get(base), (block.start - base) // BLOCK_BYTES
