"""Reads the records of a log file whose blocks have no sums yet, block by block. Pure.

A block is sound when all records that have bytes in it are sound: then it gets a sum. Damage of properties and times
stays unnoticed here, as only bodies have a CRC in RocketMQ's format: so a sum that is made here is weaker than one
that was made when the block was written, until another replica has the same.
Neighbours: scrub.py (feeds it); store/log/log_files.py (the same search in the maps of a stopped broker).
"""

from typing import NamedTuple

from skylark.broker.store.log.valid_record import valid_record
from skylark.broker.store.sums.block_sums import Block
from skylark.mqcommon.message.layout import (
    BLANK_BYTES,
    BLANK_MAGIC,
    HEAD_V4,
    MAGIC_V1,
    MAGIC_V2,
    MIN_RECORD,
    SIZE_MAGIC,
)

# A larger size is damage, and not a record that is waited for in memory: a body has at most 15 MiB.
MAX_RECORD_BYTES = 32 * 1024 * 1024
_MAGICS = tuple(magic.to_bytes(4, "big") for magic in (MAGIC_V1, MAGIC_V2))
_MAGIC_AT = HEAD_V4.starts["magic"]
_OFFSET = HEAD_V4.reader("physical_offset")
_HEAD_BYTES = _OFFSET.size


class Unsound(NamedTuple):
    """No sound record is in the log from ``start`` to ``end``, where the next sound record begins."""

    start: int
    end: int
    reason: str


class RecordPass:
    """One reading of a file that ends at ``file_end``, from the record at ``start`` on.

    Feed it the blocks in their order; the first one is the block that holds ``start``. If ``searches``, ``start`` may
    be amid a record: nothing is said of the bytes before the first sound record.
    """

    def __init__(self, start: int, file_end: int, *, searches: bool = False) -> None:
        self._file_end = file_end
        # All before this is judged.
        self._at = start
        # Fed bytes; the byte at `_at` is at `_read` in them, or they end before it.
        self._data = bytearray()
        self._read = 0
        #: The end of the last block that was fed; ``start`` before the first.
        self.fed_to = start
        self._waiting: list[tuple[Block, int]] = []
        # Where unsound bytes begin whose end is not found yet, and why they are unsound; "" before the first record.
        self._open: tuple[int, str] | None = (start, "") if searches else None
        # The unsound bytes that were found last; no block that waits is touched by earlier ones.
        self._last = Unsound(0, 0, "")

    def feed(self, block: Block, crc: int, data: bytes) -> tuple[list[tuple[Block, int]], list[Unsound]]:
        """Read the next block, whose sum is ``crc``.

        Returns the blocks, and their sums, that are known to be sound now, and the unsound bytes whose end was found.
        """
        begins = max(self._at - block.start, 0) if not self._data else 0
        self._data += memoryview(data)[begins:]
        self.fed_to = block.end
        self._waiting.append((block, crc))
        found: list[Unsound] = []
        sound: list[tuple[Block, int]] = []
        while self._search(found) if self._open else self._check_record():
            self._take_judged(sound)
        del self._data[: self._read]
        self._read = 0
        if block.end >= self._file_end:
            found += self.end()
        self._take_judged(sound)
        return sound, found

    def end(self) -> list[Unsound]:
        """No more blocks come: the unsound bytes whose end was not found, if there are any."""
        return self._close(self.fed_to) if self._open is not None else []

    @property
    def waiting(self) -> list[Block]:
        """The blocks that are fed and not judged yet."""
        return [block for block, _ in self._waiting]

    @property
    def is_amid_unsound(self) -> bool:
        """Whether the end of unsound bytes is not found yet."""
        return self._open is not None

    def _close(self, end: int) -> list[Unsound]:
        """The unsound bytes end here; returns them, unless they are those before the first record."""
        assert self._open is not None
        start, reason = self._open
        self._last, self._open = Unsound(start, end, reason), None
        self._skip_to(max(self._at, end))
        return [self._last] if reason else []

    def _take_judged(self, sound: list[tuple[Block, int]]) -> None:
        while self._waiting and self._waiting[0][0].end <= self._at:
            block, crc = self._waiting.pop(0)
            is_touched = self._last.start < block.end and block.start < self._last.end
            if not is_touched and (self._open is None or block.end <= self._open[0]):
                sound.append((block, crc))

    def _check_record(self) -> bool:
        """Judge the record at `_at`; False if that needs more bytes."""
        at, have = self._at, len(self._data) - self._read
        if at >= self._file_end - BLANK_BYTES + 1:
            self._skip_to(self._file_end)
            return False
        if have < BLANK_BYTES:
            return False
        size, magic = SIZE_MAGIC.unpack_from(self._data, self._read)
        if magic == BLANK_MAGIC and at + size == self._file_end:
            # Nobody reads the bytes after a filler.
            self._skip_to(self._file_end)
            return True
        if not self._may_be_record(size, magic, at):
            reason = f"no record begins at {at}" if size or magic else "zeros where a record was"
        elif have < size:
            if have < _HEAD_BYTES or _OFFSET.unpack_from(self._data, self._read)[0] == at:
                return False
            reason = "the record says it is elsewhere"
        else:
            record, reason = valid_record(bytes(self._data[self._read : self._read + size]), at)
            if record is not None:
                self._skip_to(at + size)
                return True
        self._open = at, reason
        self._skip_to(at + 1)
        return True

    def _search(self, found: list[Unsound]) -> bool:
        """Look for the next sound record from `_at` on; False if that needs more bytes."""
        at = self._next_magic()
        if at is None:
            self._skip_to(max(self._at, self.fed_to - _MAGIC_AT - len(_MAGICS[0]) + 1))
            return False
        self._skip_to(at)
        have = len(self._data) - self._read
        if have < min(_HEAD_BYTES, self._file_end - at):
            return False
        size, magic = SIZE_MAGIC.unpack_from(self._data, self._read)
        if (
            have >= _HEAD_BYTES
            and self._may_be_record(size, magic, at)
            and _OFFSET.unpack_from(self._data, self._read)[0] == at
        ):
            if have < size:
                return False
            if valid_record(bytes(self._data[self._read : self._read + size]), at)[0] is not None:
                found += self._close(at)
                return True
        self._skip_to(at + 1)
        return True

    def _next_magic(self) -> int | None:
        """Where the next record may begin, by its magic number."""
        places = [self._data.find(magic, self._read + _MAGIC_AT) for magic in _MAGICS]
        first = min((place for place in places if place >= 0), default=None)
        return None if first is None else self._at + first - _MAGIC_AT - self._read

    def _may_be_record(self, size: int, magic: int, at: int) -> bool:
        return magic in (MAGIC_V1, MAGIC_V2) and MIN_RECORD <= size <= min(self._file_end - at, MAX_RECORD_BYTES)

    def _skip_to(self, offset: int) -> None:
        self._read = min(self._read + offset - self._at, len(self._data))
        self._at = offset
