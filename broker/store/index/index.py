"""The index of messages by key. It follows the commit log: `build` reads on from ``position`` and may lag behind.

Keys are hashed with their topic ("topic#key"): the unique key, and each word of KEYS. A crash loses nothing: after it,
building goes on after the last message that a file holds.
"""

from bisect import bisect_right
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple, Protocol

from skylark.broker.store.index.index_file import IndexFile, index_file_bytes
from skylark.broker.store.index.log_keys import Entries, LogKeys
from skylark.broker.store.log.commitlog import CommitLog
from skylark.broker.store.log.log_files import LogFile
from skylark.broker.store.log.residency import check_resident
from skylark.broker.store.log.segment import Segment
from skylark.broker.store.queue.ends import QueueEnds
from skylark.mqcommon.disk.files import FileSystem
from skylark.mqcommon.message.javahash import KeyHasher
from skylark.mqcommon.message.layout import BLANK_BYTES, BLANK_MAGIC, MIN_RECORD, SIZE_MAGIC

# The most records that one step reads before it writes their entries.
_STEP = 4096
# The year 9998. No CRC covers a record's time, so the time may be any number, and not every number is a date.
_LATEST_MS = 253_370_000_000_000
# How many bytes of the log must be in memory before a step reads them: more than most steps need.
_LOOK_BYTES = 1024 * 1024


class SegmentAt(Protocol):
    """The files of a log."""

    def at(self, offset: int) -> Segment | None:
        """The file that holds ``offset``."""


class IndexedLog(Protocol):
    """What `Index.build` needs of the log, or of a part of it."""

    @property
    def chain(self) -> SegmentAt:
        """Its files."""

    @property
    def start(self) -> int:
        """The physical offset of the first byte."""

    @property
    def end(self) -> int:
        """The physical offset after the last byte."""


class IndexState(NamedTuple):
    """What the index held at some time: all messages before the physical offset ``position``.

    ``newest_begin_ms``: store time of the first message in the newest file; None if no file has any.
    ``older_end_ms``: store time of the last message in the file before it; 0 if there is none.
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
        self._np: Any = None
        self._synced = 0
        # The index holds all messages of the log before this physical offset.
        self.position = 0
        #: A thread is changing the last file: nothing may be built.
        self.is_being_cut = False
        self.files: list[IndexFile] = []

    @property
    def is_held(self) -> bool:
        """Whether nothing may be built now: the last file is being changed, or is damaged."""
        return self.is_being_cut or bool(self.files and self.files[-1].sums.suspects)

    def use_columns(self, np: Any) -> None:
        """Use numpy from now on: many entries are made at once, with the same bytes as before."""
        self._np = self._keys.np = np

    def load(self) -> None:
        """Open the files on disk. Files of another size than configured are removed and rebuilt."""
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
        """Find the position at which to continue. A missing or wrong file is removed with all later files.

        They are rebuilt from the log: an index with a hole in the middle would silently miss messages.
        ``synced_to``: given after a power loss, the offset up to which the log is known to be on disk. The newest file
        is removed then, as any of its pages may be missing.
        ``used_by_rocketmq``: RocketMQ has used the store since ``ends`` were noted. It may have skipped messages that
        the index did not hold yet, so files that have got entries since then are removed, too.
        """
        # ``known``: files that must be there, with their last message when they were noted. Files must follow each
        # other without a gap, and none may have less than was noted.
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
            # The index was synced when its files were noted. So a file is whole if a newer one was noted.
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
        # Removed entries are made again from the log: the index continues after the last message that it still has.
        self._remove_from(sound)
        self.position = log.start
        if self.end_physical >= log.start:
            last = log.record_at(self.end_physical)
            self.position = self.end_physical + (len(last) if last else 0)

    @property
    def end_physical(self) -> int:
        """The physical offset of the last message in the index; -1 if it is empty."""
        return self.files[-1].end_physical if self.files and self.files[-1].count > 1 else -1

    def build(self, log: IndexedLog, limit: int) -> int:
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
        # After a start the first step may read messages that the files hold already: a kill between the entries of a
        # step and its position.
        known = self.end_physical
        entries, at, done = self._keys.read(view, position - base, end, base, limit)
        if known >= position:
            new = bisect_right(entries.physicals, known)
            entries = Entries(*(column[new:] for column in entries))
        self._put(entries)
        self.position = base + at
        if done < limit and self.position < log.end:
            self.position = _next_record(segment, self.position, min(segment.end, log.end))
        return done

    def key_hash(self, topic: str, key: str) -> int:
        """The hash in the entries of messages of ``topic`` with ``key``. Hashes collide: other entries have it, too."""
        return self._hasher.index_hash(f"{topic}#{key}".encode())

    def files_of(self, begin_ms: int, end_ms: int) -> list[IndexFile]:
        """The files that may hold messages of this time range, newest first."""
        return [file for file in reversed(self.files) if file.begin_ms <= end_ms and file.end_ms >= begin_ms - 1000]

    def ends(self) -> dict[str, int]:
        """Name of each file -> the last physical offset in it."""
        return {file.name: file.end_physical for file in self.files if file.count > 1}

    def state(self) -> IndexState | None:
        """What the index holds now; None if the index is disabled."""
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
        """Drop the files that hold only messages before ``log_start``, but never the last; not during `sync`.

        The caller removes them from disk.
        """
        count = 0
        while count < len(self.files) - 1 and self.files[count].end_physical < log_start:
            count += 1
        retired, self.files = self.files[:count], self.files[count:]
        self._synced = max(self._synced - count, 0)
        return retired

    def retire_after(self, physical: int) -> list[IndexFile]:
        """Drop the files that hold only messages at or after ``physical``; not during `sync`.

        The caller removes them from disk, and calls `cut`.
        """
        self.is_being_cut = True
        self.position = min(self.position, physical)
        kept = len(self.files)
        while kept and self._must_go(self.files[kept - 1], physical):
            if self.files[kept - 1].count > 1:
                self.position = min(self.position, self.files[kept - 1].begin_physical)
            kept -= 1
        retired, self.files = self.files[kept:], self.files[:kept]
        self._synced = min(self._synced, max(kept - 1, 0))
        return retired

    def _must_go(self, file: IndexFile, physical: int) -> bool:
        """Whether no part of the file can stay when the messages at or after ``physical`` go.

        A backup may have the file under another name, and must keep its entries: then the file is built anew.
        """
        if file.count == 1 or file.begin_physical >= physical:
            return True
        return file.end_physical >= physical and self._fs.link_count(file.file.path) > 1

    def cut(self, physical: int) -> None:
        """Remove the entries of messages at or after ``physical`` from the last file, durably. Blocks: for a thread."""
        for file in self.files[-1:]:
            file.cut(physical)
        self.is_being_cut = False

    def sync(self) -> None:
        """Make durable all entries written since the last sync. Runs in any thread, one at a time."""
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
            hashes, physicals, times_ms = (column[done:end] for column in entries)
            file.put_many(hashes, physicals, times_ms, self._np)
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
            # A start orders the files by name, so a new name must be the highest even if the clock was set back.
            name = max(name, str(int(self.files[-1].name) + 1))
        while self._fs.exists(f"{self._directory}/{name}"):
            name = str(int(name) + 1)
        size = index_file_bytes(self._slots, self._capacity)
        map_ = self._fs.open_map(f"{self._directory}/{name}", size, create=True, allocated=0)
        file = IndexFile(map_, self._slots, self._capacity)
        self.files.append(file)
        return file


def _next_record(segment: Segment, at: int, end: int) -> int:
    """Where to go on after ``at``, where no record is; all physical offsets."""
    position = at - segment.base
    if end - at < MIN_RECORD or SIZE_MAGIC.unpack_from(segment.file.view, position)[1] == BLANK_MAGIC:
        return end  # the rest of the file, too short for a record
    # The record is damaged. Later records in the file must be found by their keys all the same.
    stop = min(at + _LOOK_BYTES, end)
    check_resident(segment.file, position, stop - at)
    found = LogFile(segment.path, segment.base, segment.file).next_sound(at + 1, stop)
    # The head of a record may lie across the place where this search ends.
    return found or (stop if stop == end else stop - BLANK_BYTES)


def _whole_messages(physicals: Sequence[int], start: int, end: int) -> int:
    """The last position up to ``end`` that is between two messages: all keys of a message go into one file.

    A start continues after the last message in the files. If the keys of a message were in two files and the second
    file was lost, its keys of this message would be missing for good.
    """
    while start < end < len(physicals) and physicals[end - 1] == physicals[end]:
        end -= 1
    return end
