"""Messages by key. The index follows the commit log: `build` reads on from ``position`` and may lag behind.

Keys are hashed with their topic ("topic#key"): the unique key, and each word of KEYS. A crash costs nothing: building
goes on behind the last message that is in a file.
"""

import struct
from collections.abc import Iterator
from datetime import datetime

from broker.store.commitlog import CommitLog
from broker.store.index_file import IndexFile, index_file_bytes
from broker.store.queue_ends import QueueEnds
from common.files import FileSystem
from common.message.flags import BORN_HOST_V6, STORE_HOST_V6, TRANSACTION_MASK, TRANSACTION_ROLLBACK
from common.message.javahash import KeyHasher
from common.message.properties import find_property
from common.message.record import MAGIC_V1, MAGIC_V2, Record, decode_record

# size, magic, sysFlag, storeTimestamp, bodyLength of a record with IPv4 hosts.
_HEAD = struct.Struct(">II28xi16xq20xi")
_BODY_AT = _HEAD.size
_V6 = BORN_HOST_V6 | STORE_HOST_V6

Entry = tuple[int, int, int]


class Index:
    """All index files of a store, oldest first."""

    def __init__(self, fs: FileSystem, directory: str, slots: int, capacity: int, *, enabled: bool = True) -> None:
        self._fs = fs
        self._directory = directory
        self._slots = slots
        self._capacity = capacity
        self._enabled = enabled
        self._hasher = KeyHasher()
        self._prefixes: dict[bytes, bytes] = {}
        self._synced = 0
        # The index holds all messages of the log before this physical offset.
        self.position = 0
        self.files: list[IndexFile] = []

    def load(self) -> None:
        """Open the files on disk; those of another size than configured are removed, and built anew."""
        if not self._enabled:
            return
        size = index_file_bytes(self._slots, self._capacity)
        for name in self._fs.listdir(self._directory):
            path = f"{self._directory}/{name}"
            if not name.isdigit():
                continue
            if self._fs.size(path) != size:
                self._fs.remove(path)
                continue
            self.files.append(IndexFile(self._fs.open_map(path, size, create=False), self._slots, self._capacity))

    def open_at(self, log: CommitLog, ends: QueueEnds | None, *, synced_to: int | None) -> None:
        """Find where to go on. Files that are not what they were are removed with all that follow, and built anew.

        ``synced_to``: after a power loss, up to where the log is known to be on disk. The newest file goes then: its
        pages may be there in part.
        """
        known = {name: end for name, end in ends.index_files.items() if end >= log.start} if ends else {}
        present = {file.name: file for file in self.files}
        names = sorted({*known, *present})
        sound = 0
        before = -1
        for name in names:
            file = present.get(name)
            if file is None or not file.is_sound(before, log.end) or file.end_physical < known.get(name, -1):
                break
            before = file.end_physical
            sound += 1
        if synced_to is not None:
            while sound and (sound == len(present) or self.files[sound - 1].end_physical >= synced_to):
                sound -= 1
        self._remove_from(sound)
        self.position = log.start
        if self.end_physical >= log.start:
            last = log.record_at(self.end_physical)
            self.position = self.end_physical + (len(last) if last else 0)

    @property
    def end_physical(self) -> int:
        """The physical offset of the last message that is in the index; -1 when it is empty."""
        return self.files[-1].end_physical if self.files and self.files[-1].count > 1 else -1

    def build(self, log: CommitLog, limit: int) -> int:
        """Index up to ``limit`` messages of the log; returns how many. DiskFull leaves the position where it is."""
        if not self._enabled:
            self.position = log.end
            return 0
        position = max(self.position, log.start)
        segment = log.chain.at(position)
        if segment is None or position >= log.end:
            return 0
        view, base = segment.file.view, segment.base
        end = min(log.end, segment.end) - base
        at, done, known = position - base, 0, self.end_physical
        entries: list[Entry] = []
        add = entries.append
        unpack, prefixes, index_hash = _HEAD.unpack_from, self._prefixes, self._hasher.index_hash
        while done < limit and at + _BODY_AT <= end:
            size, magic, sys_flag, store_ms, body_length = unpack(view, at)
            if magic != MAGIC_V1 or sys_flag & _V6:
                if magic not in (MAGIC_V1, MAGIC_V2):
                    break
                entries += self._unusual(decode_record(view[at : at + size], check_crc=False))
            elif sys_flag & TRANSACTION_MASK != TRANSACTION_ROLLBACK:
                tail = view[at + _BODY_AT + body_length : at + size]
                topic = tail[: tail[0] + 1]
                prefix = prefixes.get(topic) or self._prefix(topic)
                first = len(topic) + 2
                key_at = tail.find(b"UNIQ_KEY\x01", first)
                key_end = tail.find(b"\x02", key_at)
                if 0 < key_at < key_end and (key_at == first or tail[key_at - 1] == 2) and tail.find(b"KEYS\x01") < 0:
                    # The plain case: a unique key and no others.
                    add((index_hash(prefix + tail[key_at + 9 : key_end]), base + at, store_ms))
                else:
                    for key in index_keys(tail[len(topic) + 2 :]):
                        add((index_hash(prefix + key), base + at, store_ms))
            at += size
            done += 1
        if known >= position:
            entries = [entry for entry in entries if entry[1] > known]
        self._put(entries)
        # What is left of a file that no record fits into is a filler.
        self.position = base + at if done == limit or base + at == log.end else min(segment.end, log.end)
        return done

    def find(self, topic: str, key: str, begin_ms: int, end_ms: int) -> Iterator[int]:
        """Physical offsets of messages that may have ``key``; newest first. The caller compares: hashes collide."""
        key_hash = self._hasher.index_hash(f"{topic}#{key}".encode())
        for file in reversed(self.files):
            if file.begin_ms <= end_ms and file.end_ms >= begin_ms - 1000:
                yield from file.find(key_hash, begin_ms, end_ms)

    def ends(self) -> dict[str, int]:
        """Name of each file -> the last physical offset in it."""
        return {file.name: file.end_physical for file in self.files if file.count > 1}

    def _remove_from(self, number: int) -> None:
        """Remove the files from ``number`` on."""
        for file in self.files[number:]:
            file.file.close()
            self._fs.remove(file.file.path)
        del self.files[number:]

    def retire_before(self, log_start: int) -> list[IndexFile]:
        """Forget the files that know only messages before ``log_start``, but never the last; not during `sync`.

        The caller removes them from disk.
        """
        count = 0
        while count < len(self.files) - 1 and self.files[count].end_physical < log_start:
            count += 1
        retired, self.files = self.files[:count], self.files[count:]
        self._synced = max(self._synced - count, 0)
        return retired

    def sync(self) -> None:
        """Make durable what was written since the last sync. Runs in any thread, one at a time."""
        files = self.files[:]
        for file in files[self._synced :]:
            file.file.sync()
        self._synced = max(len(files) - 1, 0)

    def close(self) -> None:
        for file in self.files:
            file.file.close()

    def _prefix(self, topic_field: bytes) -> bytes:
        if len(self._prefixes) > 100_000:
            self._prefixes.clear()
        prefix = self._prefixes[topic_field] = topic_field[1:] + b"#"
        return prefix

    def _unusual(self, record: Record) -> list[Entry]:
        if record.sys_flag & TRANSACTION_MASK == TRANSACTION_ROLLBACK:
            return []
        prefix = record.topic.encode() + b"#"
        keys = index_keys(record.properties)
        return [(self._hasher.index_hash(prefix + key), record.physical_offset, record.store_timestamp) for key in keys]

    def _put(self, entries: list[Entry]) -> None:
        while entries:
            file = self._writable(entries[0][2])
            room = file.room
            file.put_many(entries[:room])
            entries = entries[room:]

    def _writable(self, store_ms: int) -> IndexFile:
        if self.files and self.files[-1].room > 0:
            return self.files[-1]
        self._fs.mkdirs(self._directory)
        name = datetime.fromtimestamp(store_ms / 1000).strftime("%Y%m%d%H%M%S") + f"{store_ms % 1000:03d}"
        while self._fs.exists(f"{self._directory}/{name}"):
            name = str(int(name) + 1)
        size = index_file_bytes(self._slots, self._capacity)
        map_ = self._fs.open_map(f"{self._directory}/{name}", size, create=True)
        file = IndexFile(map_, self._slots, self._capacity)
        self.files.append(file)
        return file


def index_keys(properties: bytes) -> list[bytes]:
    """The unique key and the words of KEYS, out of an encoded properties string."""
    keys: list[bytes] = []
    for name, many in ((b"UNIQ_KEY", False), (b"KEYS", True)):
        value = find_property(properties, name)
        if value:
            keys += value.split() if many else [value]
    return keys
