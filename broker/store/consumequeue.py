"""Per topic and queue: where each message lies in the commit log.

 physicalOffset 8 | size 4 | tagsCode 8        20 bytes a message; its number is the queue offset

Files are preallocated zeros, and no entry has size 0, so the end is found by bisection. All of it can be made anew
from the commit log.
"""

import mmap
import struct
from collections.abc import Callable, Iterator

from broker.store.segment import SegmentChain
from common.files import FileSystem

ENTRY = struct.Struct(">qiq")
ENTRY_BYTES = ENTRY.size
_SIZE = struct.Struct(">i")
_PHYSICAL = struct.Struct(">q")
# What RocketMQ fills the places before the first message of a queue with.
BLANK_SIZE = 0x7FFFFFFF
_BLANK = ENTRY.pack(0, BLANK_SIZE, 0)

IsSound = Callable[[int, int, int], bool]


class ConsumeQueue:
    """One queue of a topic: offsets ``min_offset`` to ``next_offset``."""

    __slots__ = (
        "_at",
        "_limit",
        "_view",
        "chain",
        "dirty",
        "magic",
        "min_offset",
        "next_offset",
        "queue_id",
        "record_overhead",
        "topic",
        "topic_prefix",
        "topic_tail",
        "waiters",
    )

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        topic: str,
        queue_id: int,
        segment_bytes: int,
        magic: int,
        topic_tail: bytes,
        record_overhead: int,
    ) -> None:
        self.chain = SegmentChain(fs, f"{directory}/{topic}/{queue_id}", segment_bytes, durable_files=False)
        self.topic = topic
        self.queue_id = queue_id
        self.magic = magic
        # What every record and index key of this queue has in common; the overhead is that of IPv4 senders.
        self.topic_tail = topic_tail
        self.record_overhead = record_overhead
        self.topic_prefix = topic.encode() + b"#"
        self.next_offset = 0
        self.min_offset = 0
        self.dirty = False
        # How many held pulls wait for this queue; the owner of the pulls keeps it.
        self.waiters = 0
        self._view: mmap.mmap | None = None
        self._at = 0
        self._limit = 0

    def load(self, log_start: int, is_sound: IsSound, *, crashed: bool) -> None:
        """Find the end. Entries at the end that are not sound (offset, physical offset, size) are dropped."""
        self.chain.load()
        segments = self.chain.segments
        while len(segments) > 1 and self._entry_size(segments[-1].base // ENTRY_BYTES) == 0:
            self.chain.cut_after(segments[-1].base)
        if not segments:
            return
        first = self.chain.start // ENTRY_BYTES
        end = self._find_end()
        while end > first:
            physical, size, _ = self.entry(end - 1)
            if size > 0 and (size == BLANK_SIZE or is_sound(end - 1, physical, size)):
                break
            self._clear(end - 1)
            end -= 1
        if end == first and crashed:
            # Nothing here is true, not even where it starts: the files before it may be lost.
            self.chain.remove_all()
            return
        self.next_offset = end
        self._find_start(log_start)

    def append(self, physical_offset: int, size: int, tags_code: int) -> None:
        """Add the next message."""
        at = self._at
        if at == self._limit:
            self._use_segment()
            at = self._at
        view = self._view
        assert view is not None
        ENTRY.pack_into(view, at, physical_offset, size, tags_code)
        self._at = at + ENTRY_BYTES
        self.next_offset += 1

    def append_many(self, entries: bytes) -> None:
        """Add packed entries."""
        done = 0
        while done < len(entries):
            if self._at == self._limit:
                self._use_segment()
            view = self._view
            assert view is not None
            count = min(len(entries) - done, self._limit - self._at)
            view[self._at : self._at + count] = entries[done : done + count]
            self._at += count
            self.next_offset += count // ENTRY_BYTES
            done += count

    def reserve(self, count: int) -> None:
        """Make room for ``count`` more entries before their messages are written. DiskFull when there is none."""
        if self._at + count * ENTRY_BYTES > self._limit:
            end = (self.next_offset + count) * ENTRY_BYTES
            if not self.chain.segments:
                self.chain.extend()
            while self.chain.end < end:
                self.chain.extend()

    def put_at(self, queue_offset: int, physical_offset: int, size: int, tags_code: int) -> None:
        """Set the entry of ``queue_offset``, as recovery does; the queue ends after it."""
        if queue_offset != self.next_offset:
            self._move_end(queue_offset)
        self.append(physical_offset, size, tags_code)

    def entry(self, offset: int) -> tuple[int, int, int]:
        """(physical offset, size, tags code) of message ``offset``, which must exist."""
        segment = self.chain.at(offset * ENTRY_BYTES)
        assert segment is not None
        return ENTRY.unpack_from(segment.file.view, offset * ENTRY_BYTES - segment.base)

    def entries(self, offset: int, count: int) -> Iterator[tuple[int, int, int]]:
        """Up to ``count`` entries from ``offset`` on; fewer at the end of a file."""
        segment = self.chain.at(offset * ENTRY_BYTES)
        if segment is None:
            return iter(())
        at = offset * ENTRY_BYTES - segment.base
        count = min(count, self.next_offset - offset, (segment.size - at) // ENTRY_BYTES)
        return ENTRY.iter_unpack(segment.file.view[at : at + count * ENTRY_BYTES])

    def sync(self) -> None:
        """Make the queue durable. Runs in any thread."""
        self.chain.sync()

    def remove(self) -> None:
        """Delete the queue's files."""
        self._view = None
        self._at = self._limit = 0
        self.chain.remove_all()

    def close(self) -> None:
        self._view = None
        self._at = self._limit = 0
        self.chain.close()

    def _use_segment(self) -> None:
        position = self.next_offset * ENTRY_BYTES
        segment = self.chain.at(position)
        if segment is None:
            first = position // self.chain.segment_bytes * self.chain.segment_bytes
            segment = self.chain.extend(first)
        self._view = segment.file.view
        self._at = position - segment.base
        self._limit = segment.size

    def _move_end(self, queue_offset: int) -> None:
        """Go on at another offset: the log is right, whatever this file said."""
        if queue_offset < self.next_offset:
            for offset in range(queue_offset, self.next_offset):
                self._clear(offset)
            self.next_offset = queue_offset
            self.min_offset = min(self.min_offset, queue_offset)
        else:
            if self.chain.segments and queue_offset * ENTRY_BYTES >= self.chain.end:
                self.chain.remove_all()
            blank_from = max(
                self.next_offset,
                queue_offset * ENTRY_BYTES // self.chain.segment_bytes * self.chain.segment_bytes // ENTRY_BYTES,
            )
            was_empty = self.next_offset == self.min_offset
            self.next_offset = blank_from
            self._use_segment()
            while self.next_offset < queue_offset:
                self.append_many(_BLANK)
            if was_empty or blank_from != self.min_offset:
                self.min_offset = queue_offset
        self._use_segment()

    def _entry_size(self, offset: int) -> int:
        segment = self.chain.at(offset * ENTRY_BYTES)
        assert segment is not None
        return int(_SIZE.unpack_from(segment.file.view, offset * ENTRY_BYTES - segment.base + 8)[0])

    def _clear(self, offset: int) -> None:
        segment = self.chain.at(offset * ENTRY_BYTES)
        assert segment is not None
        at = offset * ENTRY_BYTES - segment.base
        segment.file.view[at : at + ENTRY_BYTES] = bytes(ENTRY_BYTES)
        self.chain.touched(offset * ENTRY_BYTES)

    def _find_end(self) -> int:
        low = self.chain.segments[-1].base // ENTRY_BYTES
        high = self.chain.end // ENTRY_BYTES
        while low < high:
            middle = (low + high) // 2
            if self._entry_size(middle) == 0:
                high = middle
            else:
                low = middle + 1
        return low

    def _find_start(self, log_start: int) -> None:
        """The first entry that is no blank and points into the log."""
        low, high = self.chain.start // ENTRY_BYTES, self.next_offset
        while low < high:
            middle = (low + high) // 2
            physical, size, _ = self.entry(middle)
            if size == BLANK_SIZE or physical < log_start:
                low = middle + 1
            else:
                high = middle
        self.min_offset = low
