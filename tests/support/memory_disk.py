"""What a file is to MemoryFiles: bytes as the kernel has them and bytes as the disk has them, and names likewise."""

import mmap
from random import Random

from tests.support.bad_medium import SECTOR_BYTES, BadMedium


class Node:
    """The content of a file: as the kernel has it, and as the disk has it."""

    def __init__(self, data: bytes = b"") -> None:
        self.data = bytearray(data)
        self._durable = bytearray(data)
        # The map, shared by all handles that have the file mapped, and the number of these handles.
        self.map: mmap.mmap | None = None
        self.maps = 0
        # How many bytes at its end have no blocks yet.
        self.hole = 0
        # What the kernel had when a sync failed, by the start of the sector: it counts as written since, and no later
        # sync writes it.
        self._forgotten: dict[int, bytes] = {}
        self.medium = BadMedium()

    def content(self) -> bytes:
        return self.part(0, self.size())

    def part(self, at: int, size: int) -> bytes:
        if self.map is None:
            return bytes(self.data[at : at + size])
        return self.map[at : at + size] + bytes(self.data[max(at, len(self.map)) : at + size])

    def open_map(self, size: int) -> mmap.mmap:
        """Map ``size`` bytes, for one handle more."""
        if self.map is None or len(self.map) != size:
            self._take_map()
            self.map = mmap.mmap(-1, size)
            known = min(size, len(self.data))
            self.map[:known] = memoryview(self.data)[:known]
            self.maps = 0
        self.maps += 1
        return self.map

    def close_map(self) -> bool:
        """A handle has ended: whether it was the last one."""
        self.maps -= 1
        if not self.maps:
            self._take_map()
        return not self.maps

    def _take_map(self) -> None:
        if self.map is not None:
            self.data += bytes(max(0, len(self.map) - len(self.data)))
            with memoryview(self.data) as data:
                data[: len(self.map)] = memoryview(self.map)
            self.map = None

    def size(self) -> int:
        return len(self.data) if self.map is None else max(len(self.map), len(self.data))

    def sync(self) -> None:
        if self._forgotten:
            self._durable = bytearray(self._without_forgotten(self.content()))
            return
        size = self.size()
        if len(self._durable) != size:
            self._durable = bytearray(size)
        # Into the bytes that are there: new ones for each sync would be most of the time that a test of a store takes.
        with memoryview(self._durable) as durable:
            mapped = 0 if self.map is None else len(self.map)
            if self.map is not None:
                durable[:mapped] = memoryview(self.map)
            durable[mapped:] = memoryview(self.data)[mapped:]
        for offset, mask in self.medium.differs.items():
            self._durable[offset] ^= mask

    def sync_failed(self) -> None:
        """Fail as Linux does: the error is reported once, and the next sync succeeds without the bytes of this sync."""
        content = self.content()
        self._forgotten = {
            start: content[start : start + SECTOR_BYTES]
            for start in range(0, len(content), SECTOR_BYTES)
            if content[start : start + SECTOR_BYTES] != self._durable[start : start + SECTOR_BYTES]
        }

    def written(self, at: int, size: int) -> None:
        """Bytes were written here, perhaps the same as before: the next sync has them."""
        for start in range(at // SECTOR_BYTES * SECTOR_BYTES, at + size, SECTOR_BYTES):
            self._forgotten.pop(start, None)
        self.medium.written(at, size)

    def damage(self, at: int, data: bytes, *, in_memory: bool, on_disk: bool) -> None:
        """Rot: the bytes from ``at`` on are ``data``, in memory, on the medium, or both."""
        old = self.part(at, len(data))
        if in_memory:
            content = self.map if self.map is not None and at < len(self.map) else self.data
            content[at : at + len(data)] = data
        if on_disk and len(self._durable) >= at + len(data):
            self._durable[at : at + len(data)] = data
        if in_memory != on_disk:
            self.medium.set_difference(at, old, data)

    def read_direct(self, path: str, at: int, size: int) -> bytes:
        """The medium's bytes. Raises OSError."""
        return self.medium.read(path, at, self.part(at, size))

    def drop(self, at: int, size: int) -> None:
        """Memory forgets these bytes, and has the medium's at the next read."""
        for offset in [each for each in self.medium.differs if at <= each < at + size]:
            content = self.map if self.map is not None and offset < len(self.map) else self.data
            content[offset] ^= self.medium.differs.pop(offset)

    def flip(self, offset: int, bit: int) -> None:
        """Rot: one bit is another, in memory and on disk."""
        content = self.map if self.map is not None and offset < len(self.map) else self.data
        content[offset] ^= 1 << bit
        if offset < len(self._durable):
            self._durable[offset] ^= 1 << bit

    def twin(self) -> "Node":
        """The same for another kernel that has the same bytes in memory."""
        twin = Node(self.content())
        twin._durable = self._durable.copy()
        twin.hole = self.hole
        twin._forgotten = dict(self._forgotten)
        twin.medium = self.medium.copy()
        return twin

    def survivor(self, random: Random) -> bytes:
        """The bytes after power loss: each unsynced sector is there or not, the length is old, new or between."""
        current, durable = self.medium.bytes_of(0, self.content()), bytes(self._durable)
        mode = random.choice(("nothing", "everything", "prefix", "sectors"))
        if mode == "nothing" or current == durable:
            return durable
        if mode == "everything" and not self._forgotten:
            return current
        low, high = sorted((len(durable), len(current)))
        length = random.randint(low, high)
        if mode == "prefix" and not self._forgotten:
            return current[:length] if len(current) >= len(durable) else durable[:length]
        data = bytearray(durable[:length].ljust(length, b"\0"))
        for start in range(0, length, SECTOR_BYTES):
            end = min(start + SECTOR_BYTES, length)
            if random.random() < 0.5:
                data[start:end] = current[start:end].ljust(end - start, b"\0")
        return bytes(data)

    def _without_forgotten(self, content: bytes) -> bytes:
        data = bytearray(content)
        for start, forgotten in self._forgotten.items():
            end = min(start + SECTOR_BYTES, len(data))
            if data[start:end] == forgotten:
                data[start:end] = self._durable[start:end].ljust(end - start, b"\0")
        return bytes(data)


#: A name got this content, lost it (None), or "old\0new" was renamed.
Change = tuple[str, Node | None]


def apply_changes(names: dict[str, Node], changes: list[Change]) -> dict[str, Node]:
    """The names of a directory after ``changes``."""
    names = dict(names)
    for change, node in changes:
        old, _, new = change.partition("\0")
        if new and node is not None:
            names.pop(old, None)
            names[new] = node
        elif node is None:
            names.pop(old, None)
        else:
            names[old] = node
    return names
