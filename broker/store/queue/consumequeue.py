"""Per topic and queue: where each message lies in the commit log.

 physicalOffset 8 | size 4 | tagsCode 8        20 bytes a message; its number is the queue offset

New entries are kept in memory, the tail. A checkpoint copies the tail (`unwritten`), has a thread write the copy
(queue_write.py), and then drops it from memory (`written`). So an append never waits for a file, and files have only
the blocks that are needed. A crash loses the tail only: all of it comes after the checkpoint, and recovery takes it
from the log. No entry has size 0, so the end of a file's entries is found by bisection.

Threads: a queue belongs to the event loop. Its files change under `Flusher.one_at_a_time` only: by the thread of a
checkpoint, of the cleaner or of a deletion, and by the loop in `move_to` and `start_at`.
"""

import struct
from collections.abc import Callable, Iterator

from broker.store.log.residency import check_resident
from broker.store.log.segment import NAME_DIGITS, OnMap, SegmentChain
from broker.store.queue.entry import BLANK_SIZE, ENTRY, ENTRY_BYTES
from broker.store.queue.start_search import StartSearch, first_in_log
from broker.store.queue.write import QueueWrite
from mqcommon.files import FileSystem

_SIZE = struct.Struct(">i")
# Who reads entries that are on disk only gets as many around them into memory: some 13,000.
NEIGHBOUR_BYTES = 256 * 1024
_BLANK = ENTRY.pack(0, BLANK_SIZE, 0)
_pack = ENTRY.pack

IsSound = Callable[[int, int, int], bool]


class ConsumeQueue:
    """One queue of a topic: offsets ``min_offset`` to ``next_offset``."""

    __slots__ = (
        "_chain",
        "_directory",
        "_fs",
        "_on_map",
        "_segment_bytes",
        "_stored",
        "_tail",
        "dirty",
        "is_awaited",
        "magic",
        "min_offset",
        "next_offset",
        "queue_id",
        "record_overhead",
        "topic",
        "topic_tail",
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
        on_map: OnMap,
    ) -> None:
        self._fs = fs
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._on_map = on_map
        # None: the files are those that hold `min_offset` to `_stored`, and nobody needed them yet.
        self._chain: SegmentChain | None = None
        # Entries before this offset are in files, those from it on in the tail.
        self._stored = 0
        self._tail = bytearray()
        self.topic = topic
        self.queue_id = queue_id
        self.magic = magic
        # What every record of this queue has in common; the overhead is that of IPv4 senders.
        self.topic_tail = topic_tail
        self.record_overhead = record_overhead
        self.next_offset = 0
        self.min_offset = 0
        self.dirty = False
        # Whether held pulls may wait for the next message. A pull may wait for a queue that does not exist yet, so this
        # starts as True; HeldPulls clears it when nobody waits.
        self.is_awaited = True

    @property
    def directory(self) -> str:
        return f"{self._directory}/{self.topic}/{self.queue_id}"

    @property
    def chain(self) -> SegmentChain:
        """The files."""
        if self._chain is None:
            self._chain = self._new_chain()
            self._chain.cover(min(self.min_offset, max(self._stored - 1, 0)) * ENTRY_BYTES, self._stored * ENTRY_BYTES)
        return self._chain

    def load(self) -> bool:
        """Find the files. False when some of them are missing, short or blank, so that the queue must be made anew."""
        self._chain = self._new_chain()
        if not self.chain.load():
            return False
        return all(self._has_entry(end - 1) for end in (s.end // ENTRY_BYTES for s in self.chain.segments[:-1])) and (
            len(self.chain.segments) < 2 or self._has_entry(self.chain.start // ENTRY_BYTES)
        )

    def resume(self, low: int, high: int) -> tuple[int, int] | None:
        """Go on with the ends that a clean stop noted. None when the files say otherwise; then `load` them.

        Returns (physical offset, size) of the last entry. One look at one file, as there may be 100,000 queues.
        """
        last = (high - 1) * ENTRY_BYTES
        base = last // self._segment_bytes * self._segment_bytes
        if low * ENTRY_BYTES < base or last + ENTRY_BYTES == base + self._segment_bytes:
            if not self.load() or low * ENTRY_BYTES < self.chain.start or last >= self.chain.end:
                return None
            raw = self._read_file(high - 1) + self._read_file(high)
        else:
            raw = self._look(f"{self.directory}/{base:0{NAME_DIGITS}d}", last - base)
        entries = list(ENTRY.iter_unpack(raw)) if len(raw) % ENTRY_BYTES == 0 else []
        if not entries or entries[0][1] in (0, BLANK_SIZE) or (len(entries) > 1 and entries[1][1]):
            return None
        self.min_offset = low
        self.next_offset = self._stored = high
        return entries[0][:2]

    def _look(self, path: str, at: int) -> bytes:
        """The entries at ``at`` and after it; nothing when the file is not whole."""
        try:
            if self._fs.size(path) != self._segment_bytes:
                return b""
            return self._fs.read_part(path, at, 2 * ENTRY_BYTES)
        except FileNotFoundError:
            return b""

    def find_ends(self, log_start: int, known: tuple[int, int], is_sound: IsSound | None) -> bool:
        """Find first and last entry in the files; maps none of them. True when entries had to be dropped.

        ``known``: (min, next) that the queue had once reached; (0, 0) when nobody noted that.
        ``is_sound`` (offset, physical offset, size): after a power loss, entries at the end that are not sound are
        dropped, and whatever stands after them.
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
            self.chain.zero_from(end * ENTRY_BYTES, sync=end < found)
        self.next_offset = self._stored = end
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
        before, size, _ = ENTRY.unpack(self._read_file(offset - 1))
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
        self._tail.clear()
        chain = self.chain  # made before the offsets change: it is what they say
        assert not chain.segments or chain.start <= offset * ENTRY_BYTES <= chain.end
        self.min_offset = self.next_offset = self._stored = offset

    @property
    def is_empty(self) -> bool:
        return self.min_offset == self.next_offset

    def append(self, physical_offset: int, size: int, tags_code: int) -> None:
        """Add the next message."""
        self._tail += _pack(physical_offset, size, tags_code)
        self.next_offset += 1

    def append_many(self, entries: bytes) -> None:
        """Add packed entries."""
        self._tail += entries
        self.next_offset += len(entries) // ENTRY_BYTES

    def unwritten(self) -> QueueWrite:
        """A copy of what is in memory only, for a thread to write; then `written`."""
        return QueueWrite(self.directory, self._segment_bytes, self._stored * ENTRY_BYTES, bytes(self._tail))

    def written(self, write: QueueWrite) -> None:
        """``write`` is in the files now."""
        start, size = write.at, len(write.data)
        self.chain.cover(start, start + size)
        del self._tail[:size]
        self._stored += size // ENTRY_BYTES

    def take_back(self, offset: int) -> None:
        """Keep the entries from ``offset`` on in memory only, as recovery does with what came after the checkpoint.

        A process that was killed may have written them without syncing them. The next checkpoint does both.
        """
        if offset < self._stored:
            start, end = offset * ENTRY_BYTES, self._stored * ENTRY_BYTES
            parts = [
                segment.read_part(at, min(segment.end, end) - at)
                for segment in self.chain.between(start, end)
                if (at := max(segment.base, start)) < end
            ]
            self.chain.zero_from(start, sync=False)
            self._tail[:0] = b"".join(parts)
            self._stored = offset

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
        if offset >= self._stored:
            return ENTRY.unpack_from(self._tail, (offset - self._stored) * ENTRY_BYTES)
        segment = self.chain.at(offset * ENTRY_BYTES)
        assert segment is not None
        file, at = segment.file, offset * ENTRY_BYTES - segment.base
        check_resident(file, at, ENTRY_BYTES, around=NEIGHBOUR_BYTES)
        return ENTRY.unpack_from(file.view, at)

    def entries(self, offset: int, count: int) -> Iterator[tuple[int, int, int]]:
        """Up to ``count`` entries from ``offset`` on; fewer at the end of a file."""
        if offset >= self._stored:
            at = (offset - self._stored) * ENTRY_BYTES
            return ENTRY.iter_unpack(self._tail[at : at + count * ENTRY_BYTES])
        segment = self.chain.at(offset * ENTRY_BYTES)
        if segment is None:
            return iter(())
        at = offset * ENTRY_BYTES - segment.base
        here = min(count, self._stored - offset, (segment.size - at) // ENTRY_BYTES)
        file, size = segment.file, here * ENTRY_BYTES
        check_resident(file, at, size, around=NEIGHBOUR_BYTES)
        data = file.view[at : at + size]
        if here < count and offset + here == self._stored:
            data += self._tail[: (count - here) * ENTRY_BYTES]
        return ENTRY.iter_unpack(data)

    def start_search(self) -> StartSearch:
        """For a thread: finds the first message that points into the log, given where that starts.

        Only files are searched: what is in memory comes after the last checkpoint, and no log file goes before that.
        """
        return StartSearch(self._fs, self.chain, min(self.min_offset, self._stored), self._stored)

    def start_at(self, offset: int) -> None:
        """Messages before ``offset`` are gone from the log; files that are no longer needed are retired.

        The file of the last message stays, even when that is gone: it tells where the queue goes on.
        """
        self.chain.retire_before(min(max(self.min_offset, offset), self._stored - 1) * ENTRY_BYTES)
        self.min_offset = max(self.min_offset, offset)

    def forget(self) -> None:
        """Let go of all entries; the caller removes the files."""
        self.chain.forget()
        self._tail.clear()
        self._stored = self.next_offset

    def close(self) -> None:
        if self._chain is not None:
            self._chain.close()

    def move_to(self, queue_offset: int) -> None:
        """Go on at another offset: the log is right, whatever this file said."""
        if queue_offset < self.next_offset:
            self._cut(queue_offset)
            self.min_offset = min(self.min_offset, queue_offset)
        elif self.next_offset > self.min_offset:
            # A hole: what was there is gone from the log.
            self.append_many(_BLANK * (queue_offset - self.next_offset))
        else:
            at = queue_offset * ENTRY_BYTES
            if self.chain.segments and at >= self.chain.end:
                self.chain.remove_all()
            first = at // self._segment_bytes * self._segment_bytes // ENTRY_BYTES
            if first > self.next_offset:
                self._tail.clear()
                self.next_offset = self._stored = first
            self.append_many(_BLANK * (queue_offset - self.next_offset))
            self.min_offset = queue_offset

    def _cut(self, offset: int) -> None:
        """The queue ends at ``offset``, which it has passed."""
        if offset >= self._stored:
            del self._tail[(offset - self._stored) * ENTRY_BYTES :]
        else:
            self._tail.clear()
            if offset * ENTRY_BYTES < self.chain.start:
                self.chain.remove_all()
            else:
                self.chain.cut_after(offset * ENTRY_BYTES)
                self.chain.zero_from(offset * ENTRY_BYTES, sync=True)
            self._stored = offset
        self.next_offset = offset

    def _new_chain(self) -> SegmentChain:
        return SegmentChain(
            self._fs, self.directory, self._segment_bytes, durable_files=False, allocated=0, on_map=self._on_map
        )

    def _read_file(self, offset: int) -> bytes:
        """The bytes of an entry in a file; does not map it."""
        segment = self.chain.at(offset * ENTRY_BYTES)
        return b"" if segment is None else segment.read_part(offset * ENTRY_BYTES, ENTRY_BYTES)

    def _read_entry(self, offset: int) -> bytes:
        at = (offset - self._stored) * ENTRY_BYTES
        return self._read_file(offset) if at < 0 else bytes(self._tail[at : at + ENTRY_BYTES])

    def _has_entry(self, offset: int) -> bool:
        raw = self._read_file(offset)
        return len(raw) == ENTRY_BYTES and _SIZE.unpack_from(raw, 8)[0] != 0

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
