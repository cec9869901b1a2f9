"""Messages by key: RocketMQ's index files.

 header 40: beginTimestamp 8 | endTimestamp 8 | beginPhysical 8 | endPhysical 8 | slotCount 4
            | indexCount 4 (starts at 1)
 slots:     newest index of the slot 4, each
 entries:   keyHash 4 | physicalOffset 8 | seconds since beginTimestamp 4 | previous index of the slot 4, each

Keys are hashed with their topic ("topic#key"); both the unique key and each word of KEYS. What `add` takes is put into
files by `build`, later and many at once; a query builds first. Files grow on disk as they fill.
"""

import struct
from collections import deque
from collections.abc import Iterator
from datetime import datetime

from common.files import FileSystem, MappedFile
from common.message.javahash import KeyHasher

_HEADER = struct.Struct(">qqqqii")
_SLOT = struct.Struct(">i")
_ENTRY = struct.Struct(">iqii")
# An index is built at once when this many messages wait for it.
MAX_PENDING = 200_000

Pending = tuple[bytes, bytes, int, int]


class IndexFile:
    """One file of ``slots`` hash slots and ``capacity`` entries."""

    def __init__(self, file: MappedFile, slots: int, capacity: int) -> None:
        self.file = file
        self.view = file.view
        self.slots = slots
        self.capacity = capacity
        self.entries_at = _HEADER.size + slots * _SLOT.size
        (self.begin_ms, self.end_ms, self.begin_physical, self.end_physical, self.slot_count, count) = (
            _HEADER.unpack_from(self.view, 0)
        )
        self.count: int = max(count, 1)

    @property
    def full(self) -> bool:
        return self.count >= self.capacity

    def put(self, key_hash: int, physical: int, store_ms: int) -> None:
        """Add one entry; the file must not be full, and the header be written by `write_header` afterwards."""
        view = self.view
        count = self.count
        slot_at = _HEADER.size + key_hash % self.slots * 4
        (previous,) = _SLOT.unpack_from(view, slot_at)
        if not 0 < previous < count:
            previous = 0
            self.slot_count += 1
        if count == 1:
            self.begin_ms, self.begin_physical = store_ms, physical
        seconds = (store_ms - self.begin_ms) // 1000
        _ENTRY.pack_into(
            view, self.entries_at + count * 20, key_hash, physical, seconds if seconds > 0 else 0, previous
        )
        _SLOT.pack_into(view, slot_at, count)
        self.count = count + 1
        self.end_ms = store_ms
        self.end_physical = physical

    def write_header(self) -> None:
        _HEADER.pack_into(
            self.view,
            0,
            self.begin_ms,
            self.end_ms,
            self.begin_physical,
            self.end_physical,
            self.slot_count,
            self.count,
        )

    def find(self, key_hash: int, begin_ms: int, end_ms: int) -> Iterator[int]:
        """Physical offsets of entries with this hash, stored within the time range; newest first."""
        (at,) = _SLOT.unpack_from(self.view, _HEADER.size + key_hash % self.slots * 4)
        while 0 < at < self.count:
            found_hash, physical, seconds, previous = _ENTRY.unpack_from(self.view, self.entries_at + at * 20)
            stored_ms = self.begin_ms + seconds * 1000
            # Entries hold whole seconds only.
            if found_hash == key_hash and begin_ms - 1000 < stored_ms <= end_ms:
                yield physical
            if previous >= at:
                return
            at = previous


class Index:
    """All index files of a store, oldest first."""

    def __init__(self, fs: FileSystem, directory: str, slots: int, capacity: int) -> None:
        self._fs = fs
        self._directory = directory
        self._slots = slots
        self._capacity = capacity
        self._hasher = KeyHasher()
        self._pending: deque[Pending] = deque()
        self.add = self._pending.append
        self._synced = 0
        self.files: list[IndexFile] = []

    def load(self) -> None:
        """Open the files on disk; one that is too short to be one is removed, to be built anew."""
        size = _HEADER.size + self._slots * 4 + self._capacity * 20
        for name in self._fs.listdir(self._directory):
            path = f"{self._directory}/{name}"
            if not name.isdigit():
                continue
            if self._fs.size(path) != size:
                self._fs.remove(path)
                continue
            self.files.append(IndexFile(self._fs.open_map(path, size, create=False), self._slots, self._capacity))

    @property
    def end_physical(self) -> int:
        """The physical offset of the last message that is in the index; -1 when it is empty."""
        return self.files[-1].end_physical if self.files and self.files[-1].count > 1 else -1

    @property
    def pending(self) -> int:
        """How many messages wait to be put into files."""
        return len(self._pending)

    @property
    def first_pending(self) -> int | None:
        """The physical offset of the first message that waits."""
        return self._pending[0][2] if self._pending else None

    def build(self, limit: int = MAX_PENDING) -> int:
        """Put up to ``limit`` waiting messages into files; returns how many. DiskFull leaves the rest waiting."""
        pending = self._pending
        index_hash = self._hasher.index_hash
        done = 0
        while done < limit and pending:
            file = self._writable()
            put = file.put
            room = file.capacity - file.count
            while done < limit and pending and room > 0:
                prefix, properties, physical, store_ms = pending[0]
                keys = index_keys(properties)
                for key in keys[:room]:
                    put(index_hash(prefix + key), physical, store_ms)
                room -= len(keys)
                pending.popleft()
                done += 1
            file.write_header()
        return done

    def find(self, topic: str, key: str, begin_ms: int, end_ms: int) -> Iterator[int]:
        """Physical offsets of messages that may have ``key``; newest first. The caller compares: hashes collide."""
        self.build()
        key_hash = self._hasher.index_hash(f"{topic}#{key}".encode())
        for file in reversed(self.files):
            if file.begin_ms <= end_ms and file.end_ms >= begin_ms - 1000:
                yield from file.find(key_hash, begin_ms, end_ms)

    def sync(self) -> None:
        """Make the newest files durable. Runs in any thread."""
        files = self.files[:]
        for file in files[self._synced :]:
            file.file.sync()
        self._synced = max(len(files) - 1, 0)

    def close(self) -> None:
        for file in self.files:
            file.file.close()

    def _writable(self) -> IndexFile:
        if self.files and not self.files[-1].full:
            return self.files[-1]
        store_ms = self._pending[0][3]
        self._fs.mkdirs(self._directory)
        name = datetime.fromtimestamp(store_ms / 1000).strftime("%Y%m%d%H%M%S") + f"{store_ms % 1000:03d}"
        while self._fs.exists(f"{self._directory}/{name}"):
            name = str(int(name) + 1)
        size = _HEADER.size + self._slots * 4 + self._capacity * 20
        file = IndexFile(self._fs.open_map(f"{self._directory}/{name}", size, create=True), self._slots, self._capacity)
        file.write_header()
        self.files.append(file)
        return file


def index_keys(properties: bytes) -> list[bytes]:
    """The unique key and the words of KEYS, out of an encoded properties string."""
    keys: list[bytes] = []
    at = properties.find(b"UNIQ_KEY\x01")
    if at >= 0 and (at == 0 or properties[at - 1] == 2):
        end = properties.find(b"\x02", at)
        keys.append(properties[at + 9 :] if end < 0 else properties[at + 9 : end])
    at = properties.find(b"KEYS\x01")
    while at > 0 and properties[at - 1] != 2:
        at = properties.find(b"KEYS\x01", at + 1)
    if at >= 0:
        end = properties.find(b"\x02", at)
        words = properties[at + 5 :] if end < 0 else properties[at + 5 : end]
        keys.extend(words.split())
    return keys
