"""A commit log in memory: records that begin with their size, in files; bytes behind ``flushed`` need power."""

from random import Random
from zlib import crc32

from skylark.broker.replication.link import LogBounds

FILE_BYTES = 2048
_SIZE = 4


def record_bytes(body: bytes) -> int:
    return _SIZE + len(body)


class Log:
    """Bytes ``start`` to ``end``; a record never crosses files, a filler ends a file."""

    file_bytes = FILE_BYTES

    def __init__(self, data: bytes = b"", start: int = 0) -> None:
        self.start = self.flushed = start
        # How far retention went.
        self.dropped = 0
        self.data = bytearray(data)

    @property
    def end(self) -> int:
        return self.start + len(self.data)

    def bounds(self) -> LogBounds:
        return LogBounds(self.start, self.end, self.file_bytes)

    def read(self, offset: int, size: int) -> bytes:
        return bytes(self.data[offset - self.start : offset - self.start + size])

    def crc(self, offset: int, size: int) -> int:
        return crc32(self.read(offset, size))

    def put(self, body: bytes) -> int:
        """Append a record; returns its end."""
        left = FILE_BYTES - self.end % FILE_BYTES
        size = record_bytes(body)
        if size + _SIZE > left:
            self.data += left.to_bytes(_SIZE, "big") + bytes(left - _SIZE)
        self.data += size.to_bytes(_SIZE, "big") + body
        return self.end

    def append(self, offset: int, data: bytes | memoryview) -> None:
        """The next bytes of a slave, whose empty log begins anywhere."""
        if not self.data:
            assert offset % self.file_bytes == 0, f"a log that begins at {offset}"
            self.start = self.flushed = offset
        assert offset == self.end, f"bytes for {offset} at {self.end}"
        self.data += data

    def drop_file(self) -> None:
        """Retention: the oldest file goes, never the last."""
        if len(self.data) > FILE_BYTES:
            del self.data[:FILE_BYTES]
            self.start += FILE_BYTES
            self.dropped = self.start
            self.flushed = max(self.flushed, self.start)

    def recover(self, random: Random, *, power_loss: bool) -> None:
        """Recover as a start does: all written bytes remain, or flushed ones and some more; a partial record is cut."""
        if power_loss:
            del self.data[random.randint(self.flushed, self.end) - self.start :]
        whole = 0
        while whole + _SIZE <= len(self.data):
            size = int.from_bytes(self.data[whole : whole + _SIZE], "big")
            if whole + size > len(self.data):
                break
            whole += size
        del self.data[whole:]
        self.flushed = self.end

    def copy(self) -> "Log":
        made = Log()
        made.start, made.flushed, made.dropped, made.data = self.start, self.flushed, self.dropped, self.data[:]
        return made

    def holds(self, start: int, data: bytes, *, flushed: bool) -> bool:
        """Whether ``data`` is here at ``start``, or was until it was too old."""
        if self.dropped > start:
            return True
        end = start + len(data)
        here = self.start <= start and end <= (self.flushed if flushed else self.end)
        return here and self.read(start, len(data)) == data

    def begins_like(self, other: "Log") -> bool:
        """Whether all here that `other` still keeps is there, too, and nothing is beyond its end."""
        if self.end > other.end:
            return False
        start = max(self.start, other.start)
        return start >= self.end or self.read(start, self.end - start) == other.read(start, self.end - start)
