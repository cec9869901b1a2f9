"""Messages by key. The index follows the commit log: `build` reads on from ``position`` and may lag behind.

Keys are hashed with their topic ("topic#key"): the unique key, and each word of KEYS. A crash costs nothing: building
goes on behind the last message that is in a file.
"""

from bisect import bisect_right
from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from broker.store.index.index_file import IndexFile
from broker.store.index.layout import index_file_bytes
from broker.store.index.log_keys import Entries, LogKeys
from broker.store.log.commitlog import CommitLog
from broker.store.log.residency import check_resident
from broker.store.queue.ends import QueueEnds
from mqcommon.files import FileSystem
from mqcommon.message.javahash import KeyHasher

# The most records that are read before their entries are written.
_STEP = 4096
# The year 9998: a record's time has no CRC and may be anything, but not every number has a date.
_LATEST_MS = 253_370_000_000_000
# How much of the log must be in memory before it is read: more than most steps take.
_LOOK_BYTES = 1024 * 1024


class IndexState(NamedTuple):
    """What the index held at some time. ``position``: all messages before this physical offset.

    Store times: of the first message in the newest file (None when no file has any), and of the last one in the file
    before it (0 when there is none).
    """

    position: int
    newest_begin_ms: int | None
    older_end_ms: int


class Index:
    """All index files of a store, oldest first."""

    def __init__(self, fs: FileSystem, directory: str, slots: int, capacity: int, *, enabled: bool = True) -> None:
        self._fs = fs
        self._directory = directory
        self._slots = slots
        self._capacity = capacity
        self._enabled = enabled
        self._hasher = KeyHasher()
        self._keys = LogKeys(self._hasher)
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

    def open_at(
        self, log: CommitLog, ends: QueueEnds | None, *, synced_to: int | None, used_by_rocketmq: bool = False
    ) -> None:
        """Find where to go on. Files that are not what they were are removed with all that follow, and built anew.

        ``synced_to``: after a power loss, up to where the log is known to be on disk. The newest file goes then: its
        pages may be there in part.
        ``used_by_rocketmq``: since ``ends`` were noted. It may have gone on after messages that the index did not hold
        yet: the files that were there then, and got more entries since, are built anew, and so are later ones.
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
            # The index was on disk when its files were noted; so one is whole when there was a newer one by then.
            newest_noted = max(known, default="")
            while sound and (
                sound == len(present)
                or self.files[sound - 1].end_physical >= synced_to
                or (ends is not None and self.files[sound - 1].name >= newest_noted)
            ):
                sound -= 1
        if used_by_rocketmq:
            while sound and self.files[sound - 1].end_physical > known.get(self.files[sound - 1].name, -1):
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
        check_resident(segment.file, position - base, min(end - (position - base), _LOOK_BYTES))
        limit = min(limit, _STEP)
        known = self.end_physical
        entries, at, done = self._keys.read(view, position - base, end, base, limit)
        if known >= position:
            new = bisect_right(entries.physicals, known)
            entries = Entries(*(column[new:] for column in entries))
        self._put(entries)
        # What is left of a file that no record fits into is a filler.
        self.position = base + at if done == limit or base + at == log.end else min(segment.end, log.end)
        return done

    def key_hash(self, topic: str, key: str) -> int:
        """What the entries of messages of ``topic`` with ``key`` have, and some others: hashes collide."""
        return self._hasher.index_hash(f"{topic}#{key}".encode())

    def files_of(self, begin_ms: int, end_ms: int) -> list[IndexFile]:
        """The files that may have messages of this time, newest first."""
        return [file for file in reversed(self.files) if file.begin_ms <= end_ms and file.end_ms >= begin_ms - 1000]

    def ends(self) -> dict[str, int]:
        """Name of each file -> the last physical offset in it."""
        return {file.name: file.end_physical for file in self.files if file.count > 1}

    def state(self) -> IndexState | None:
        """What the index holds now; None when there is none."""
        if not self._enabled:
            return None
        files = [file for file in self.files if file.count > 1]
        newest, older = files[-1:], files[-2:-1]
        return IndexState(
            self.position,
            newest[0].begin_ms if newest else None,
            older[0].end_ms if older else 0,
        )

    def _remove_from(self, number: int) -> None:
        """Remove the files from ``number`` on."""
        for file in self.files[number:]:
            file.close()
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
            file.close()

    def _put(self, entries: Entries) -> None:
        done, count = 0, len(entries.hashes)
        while done < count:
            file = self._writable(entries.times_ms[done])
            end = _whole_messages(entries.physicals, done, min(done + file.room, count))
            if end == done:
                file = self._add_file(entries.times_ms[done])
                most = min(done + file.room, count)
                end = _whole_messages(entries.physicals, done, most)
                end = end if end > done else most
            file.put_many(*(column[done:end] for column in entries))
            done = end

    def _writable(self, store_ms: int) -> IndexFile:
        if self.files and self.files[-1].room > 0:
            return self.files[-1]
        return self._add_file(store_ms)

    def _add_file(self, store_ms: int) -> IndexFile:
        self._fs.mkdirs(self._directory)
        store_ms = min(max(store_ms, 0), _LATEST_MS)
        name = datetime.fromtimestamp(store_ms / 1000).strftime("%Y%m%d%H%M%S") + f"{store_ms % 1000:03d}"
        if self.files:
            # A start takes the files in the order of their names, whatever the clock did.
            name = max(name, str(int(self.files[-1].name) + 1))
        while self._fs.exists(f"{self._directory}/{name}"):
            name = str(int(name) + 1)
        size = index_file_bytes(self._slots, self._capacity)
        map_ = self._fs.open_map(f"{self._directory}/{name}", size, create=True, allocated=0)
        file = IndexFile(map_, self._slots, self._capacity)
        self.files.append(file)
        return file


def _whole_messages(physicals: Sequence[int], start: int, end: int) -> int:
    """The last place up to ``end`` that is between two messages: no message may have keys in two files.

    A start goes on behind the last message that is in a file, and would miss what it had in one that is lost.
    """
    while start < end < len(physicals) and physicals[end - 1] == physicals[end]:
        end -= 1
    return end
