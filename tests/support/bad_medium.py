"""What the medium under a file of MemoryFiles does otherwise than the kernel believes.

Bytes in memory and on the medium may differ, a range may give other bytes at each read, and sectors may be unreadable.
Writing the bytes again (`MappedFile.pwrite`) ends all of that; a stuck sector refuses the write, too.
"""

import errno
import os

# What a disk reads and writes as one: a sector is there or it is not.
SECTOR_BYTES = 512


class BadMedium:
    """The damage of one file."""

    def __init__(self) -> None:
        #: per offset: the byte in memory XOR the byte on the medium, where they differ
        self.differs: dict[int, int] = {}
        #: ranges whose every direct read gives other bytes
        self.unstable: list[range] = []
        #: starts of sectors that cannot be read, and of those which cannot be written either
        self.unreadable: set[int] = set()
        self.stuck: set[int] = set()
        self._reads = 0

    def set_difference(self, at: int, old: bytes, new: bytes) -> None:
        """One side of ``old``, which were equal in memory and on the medium before, is ``new`` now."""
        for offset, (before, after) in enumerate(zip(old, new, strict=True), at):
            mask = self.differs.pop(offset, 0) ^ before ^ after
            if mask:
                self.differs[offset] = mask

    def read(self, path: str, at: int, memory: bytes) -> bytes:
        """The medium's bytes from ``at`` on, where memory has ``memory``. Raises OSError."""
        self.check_readable(path, at, len(memory))
        data = bytearray(self.bytes_of(at, memory))
        for changing in self.unstable:
            self._reads += 1
            for offset in range(max(changing.start, at), min(changing.stop, at + len(data))):
                data[offset - at] ^= self._reads % 255 + 1
        return bytes(data)

    def bytes_of(self, at: int, memory: bytes) -> bytes:
        """The medium's bytes from ``at`` on, where memory has ``memory`` and reads do not change."""
        if not self.differs:
            return memory
        data = bytearray(memory)
        for offset, mask in self.differs.items():
            if at <= offset < at + len(data):
                data[offset - at] ^= mask
        return bytes(data)

    def check_readable(self, path: str, at: int, size: int) -> None:
        if any(start < at + size and at < start + SECTOR_BYTES for start in self.unreadable):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    def check_writable(self, path: str, at: int, size: int) -> None:
        if any(start < at + size and at < start + SECTOR_BYTES for start in self.stuck):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    def written(self, at: int, size: int) -> None:
        """Memory's bytes of this range are written to the medium."""
        for offset in [each for each in self.differs if at <= each < at + size]:
            del self.differs[offset]
        self.unstable = [each for each in self.unstable if each.stop <= at or at + size <= each.start]
        self.unreadable = {start for start in self.unreadable if start < at or at + size < start + SECTOR_BYTES}

    def after_power_loss(self) -> "BadMedium":
        """The damage that the next kernel meets: memory has the medium's bytes then."""
        left = self.copy()
        left.differs.clear()
        return left

    def copy(self) -> "BadMedium":
        copied = BadMedium()
        copied.differs = dict(self.differs)
        copied.unstable = list(self.unstable)
        copied.unreadable, copied.stuck = set(self.unreadable), set(self.stuck)
        return copied
