"""Per topic and queue: where each message lies in the commit log.

 physicalOffset 8 | size 4 | tagsCode 8        20 bytes a message; its number is the queue offset

Files are preallocated zeros, and no entry has size 0, so the end is found by bisection. All of it can be made anew
from the commit log.
"""

import mmap
import struct
from collections.abc import Callable, Iterator

from broker.store.residency import check_resident
from broker.store.retention import first_in_log
from broker.store.segment import SegmentChain
from mqcommon.files import FileSystem

ENTRY = struct.Struct(">qiq")
ENTRY_BYTES = ENTRY.size
_SIZE = struct.Struct(">i")
_PHYSICAL = struct.Struct(">q")
# What RocketMQ fills the places before the first message of a queue with.
BLANK_SIZE = 0x7FFFFFFF
# Who reads entries that are on disk only gets as many around them into memory: some 13,000.
NEIGHBOUR_BYTES = 256 * 1024
_BLANK = ENTRY.pack(0, BLANK_SIZE, 0)

# A queue file has its full size at once, as RocketMQ's; its blocks come as they are needed, this many bytes at a time:
# 10,000 queues of few messages would fill a disk else.
ALLOCATED_BYTES = 20 * 4096

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
        on_map: Callable[[], None],
    ) -> None:
        self.chain = SegmentChain(
            fs, f"{directory}/{topic}/{queue_id}", segment_bytes, durable_files=False, allocated=0, on_map=on_map
        )
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

    def load(self) -> bool:
        """Find the files. False when some of them are missing, short or blank, so that the queue must be made anew."""
        if not self.chain.load():
            return False
        return all(self._has_entry(end - 1) for end in (s.end // ENTRY_BYTES for s in self.chain.segments[:-1])) and (
            len(self.chain.segments) < 2 or self._has_entry(self.chain.start // ENTRY_BYTES)
        )

    def resume(self, low: int, high: int) -> bool:
        """Go on with the ends that a clean stop noted, without mapping a file. False when the files say otherwise."""
        if high * ENTRY_BYTES > self.chain.end or low * ENTRY_BYTES < self.chain.start:
            return False
        if high > self.chain.start // ENTRY_BYTES and not self._has_entry(high - 1):
            return False
        if high * ENTRY_BYTES < self.chain.end and self._has_entry(high):
            return False
        self.min_offset, self.next_offset = low, high
        return True

    def find_ends(self, log_start: int, known: tuple[int, int], is_sound: IsSound | None) -> bool:
        """Find first and last entry in the files; maps none of them. True when entries had to be dropped.

        ``known``: (min, next) that the queue had once reached; (0, 0) when nobody noted that.
        ``is_sound`` (offset, physical offset, size): after a power loss, entries at the end that are not sound are
        dropped, and whatever stands behind them.
        """
        segments = self.chain.segments
        while len(segments) > 1 and not self._has_entry(segments[-1].base // ENTRY_BYTES):
            self.chain.cut_after(segments[-1].base)
        if not segments:
            return False
        first = self.chain.start // ENTRY_BYTES
        end = found = self._find_end(known[1])
        if is_sound is not None:
            end = self._last_sound(first, found, is_sound)
            if end == first:
                # Nothing here is true, not even where it starts: the files before it may be lost.
                self.chain.remove_all()
                return True
            self.chain.zero_from(end * ENTRY_BYTES)
        self.next_offset = end
        self._find_start(log_start, known[0])
        return end < found

    def last_entry(self) -> tuple[int, int, int]:
        """(offset, physical offset, size) of the newest message; size 0 when the queue has none."""
        for offset in range(self.next_offset - 1, self.min_offset - 1, -1):
            physical, size, _ = ENTRY.unpack(self._read_entry(offset))
            if size != BLANK_SIZE:
                return offset, physical, size
        return 0, 0, 0

    def is_behind_previous(self, offset: int, physical: int) -> bool:
        """Whether an entry points behind the one before it. A torn one does not; the first of a file is never torn."""
        if offset * ENTRY_BYTES == self.chain.start:
            return True
        before, size, _ = ENTRY.unpack(self._read_entry(offset - 1))
        return bool(size == BLANK_SIZE or (size > 0 and before + size <= physical))

    def drop_behind(self, log_end: int) -> None:
        """Forget the messages that lie behind the end of the log."""
        end = self.next_offset
        while end > self.min_offset:
            physical, size, _ = self.entry(end - 1)
            if physical < log_end and size != BLANK_SIZE:
                break
            end -= 1
        if end < self.next_offset:
            self.move_to(end)

    def continue_at(self, offset: int) -> None:
        """An empty queue goes on at ``offset``: what was before is gone from the log."""
        self.min_offset = self.next_offset = offset

    @property
    def is_empty(self) -> bool:
        return self.min_offset == self.next_offset

    @property
    def is_mapped(self) -> bool:
        return self._view is not None or self.chain.is_mapped

    def release(self) -> None:
        """Unmap the files until they are used again."""
        self._view = None
        self._at = self._limit = 0
        self.chain.release()

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
            for segment in self.chain.between(self.next_offset * ENTRY_BYTES, end):
                segment.file.allocate(_allocated_to(min(end - segment.base, segment.size), segment.size))

    def put_at(self, queue_offset: int, physical_offset: int, size: int, tags_code: int) -> None:
        """Set the entry of ``queue_offset``, as recovery does; the queue ends after it when it said otherwise."""
        if queue_offset != self.next_offset:
            if self.min_offset <= queue_offset < self.next_offset:
                physical, known_size, _ = self.entry(queue_offset)
                if (physical, known_size) == (physical_offset, size):
                    return
            self.move_to(queue_offset)
        self.append(physical_offset, size, tags_code)

    def entry(self, offset: int) -> tuple[int, int, int]:
        """(physical offset, size, tags code) of message ``offset``, which must exist."""
        segment = self.chain.at(offset * ENTRY_BYTES)
        assert segment is not None
        file, at = segment.file, offset * ENTRY_BYTES - segment.base
        check_resident(file, at, ENTRY_BYTES, around=NEIGHBOUR_BYTES)
        return ENTRY.unpack_from(file.view, at)

    def entries(self, offset: int, count: int) -> Iterator[tuple[int, int, int]]:
        """Up to ``count`` entries from ``offset`` on; fewer at the end of a file."""
        segment = self.chain.at(offset * ENTRY_BYTES)
        if segment is None:
            return iter(())
        at = offset * ENTRY_BYTES - segment.base
        size = min(count, self.next_offset - offset, (segment.size - at) // ENTRY_BYTES) * ENTRY_BYTES
        file = segment.file
        check_resident(file, at, size, around=NEIGHBOUR_BYTES)
        return ENTRY.iter_unpack(file.view[at : at + size])

    def find_start(self, log_start: int) -> int:
        """The first message that points into the log. Reads files and no maps: for any thread, but blocks."""
        low, high = self.min_offset, self.next_offset

        def physical_at(offset: int) -> int | None:
            raw = self.chain.read_file(offset * ENTRY_BYTES, ENTRY_BYTES)
            physical, size, _ = ENTRY.unpack(raw)
            return None if size == BLANK_SIZE else physical

        return first_in_log(physical_at, low, high, log_start)

    def start_at(self, offset: int) -> int:
        """Messages before ``offset`` are gone from the log; returns how many files are no longer needed.

        The file of the last message stays, even when that is gone: it tells where the queue goes on.
        """
        self.min_offset = max(self.min_offset, offset)
        return self.chain.retire_before(min(self.min_offset, self.next_offset - 1) * ENTRY_BYTES)

    def sync(self) -> None:
        """Make the queue durable. Runs in any thread."""
        self.chain.sync(self.next_offset * ENTRY_BYTES)

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
        self._limit = _allocated_to(self._at + 1, segment.size)
        segment.file.allocate(self._limit)

    def move_to(self, queue_offset: int) -> None:
        """Go on at another offset: the log is right, whatever this file said."""
        if queue_offset < self.next_offset:
            if queue_offset * ENTRY_BYTES < self.chain.start:
                self.chain.remove_all()
            else:
                for offset in range(queue_offset, self.next_offset):
                    self._clear(offset)
            self.next_offset = queue_offset
            self.min_offset = min(self.min_offset, queue_offset)
        elif self.next_offset > self.min_offset:
            # A hole: what was there is gone from the log.
            self._fill_blanks(queue_offset)
        else:
            if self.chain.segments and queue_offset * ENTRY_BYTES >= self.chain.end:
                self.chain.remove_all()
            first = queue_offset * ENTRY_BYTES // self.chain.segment_bytes * self.chain.segment_bytes // ENTRY_BYTES
            self.next_offset = max(self.next_offset, first)
            self._fill_blanks(queue_offset)
            self.min_offset = queue_offset
        self._use_segment()

    def _fill_blanks(self, queue_offset: int) -> None:
        self._use_segment()
        while self.next_offset < queue_offset:
            self.append_many(_BLANK)

    def _read_entry(self, offset: int) -> bytes:
        """The bytes of an entry; does not map its file."""
        segment = self.chain.at(offset * ENTRY_BYTES)
        return b"" if segment is None else segment.read_part(offset * ENTRY_BYTES, ENTRY_BYTES)

    def _has_entry(self, offset: int) -> bool:
        raw = self._read_entry(offset)
        return len(raw) == ENTRY_BYTES and _SIZE.unpack_from(raw, 8)[0] != 0

    def _clear(self, offset: int) -> None:
        segment = self.chain.at(offset * ENTRY_BYTES)
        assert segment is not None
        at = offset * ENTRY_BYTES - segment.base
        segment.file.view[at : at + ENTRY_BYTES] = bytes(ENTRY_BYTES)
        self.chain.touched(offset * ENTRY_BYTES)

    def _find_end(self, known: int) -> int:
        low = self.chain.segments[-1].base // ENTRY_BYTES
        high = self.chain.end // ENTRY_BYTES
        # The end is near what was known, most often there; of many queues most are short.
        at, step = max(low, min(known, high)), 1
        if at > low and not self._has_entry(at - 1):
            # Its topic was deleted since, and made again.
            at = low
        if at < high and not self._has_entry(at):
            return at
        while at + step < high and self._has_entry(at + step):
            at, step = at + step, step * 2
        low, high = min(at + 1, high), min(at + step, high)
        while low < high:
            middle = (low + high) // 2
            if self._has_entry(middle):
                low = middle + 1
            else:
                high = middle
        return low

    def _last_sound(self, first: int, end: int, is_sound: IsSound) -> int:
        for physical, size, _ in self._entries_back(first, end):
            if size > 0 and (size == BLANK_SIZE or is_sound(end - 1, physical, size)):
                break
            end -= 1
        return end

    def _entries_back(self, first: int, end: int) -> Iterator[tuple[int, int, int]]:
        """The entries before ``end``, newest first; few at a time, then many."""
        many = 1
        while end > first:
            segment = self.chain.at((end - 1) * ENTRY_BYTES)
            assert segment is not None
            start = max(end - many, first, segment.base // ENTRY_BYTES)
            raw = segment.read_part(start * ENTRY_BYTES, (end - start) * ENTRY_BYTES)
            yield from reversed(list(ENTRY.iter_unpack(raw)))
            end, many = start, min(many * 4, 4096)

    def _find_start(self, log_start: int, known: int) -> None:
        """The first entry that is no blank and points into the log; ``known`` is at or before it."""

        def physical_at(offset: int) -> int | None:
            physical, size, _ = ENTRY.unpack(self._read_entry(offset))
            return None if size == BLANK_SIZE else physical

        first = max(self.chain.start // ENTRY_BYTES, min(known, self.next_offset))
        self.min_offset = first_in_log(physical_at, first, self.next_offset, log_start)


def _allocated_to(end: int, segment_bytes: int) -> int:
    """How much of a file gets blocks when its bytes before ``end`` are written."""
    return min(-(-end // ALLOCATED_BYTES) * ALLOCATED_BYTES, segment_bytes)
