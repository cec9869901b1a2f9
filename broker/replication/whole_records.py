"""Cuts the bytes of the master's log where records end, so that a slave writes whole records only. Pure.

Why: a sector that ends within a record can get to disk as it is, with zeros after the bytes that are there. If power is
lost before the whole sector is written, while later sectors were, the record keeps these zeros. Where no CRC covers
them, as in the times and hosts of its head and in its properties, it looks sound. A sector that ends after a whole
record has zeros where the next one begins, and recovery cuts the log there.
Neighbours: slave.py (writes), store/log/sound.py (what recovery can tell).
"""

import math

from mqcommon.message.layout import BLANK_BYTES, BLANK_MAGIC, MAGIC_V1, MAGIC_V2, MIN_RECORD, SIZE_MAGIC

# Larger records are written as they come. RocketMQ's brokers accept messages of 4 MiB by default.
MOST_HELD_BYTES = 32 * 1024 * 1024

_MAGICS = MAGIC_V1, MAGIC_V2
_unpack = SIZE_MAGIC.unpack_from
_NOTHING = memoryview(b"")


class WholeRecords:
    """Takes the log's bytes from ``offset`` on, where a record begins, in pieces of any size.

    ``file_bytes``: the size of the log's files. ``written``: the first bytes, if the log has them already.
    """

    def __init__(self, file_bytes: int, offset: int, written: bytes = b"") -> None:
        self._file_bytes = file_bytes
        self._at = offset
        self._held = bytearray(written)
        self._written = len(written)
        # The length that is needed before anything can be written.
        self._needed = 0
        # So many bytes are written as they come.
        self._passing: float = 0

    @classmethod
    def unchecked(cls) -> "WholeRecords":
        """Writes all bytes as they come."""
        found = cls(1, 0)
        found._passing = math.inf
        return found

    @property
    def is_empty(self) -> bool:
        """Whether no bytes are held."""
        return not self._held

    def take(self, data: memoryview) -> memoryview:
        """Add ``data``; returns what can be written now. The rest is held until its record is whole."""
        if self._held:
            self._held += data
            if len(self._held) < self._needed:
                return _NOTHING
            data = memoryview(self._held)
        end = self._end_of_whole(data)
        known = min(self._written, end)
        self._written -= known
        self._at += end
        self._held = bytearray(data[end:])
        return data[known:end]

    def _end_of_whole(self, data: memoryview) -> int:
        """Where the whole records of ``data`` end."""
        total = len(data)
        at = int(min(self._passing, total))
        self._passing -= at
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
                # No record. The slave's next step, which is to read it, tells what is wrong.
                self._passing = math.inf
                return total
            elif size <= MOST_HELD_BYTES:
                self._needed = size
                break
            rest = total - at
            if size > rest:
                self._passing = size - rest
                return total
            at += size
        return at
