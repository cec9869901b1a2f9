"""Cuts the bytes of the master's log so that no sector on the slave's disk ends within a record. Pure.

Why: a sector that ends within a record can get to disk as it is, with zeros after the bytes that are there. If power is
lost before the whole sector is written, while later sectors were, the record keeps these zeros. Where no CRC covers
them, as in the times and hosts of its head and in its properties, it looks sound. A sector that ends after a whole
record has zeros where the next one begins, and recovery cuts the log there.

So records are held until they are whole. Records of more than MOST_HELD_BYTES are written in pieces that end at a page
of the file, and therefore at a sector: each of their sectors is on disk whole or not at all, as when the master wrote
the record at once. Of such a record less than a page is held.
Neighbours: slave.py (writes), replica.py (where a record in the log lacks its end), store/log/valid_record.py
(what recovery can tell).
"""

import math

from skylark.mqcommon.message.layout import BLANK_BYTES, BLANK_MAGIC, MAGIC_V1, MAGIC_V2, MIN_RECORD, SIZE_MAGIC

# RocketMQ's brokers accept messages of 4 MiB by default.
MOST_HELD_BYTES = 32 * 1024 * 1024
# A multiple of every disk's sectors.
PAGE_BYTES = 4096

_MAGICS = MAGIC_V1, MAGIC_V2
_unpack = SIZE_MAGIC.unpack_from
_NOTHING = memoryview(b"")


class WholeRecords:
    """Takes the log's bytes from ``offset`` on, in pieces of any size.

    ``file_bytes``: the size of the log's files. ``rest``: how many bytes the record that has begun before ``offset``
    lacks; 0 if a record begins there.
    """

    def __init__(self, file_bytes: int, offset: int, rest: float = 0) -> None:
        self._file_bytes = file_bytes
        # Where the held bytes begin.
        self._at = offset
        self._held = bytearray()
        # The length that is needed before anything can be written.
        self._needed = 0
        # How many bytes from `_at` on belong to a record that is written in pieces. Infinite: records are not parsed.
        self._rest = rest

    @classmethod
    def unchecked(cls) -> "WholeRecords":
        """An object that holds no bytes: all can be written as they come."""
        return cls(1, 0, math.inf)

    @property
    def is_empty(self) -> bool:
        """Whether no bytes are held."""
        return not self._held

    def add(self, data: memoryview) -> memoryview:
        """Add ``data``; returns the bytes that can be written now. The rest is held."""
        if self._held:
            self._held += data
            if len(self._held) < self._needed:
                return _NOTHING
            data = memoryview(self._held)
        end = self._end_of_writable(data)
        self._at += end
        self._held = bytearray(data[end:])
        return data[:end]

    def _end_of_writable(self, data: memoryview) -> int:
        total = len(data)
        if self._rest == math.inf:
            return total
        # `at` walks over whole records; what it stops at is held, unless it is too large (see the module).
        self._needed = 0
        at = int(self._rest)
        if at > total:
            end = self._page_end(total)
            self._rest -= end
            return end
        self._rest = 0
        while at < total:
            file_end = at + self._file_bytes - (self._at + at) % self._file_bytes
            last = min(file_end, total) - BLANK_BYTES
            while at <= last:
                size, magic = _unpack(data, at)
                if magic not in _MAGICS or size < MIN_RECORD or at + size > total:
                    break
                at += size
            else:
                if file_end - at >= BLANK_BYTES:
                    self._needed = BLANK_BYTES
                    break
                # Too few bytes for anything but the end of the file.
                magic, size = BLANK_MAGIC, file_end - at
            if magic == BLANK_MAGIC:
                size = file_end - at
            elif magic not in _MAGICS or not MIN_RECORD <= size <= file_end - at:
                # These bytes are no record. The slave's next step, which reads them, reports the damage.
                self._rest = math.inf
                return total
            elif size <= MOST_HELD_BYTES:
                self._needed = size
                break
            if at + size > total:
                # `Replica.whole_records` finds the end of a record by the size in its head.
                if (end := self._page_end(total)) < at + BLANK_BYTES:
                    break
                self._rest = at + size - end
                return end
            at += size
        return at

    def _page_end(self, total: int) -> int:
        """How many of ``total`` bytes are before the last end of a page of the file; 0 if there is none."""
        in_file = self._at % self._file_bytes
        return max((in_file + total) // PAGE_BYTES * PAGE_BYTES - in_file, 0)
