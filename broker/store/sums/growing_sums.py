"""CRCs of files that grow at their end: the queues, and the index.

The files of a chain are cut into the same blocks as the log's, see block_sums.py. The sum of a block covers its first
bytes, as many as are known to be right: bytes that this process wrote, and bytes that were compared with the log.

The log is the judge of these files, so a sum only says where to look. A sum that does not fit has the bytes compared
with the log; when they are right, the sum was stale (another program wrote the file), and is forgotten.
Neighbour: derived_sums.py (on disk).
"""

import struct
import threading
from typing import NamedTuple
from zlib import crc32

from skylark.broker.store.sums.block_sums import BLOCK_BYTES, Block
from skylark.mqcommon.crc import LARGE_BYTES, large_crc32

_ROW = struct.Struct(">II")
_unpack, _pack_into = _ROW.unpack_from, _ROW.pack_into
_NONE: frozenset[int] = frozenset()
# Held for the moment in which a thread, or the event loop, changes what was compared.
_LOCK = threading.Lock()


class PrefixSum(NamedTuple):
    """The CRC-32 of the first ``size`` bytes of a block."""

    size: int
    crc: int

    @classmethod
    def of(cls, data: bytes) -> "PrefixSum":
        """The sum of ``data``."""
        return cls(len(data), large_crc32(data))

    def fits(self, data: bytes) -> bool:
        """Whether ``data``, the bytes of the block, fit the sum as far as it goes."""
        return self.size <= len(data) and large_crc32(memoryview(data)[: self.size]) == self.crc


class GrowingSums:
    """The sums of a chain whose files have ``segment_bytes`` each. All positions are bytes of the chain.

    ``suspects``: numbers of blocks whose bytes did not fit their sums when they were read.
    """

    __slots__ = (
        "_first",
        "_last_row",
        "_loaded_end",
        "_next_at",
        "_next_end",
        "_per_segment",
        "_rows",
        "_seen",
        "_segment_bytes",
        "suspects",
    )

    def __init__(self, segment_bytes: int) -> None:
        self._segment_bytes = segment_bytes
        self._per_segment = -(-segment_bytes // BLOCK_BYTES)
        # One row for each block from block number `_first` on; size 0: not known.
        self._first = 0
        self._rows = bytearray()
        # Where the bytes end that were added last, and the block of these; and where its row is. -1: not known.
        self._next_at = self._next_end = self._last_row = -1
        # Blocks before this one came from the disk, and are compared when they are first read; `_seen` are those that
        # were. Later ones were written, or compared, by this process.
        self._loaded_end = 0
        self._seen = _NONE
        self.suspects = _NONE

    def number_at(self, position: int) -> int:
        """The number of the block that holds ``position``."""
        segment, at = divmod(position, self._segment_bytes)
        return segment * self._per_segment + at // BLOCK_BYTES

    def block(self, number: int) -> Block:
        """Where block ``number`` is."""
        segment, index = divmod(number, self._per_segment)
        start = index * BLOCK_BYTES
        return Block(segment * self._segment_bytes + start, min(BLOCK_BYTES, self._segment_bytes - start))

    def sum_of(self, number: int) -> PrefixSum:
        """The sum of a block; of no bytes when none is known. For any thread."""
        at = (number - self._first) * _ROW.size
        # In one step: the event loop may drop rows meanwhile.
        row = self._rows[at : at + _ROW.size] if at >= 0 else b""
        return PrefixSum._make(_ROW.unpack(row)) if row else PrefixSum(0, 0)

    def needs_look(self, position: int, size: int) -> bool:
        """Whether one of these bytes is in a block that has a sum, and was not compared with it since the start."""
        number, last = self.number_at(position), self.number_at(position + size - 1)
        while number <= last:
            if number < self._loaded_end and number not in self._seen and self.sum_of(number).size:
                return True
            number += 1
        return False

    def suspected(self, position: int, size: int) -> int | None:
        """The first suspect block that holds one of these bytes; None if there is none."""
        first, last = self.number_at(position), self.number_at(position + size - 1)
        return min((number for number in self.suspects if first <= number <= last), default=None)

    def see(self, number: int) -> None:
        """The bytes of the block were compared, and fit. For any thread."""
        with _LOCK:
            self._seen |= {number}
            self.suspects -= {number}

    def suspect(self, number: int) -> None:
        """The bytes of the block do not fit its sum. For any thread."""
        with _LOCK:
            self.suspects |= {number}

    def look_again(self, number: int) -> None:
        """The block was repaired: it is compared once more before it is used."""
        with _LOCK:
            self.suspects -= {number}
            self._seen -= {number}
            self._loaded_end = max(self._loaded_end, number + 1)

    def extend(self, at: int, data: bytes) -> None:
        """This process has written ``data`` at ``at``."""
        end = at + len(data)
        crc_of = large_crc32 if len(data) >= LARGE_BYTES else crc32
        if at == self._next_at and end <= self._next_end:
            # Most often: a checkpoint has written a few entries more.
            size, crc = _unpack(self._rows, self._last_row)
            _pack_into(self._rows, self._last_row, size + len(data), crc_of(data, crc))
            self._next_at = end
            return
        done, number = 0, 0
        while done < len(data):
            number = self.number_at(at + done)
            block = self.block(number)
            piece = memoryview(data)[done : done + block.end - at - done]
            size, crc = self.sum_of(number) if at + done > block.start else (0, 0)
            if block.start + size == at + done:
                self.put(number, PrefixSum(size + len(piece), crc_of(piece, crc)))
            elif size:
                self.put(number, PrefixSum(0, 0))  # written once more, in the middle
            done += len(piece)
        if data and self.sum_of(number).size:
            self._next_at, self._next_end = end, self.block(number).end
            self._last_row = (number - self._first) * _ROW.size

    def put(self, number: int, known: PrefixSum) -> None:
        """Set the sum of a block."""
        self._next_at = -1
        if not self._rows:
            self._first = number
        if number < self._first:
            self._rows[:0] = bytes((self._first - number) * _ROW.size)
            self._first = number
        at = (number - self._first) * _ROW.size
        if at >= len(self._rows):
            self._rows += bytes(at + _ROW.size - len(self._rows))
        _ROW.pack_into(self._rows, at, *known)

    def forget(self, number: int) -> None:
        """Forget the sum of a block: it did not fit bytes that are right."""
        with _LOCK:
            self.suspects -= {number}
        if self.sum_of(number).size:
            self.put(number, PrefixSum(0, 0))

    def forget_to(self, position: int) -> None:
        """Forget the sums of all blocks that begin before ``position``."""
        for number in range(self._first, self.number_at(max(position - 1, 0)) + 1):
            self.forget(number)

    def drop_from(self, position: int) -> None:
        """The files were cut at ``position``."""
        self._next_at = -1
        number = self.number_at(position)
        del self._rows[max(number - self._first, 0) * _ROW.size :]
        self._loaded_end = min(self._loaded_end, number)
        with _LOCK:
            self.suspects = frozenset(each for each in self.suspects if each < number)

    def remove_before(self, position: int) -> None:
        """The files before ``position`` were removed."""
        gone = self.number_at(position) - self._first
        if gone > 0 and self._rows:
            self._next_at = -1
            del self._rows[: gone * _ROW.size]
            self._first += gone
            with _LOCK:
                self._seen = frozenset(number for number in self._seen if number >= self._first)
                self.suspects = frozenset(number for number in self.suspects if number >= self._first)

    def rows(self) -> tuple[int, bytes]:
        """All sums, for `take_rows`."""
        return self._first, bytes(self._rows)

    def take_rows(self, first: int, rows: bytes, end: int) -> None:
        """Use the ``rows`` of an earlier process, as far as the files, which end at ``end``, can have their bytes."""
        self._first, self._rows = first, bytearray(rows)
        self._loaded_end = first + len(rows) // _ROW.size
        for number in range(self._loaded_end - 1, first - 1, -1):
            if self.block(number).start + self.sum_of(number).size <= end:
                break
            del self._rows[-_ROW.size :]
