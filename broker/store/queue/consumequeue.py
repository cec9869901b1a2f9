"""One consume queue: where each of its messages is in the commit log.

 physicalOffset 8 | size 4 | tagsCode 8        20 bytes per message; its position is the queue offset

New entries stay in memory, in the tail. A checkpoint copies the tail (`unwritten`), has a thread write the copy
(`QueueWrite`), and drops the written entries from memory (`written`). So no append waits for a file. A crash loses only
the tail: its entries are newer than the last checkpoint, and recovery makes them again from the log.
Invariants: entries before `_stored` are in files, later ones in the tail. Physical offsets rise along a queue. No entry
has size 0: zeros mark the end of a file's entries, and bisection finds it. So whatever makes a queue shorter must zero
the bytes after its new end: an old entry left there would be part of the queue after the next start.

Threads: a queue belongs to the event loop. Its files change only under `Flusher.one_at_a_time`: in the thread of a
checkpoint, of the cleaner or of a deletion, and on the loop in `move_to` and `start_at`.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from skylark.broker.store.log.residency import ColdBlocks, bytes_got
from skylark.broker.store.log.segment import OnMap, SegmentChain, file_path
from skylark.broker.store.queue.bounds_search import BoundsSearch, entries_back, first_in_log, first_where, two_entries
from skylark.broker.store.queue.delay_levels import DEFAULT, DelayLevels
from skylark.broker.store.queue.entry import BLANK_SIZE, ENTRY, ENTRY_BYTES, TAGS_CODE, TAGS_CODE_AT
from skylark.broker.store.sums.growing_sums import GrowingSums
from skylark.mqcommon.disk.files import FileSystem, MappedFile
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.message.layout import MIN_RECORD
from skylark.mqcommon.message.record import Record
from skylark.mqcommon.names import SCHEDULE_TOPIC, TIMER_TOPIC

_BLANK = ENTRY.pack(0, BLANK_SIZE, 0)
# Where an entry has its size, after its physical offset.
_SIZE_AT = 8
_pack = ENTRY.pack
_NOTHING = (0, 0)

# This many bytes are compared with their sum in the event loop: some microseconds.
_LOOK_BYTES = 16 * 1024
_FIRST_BYTES = 4096
_STEP_BYTES = 20 * 4096

IsSound = Callable[[int, int, int], bool]
#: Mends block ``number`` of a queue, whose bytes do not fit its sum. May raise NotResident, as a read.
MendBlock = Callable[["ConsumeQueue", int], None]


@lazy_dataclass(frozen=True, slots=True)
class QueueWrite:
    """New entries for a thread to write: ``data`` goes to position ``at`` of files that have ``segment_bytes``.

    A new file has its full size, as in RocketMQ. Its blocks are allocated as needed, before they are written, so that a
    full disk raises DiskFull: 4 KiB at first, then twice as much each time up to 80 KiB, then steps of 80 KiB.
    """

    directory: str
    segment_bytes: int
    at: int
    data: bytes

    def run(self, fs: FileSystem) -> list[MappedFile]:
        """Write the data; the caller syncs and closes the files. Blocks. An error may leave a part written."""
        files: list[MappedFile] = []
        try:
            at, end = self.at, self.at + len(self.data)
            while at < end:
                base = at // self.segment_bytes * self.segment_bytes
                stop = min(end, base + self.segment_bytes)
                file = self._open(fs, file_path(self.directory, base))
                files.append(file)
                file.allocate(_allocated_to(stop - base, self.segment_bytes))
                file.pwrite(at - base, memoryview(self.data)[at - self.at : stop - self.at])
                at = stop
        except BaseException:
            for file in files:
                file.close()
            raise
        return files

    def _open(self, fs: FileSystem, path: str) -> MappedFile:
        try:
            return fs.open_map(path, self.segment_bytes, create=True, allocated=0)
        except FileNotFoundError:
            fs.mkdirs(self.directory)
            return fs.open_map(path, self.segment_bytes, create=True, allocated=0)


def _allocated_to(end: int, segment_bytes: int) -> int:
    """How many bytes of a file have blocks when those before ``end`` are written."""
    allocated = _FIRST_BYTES
    while allocated < min(end, _STEP_BYTES):
        allocated *= 2
    if allocated > _STEP_BYTES:
        allocated = -(-end // _STEP_BYTES) * _STEP_BYTES
    return min(allocated, segment_bytes)


class QueueFiles(NamedTuple):
    """Where the files of queues of one kind are: on which disk, in which directory, of what size.

    ``on_map`` is called after each mapping of a file, ``mend`` when a read meets a block that does not fit its sum.
    """

    fs: FileSystem
    directory: str
    segment_bytes: int
    on_map: OnMap
    mend: MendBlock


class TopicHead(NamedTuple):
    """What the records of all queues of a topic share: magic, and the bytes of the topic after the body.

    ``record_overhead``: all but the sender's host, body and properties. The queues of a topic share these objects.
    """

    topic: str
    magic: int
    topic_tail: bytes
    record_overhead: int


class ConsumeQueue:
    """One queue of a topic: offsets ``min_offset`` to ``next_offset``."""

    __slots__ = (
        "_chain",
        "_directory",
        "_fs",
        "_mend",
        "_on_map",
        "_segment_bytes",
        "_skipped",
        "_stored",
        "_tail",
        "checked",
        "dirty",
        "is_awaited",
        "is_delayed",
        "levels",
        "loaded_to",
        "magic",
        "min_offset",
        "next_offset",
        "queue_id",
        "record_overhead",
        "sealed_at",
        "sums",
        "topic",
        "topic_tail",
    )
    # What differs in batch_queue.py: bits of sysFlag that its records have, and the fewest bytes of a message.
    is_batch = False
    sys_flag = 0
    entry_bytes = ENTRY_BYTES
    least_bytes = MIN_RECORD

    def __init__(self, files: QueueFiles, head: TopicHead, queue_id: int, levels: DelayLevels = DEFAULT) -> None:
        self._fs, self._directory, self._segment_bytes, self._on_map, self._mend = files
        # None until the first use; the files are then those that hold `min_offset` to `_stored`.
        self._chain: SegmentChain | None = None
        # Entries before this offset are in files, those from it on in the tail.
        self._stored = 0
        self._tail = bytearray()
        #: The sums of the files' blocks.
        self.sums = GrowingSums(self._segment_bytes)
        # The offsets of messages that readers skip, and whether that is still so; None for most queues.
        self._skipped: dict[int, Callable[[], bool]] | None = None
        self.topic, self.magic, self.topic_tail, self.record_overhead = head
        self.queue_id = queue_id
        self.is_delayed = head.topic in (SCHEDULE_TOPIC, TIMER_TOPIC)  # the tags codes are then times, see tags.py
        self.levels = levels
        #: Entries before this offset are of an earlier process: they came from the disk.
        self.loaded_to = 0
        #: The offsets before `loaded_to` whose messages were compared whole, and with their CRCs, since the start.
        self.checked = _NOTHING
        self.next_offset = 0
        self.min_offset = 0
        self.dirty = False
        #: Consumers see no message from this offset on, see meta/seals.py; None: they see all.
        self.sealed_at: int | None = None
        # Whether held pulls may wait for the next message; HeldPulls clears it. A pull may wait for a queue to be made.
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

    @property
    def segment_bytes(self) -> int:
        """The size of each file."""
        return self._segment_bytes

    @property
    def stored_bytes(self) -> int:
        """Where the entries in the files end, as a byte of the chain."""
        return self._stored * self.entry_bytes

    def load(self) -> bool:
        """Find the files. False if some of them are missing, short or blank: the queue must be rebuilt."""
        self._chain = self._new_chain()
        if not self.chain.load():
            return False
        # Entries are written without a sync between the files. After a power loss a file may be there as zeros, and all
        # searches rely on this: only the newest file ends before its last place.
        return all(self._has_entry(end - 1) for end in (s.end // ENTRY_BYTES for s in self.chain.segments[:-1])) and (
            len(self.chain.segments) < 2 or self._has_entry(self.chain.start // ENTRY_BYTES)
        )

    def resume(self, low: int, high: int) -> tuple[int, int] | None:
        """Use the ends that a clean stop noted, ``low`` and ``high``. None if the files do not agree; then call `load`.

        Returns (physical offset, size) of the last entry. Reads one file, as there may be 100,000 queues.
        """
        # If the last noted entry exists, and no entry follows, the file is as it was noted. All its entries were synced
        # before the ends were noted.
        last = (high - 1) * ENTRY_BYTES
        base = last // self._segment_bytes * self._segment_bytes
        if low * ENTRY_BYTES < base or last + ENTRY_BYTES == base + self._segment_bytes:
            if not self.load() or low * ENTRY_BYTES < self.chain.start or last >= self.chain.end:
                return None
            raw = self._read_file(high - 1) + self._read_file(high)
        else:
            raw = two_entries(self._fs, file_path(self.directory, base), self._segment_bytes, last - base)
        entries = list(ENTRY.iter_unpack(raw)) if len(raw) % ENTRY_BYTES == 0 else []
        if not entries or entries[0][1] in (0, BLANK_SIZE) or (len(entries) > 1 and entries[1][1]):
            return None
        self.min_offset = low
        self.next_offset = self._stored = self.loaded_to = high
        return entries[0][:2]

    def find_ends(self, log_start: int, known: tuple[int, int], is_sound: IsSound | None) -> bool:
        """Find the first and last entry in the files; maps none of them. True if entries were dropped.

        ``known``: (min, next) as last noted; (0, 0) if they never were.
        ``is_sound`` (offset, physical offset, size): after a power loss, unsound entries at the end are dropped.
        """
        segments = self.chain.segments
        # A process may have died between making a file and writing its first entry.
        while len(segments) > 1 and not self._has_entry(segments[-1].base // ENTRY_BYTES):
            self.chain.cut_after(segments[-1].base)
        if not segments:
            return False
        first = self.chain.start // ENTRY_BYTES
        end = found = self._find_end(known[1])
        if is_sound is not None:
            # Write zeros after the new end, durably if entries are dropped: an old entry left there would belong to the
            # queue again after the next start.
            end = self._last_sound(first, found, is_sound)
            if end == first:
                # No entry is sound, so the start is not known either: files before this one may be lost.
                self.chain.remove_all()
                return True
            self.chain.zero_from(end * ENTRY_BYTES, sync=end < found)
        self.next_offset = self._stored = self.loaded_to = end
        self._find_start(log_start, known[0])
        return end < found

    def last_entry(self) -> tuple[int, int, int]:
        """(offset, physical offset, size) of the newest message; size 0 if the queue has none."""
        for offset in range(self.next_offset - 1, self.min_offset - 1, -1):
            physical, size, _ = ENTRY.unpack(self._read_entry(offset))
            if size != BLANK_SIZE:
                return offset, physical, size
        return 0, 0, 0

    def is_after_previous(self, offset: int, physical: int) -> bool:
        """Whether an entry points past the entry before it. A torn entry does not; a file's first one is never torn."""
        if offset * ENTRY_BYTES == self.chain.start:
            return True
        before, size, _ = ENTRY.unpack(self._read_file(offset - 1))
        return bool(size == BLANK_SIZE or (size > 0 and before + size <= physical))

    def drop_past(self, log_end: int) -> None:
        """Drop the entries at the end that point past the end of the log."""
        end = self.next_offset
        while end > self.min_offset:
            physical, size, _ = self.entry(end - 1)
            if physical < log_end and size != BLANK_SIZE:
                break
            end -= 1
        if end < self.next_offset:
            self.move_to(end)

    def continue_at(self, offset: int) -> None:
        """Set the next offset of an empty queue: the messages before it are gone from the log."""
        self._tail.clear()
        chain = self.chain  # read before the offsets change, which it is made from
        assert not chain.segments or chain.start <= offset * ENTRY_BYTES <= chain.end
        self.sums = GrowingSums(self._segment_bytes)
        self.min_offset = self.next_offset = self._stored = offset

    @property
    def is_empty(self) -> bool:
        return self.min_offset == self.next_offset

    def append(self, physical_offset: int, size: int, tags_code: int, stored_ms: int = 0, messages: int = 1) -> None:
        """Add the entry of the next message. Only batch queues use ``stored_ms`` and ``messages``."""
        self._tail += _pack(physical_offset, size, tags_code)
        self.next_offset += 1

    def append_many(self, entries: bytes) -> None:
        """Add packed entries."""
        self._tail += entries
        self.next_offset += len(entries) // ENTRY_BYTES

    def unwritten(self) -> QueueWrite:
        """A copy of the tail, for a thread to write; call `written` after that."""
        return QueueWrite(self.directory, self._segment_bytes, self._stored * self.entry_bytes, bytes(self._tail))

    def written(self, write: QueueWrite) -> None:
        """Drop from the tail what ``write`` has put into the files."""
        # The tail may have grown since the copy was made: only the copied entries leave it. The chain first gets the
        # files that the thread made, since reads find the entries in these files from now on.
        start, size = write.at, len(write.data)
        self.chain.cover(start, start + size)
        self.sums.extend(start, write.data)
        del self._tail[:size]
        self._stored += size // self.entry_bytes

    def take_sums(self, first: int, rows: bytes) -> None:
        """Use the sums of an earlier process, see `GrowingSums.take_rows`."""
        self.sums = GrowingSums(self._segment_bytes)
        self.sums.take_rows(first, rows, self.stored_bytes)

    def take_back(self, offset: int, tags_code: int) -> None:
        """Move the entries from ``offset`` on out of the files and into the tail; for recovery.

        A killed process may have written them without a sync. The next checkpoint writes and syncs the whole tail.
        ``tags_code``: the code of the message at ``offset``. The kernel ends the write of a killed process at a page,
        which may be in the middle of an entry: then the entry has its physical offset and size, but not its code.
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
            self.sums.drop_from(self.stored_bytes)
        TAGS_CODE.pack_into(self._tail, (offset - self._stored) * ENTRY_BYTES + TAGS_CODE_AT, tags_code)

    def put_record(self, record: Record, tags_code: int) -> None:
        """Set the entry of ``record``, for recovery.

        If the queue had another entry at this offset, the queue now ends after the new entry.
        """
        offset, physical, size = record.queue_offset, record.physical_offset, record.size
        if offset != self.next_offset:
            if self.min_offset <= offset < self.next_offset and self.entry(offset)[:2] == (physical, size):
                return
            self.move_to(offset)
        self.append(physical, size, tags_code)

    def entry(self, offset: int) -> tuple[int, int, int]:
        """(physical offset, size, tags code) of message ``offset``, which must exist."""
        if self._skipped is not None:
            return ENTRY.unpack(self.raw_entries(offset, 1))
        if offset >= self._stored:
            return ENTRY.unpack_from(self._tail, (offset - self._stored) * ENTRY_BYTES)
        segment = self.chain.at(offset * ENTRY_BYTES)
        assert segment is not None
        file, at = segment.file, offset * ENTRY_BYTES - segment.base
        self._check(file, segment.base, at, ENTRY_BYTES)
        return ENTRY.unpack_from(file.view, at)

    def entries(self, offset: int, count: int) -> Iterator[tuple[int, int, int]]:
        """Up to ``count`` entries from ``offset`` on; fewer at the end of a file."""
        return ENTRY.iter_unpack(self.raw_entries(offset, count))

    def raw_entries(self, offset: int, count: int) -> bytes:
        """As `entries`, as they are in the file."""
        if offset >= self._stored:
            at = (offset - self._stored) * ENTRY_BYTES
            data = bytes(self._tail[at : at + count * ENTRY_BYTES])
            return data if self._skipped is None else self._without_skipped(offset, data)
        segment = self.chain.at(offset * ENTRY_BYTES)
        if segment is None:
            return b""
        at = offset * ENTRY_BYTES - segment.base
        here = min(count, self._stored - offset, (segment.size - at) // ENTRY_BYTES)
        file, size = segment.file, here * ENTRY_BYTES
        self._check(file, segment.base, at, size)
        data = file.view[at : at + size]
        if here < count and offset + here == self._stored:
            data += self._tail[: (count - here) * ENTRY_BYTES]
        return data if self._skipped is None else self._without_skipped(offset, data)

    def skip(self, offset: int, while_: Callable[[], bool]) -> bool:
        """Let readers see a blank instead of the entry of ``offset``, ``while_`` it is True: its message is damaged.

        The file stays as it is. Returns whether readers saw the entry before.
        """
        if self._skipped is None:
            self._skipped = {}
        is_new = offset not in self._skipped
        self._skipped[offset] = while_
        return is_new

    def _without_skipped(self, offset: int, data: bytes) -> bytes:
        """``data``, the entries from ``offset`` on, with blanks for messages that are skipped."""
        assert self._skipped is not None
        found, end = bytearray(data), offset + len(data) // ENTRY_BYTES
        for skipped, is_so in [*self._skipped.items()]:
            if not is_so():
                del self._skipped[skipped]
            elif offset <= skipped < end:
                at = (skipped - offset) * ENTRY_BYTES
                found[at + _SIZE_AT : at + ENTRY_BYTES] = _BLANK[_SIZE_AT:]
        if not self._skipped:
            self._skipped = None
        return bytes(found)

    def bounds_search(self) -> BoundsSearch:
        """A search of the files, for a thread, for the first message that the log still has; it has all of the tail."""
        return BoundsSearch(self._fs, self.chain, min(self.min_offset, self._stored), self._stored)

    def start_at(self, offset: int) -> None:
        """Let the queue start at ``offset``, as earlier messages are gone from the log; retires files wholly before it.

        The file of the last message stays, even if that message is gone: it tells at which offset the queue goes on.
        """
        self.chain.retire_before(min(max(self.min_offset, offset), self._stored - 1) * ENTRY_BYTES)
        self.sums.remove_before(self.chain.start)
        self.min_offset = max(self.min_offset, offset)

    @property
    def first_place(self) -> int:
        """The place of the first entry. A plain queue's entries have their offsets as places."""
        return self.min_offset

    @property
    def stored_end(self) -> int:
        """The place after the last entry that is in a file."""
        return self._stored

    def tail(self) -> bytes:
        """A copy of the entries that are in memory only."""
        return bytes(self._tail)

    def tail_start(self, log_end: int) -> int:
        """Where the message of the first entry after those in files is, or ``log_end``."""
        for at in range(0, len(self._tail), self.entry_bytes):
            physical, size, _ = ENTRY.unpack_from(self._tail, at)
            if size != BLANK_SIZE:
                return int(physical)
        return log_end

    def note_checked(self, first: int, end: int) -> None:
        """Record that messages ``first`` to ``end`` were compared whole. Only one range of a queue is remembered."""
        low, high = self.checked
        self.checked = (min(low, first), max(high, end)) if low <= end and first <= high else (first, end)

    def replace_entries(self, first: int, seen: bytes, right: bytes) -> list[int]:
        """Replace the entries from place ``first`` on by ``right``, where they are in files and still as ``seen``.

        Returns the places where that was so, and where the two differ. Nothing is synced: after a power loss the wrong
        entries are found once more.
        """
        size, replaced = self.entry_bytes, []
        for at in range(0, len(right), size):
            place = first + at // size
            segment = self.chain.at(place * size)
            if place >= self._stored or segment is None or seen[at : at + size] == right[at : at + size]:
                continue
            file, position = segment.file, place * size - segment.base
            if file.view[position : position + size] == seen[at : at + size]:
                file.pwrite(position, memoryview(right)[at : at + size])
                replaced.append(place)
        return replaced

    def forget(self) -> None:
        """Drop all entries; the caller removes the files."""
        self.loaded_to, self.checked = 0, _NOTHING
        self.sums = GrowingSums(self._segment_bytes)
        self.chain.forget()
        self._tail.clear()
        self._skipped = None
        self._stored = self.next_offset

    def close(self) -> None:
        if self._chain is not None:
            self._chain.close()

    def move_to(self, queue_offset: int) -> None:
        """Make ``queue_offset`` the next offset, because the log has a record with that number.

        The log decides, and an entry's position is its offset, so the kept entries must not move. Backwards: the
        entries from ``queue_offset`` on are wrong and are zeroed. Forwards: the log lost messages, and blanks fill the
        hole. An empty queue starts at ``queue_offset``; earlier files are removed, and blanks fill its file up to the
        entry.
        """
        if queue_offset < self.next_offset:
            self._cut(queue_offset)
        elif self.next_offset > self.min_offset:
            self.append_many(_BLANK * (queue_offset - self.next_offset))
        else:
            at = queue_offset * ENTRY_BYTES
            if self.chain.segments and at >= self.chain.end:
                self.chain.remove_all()
            first = at // self._segment_bytes * self._segment_bytes // ENTRY_BYTES
            if first > self.next_offset:
                self._tail.clear()
                self.sums = GrowingSums(self._segment_bytes)
                self.next_offset = self._stored = first
            self.append_many(_BLANK * (queue_offset - self.next_offset))
            self.min_offset = queue_offset

    def _cut(self, offset: int) -> None:
        """End the queue at ``offset``, which is before its present end, also in its files."""
        # Cut the files before memory, and durably: the caller then appends other entries at these offsets.
        if offset < self._stored:
            if offset * ENTRY_BYTES < self.chain.start:
                self.chain.remove_all()
            else:
                self.chain.cut_after(offset * ENTRY_BYTES)
                self.chain.zero_from(offset * ENTRY_BYTES, sync=True)
        self.end_at(offset)

    def end_at(self, offset: int) -> None:
        """Forget the entries from ``offset`` on; the caller removes those in files, which no other thread uses."""
        if offset >= self._stored:
            del self._tail[(offset - self._stored) * ENTRY_BYTES :]
        else:
            self._tail.clear()
            for segment in self.chain.leave_after(offset * ENTRY_BYTES):
                segment.close()
            self.chain.cut_ended()  # queues have no files that are made ahead
            self.chain.map_last_anew()
            self._stored = offset
            self.sums.drop_from(self.stored_bytes)
        self.next_offset = offset
        self.loaded_to, self.checked = min(self.loaded_to, offset), _NOTHING
        self.min_offset = min(self.min_offset, offset)

    def _new_chain(self) -> SegmentChain:
        return SegmentChain(
            self._fs, self.directory, self._segment_bytes, durable_files=False, allocated=0, on_map=self._on_map
        )

    def _check(self, file: MappedFile, base: int, at: int, size: int) -> None:
        """Within `resident_only`, raise NotResident unless these bytes are in memory, and fit the sums of their blocks.

        They are at ``at`` of a file that begins at ``base`` of the chain. Whole blocks are read: the entries around
        will be needed soon. A block that does not fit its sum is mended from the log first.
        """
        if bytes_got() is None:
            return
        sums, is_resident = self.sums, file.resident(at, size)
        needs_look = sums.needs_look(base + at, size)
        if is_resident and needs_look:
            self._look_here(file, base, at, size)
            needs_look = sums.needs_look(base + at, size)
        if sums.suspects and (number := sums.suspected(base + at, size)) is not None:
            self._mend(self, number)
            needs_look = sums.needs_look(base + at, size)
        if not is_resident or needs_look:
            raise ColdBlocks(file, base, at, size, sums, on_disk=not is_resident)

    def _look_here(self, file: MappedFile, base: int, at: int, size: int) -> None:
        """Compare a block that has few bytes and is in memory: that costs less than a thread."""
        sums = self.sums
        number = sums.number_at(base + at)
        known, start = sums.sum_of(number), sums.block(number).start - base
        if number != sums.number_at(base + at + size - 1) or known.size > _LOOK_BYTES:
            return
        if not file.resident(start, known.size):
            return
        if known.fits(file.view[start : start + known.size]):
            sums.see(number)
        else:
            sums.suspect(number)

    def _read_file(self, offset: int) -> bytes:
        """The bytes of an entry in a file, read without mapping the file."""
        at, size = offset * self.entry_bytes, self.entry_bytes
        segment = self.chain.at(at)
        return b"" if segment is None else segment.read_part(at, size)

    def _read_entry(self, offset: int) -> bytes:
        at = (offset - self._stored) * ENTRY_BYTES
        return self._read_file(offset) if at < 0 else bytes(self._tail[at : at + ENTRY_BYTES])

    def _has_entry(self, offset: int) -> bool:
        raw = self._read_file(offset)
        return len(raw) == ENTRY_BYTES and ENTRY.unpack(raw)[1] != 0

    def _find_end(self, known: int) -> int:
        low = self.chain.segments[-1].base // ENTRY_BYTES
        high = self.chain.end // ENTRY_BYTES
        # The true end is the noted one, or close after it.
        at, step = max(low, min(known, high)), 1
        if at > low and not self._has_entry(at - 1):
            # The queue is shorter than noted: the topic was deleted and made again. Search from the file's start.
            at = low
        if at < high and not self._has_entry(at):
            return at
        while at + step < high and self._has_entry(at + step):
            at, step = at + step, step * 2
        return first_where(min(at + 1, high), min(at + step, high), lambda place: not self._has_entry(place))

    def _last_sound(self, first: int, end: int, is_sound: IsSound) -> int:
        # The newest entry that the log proves ends the queue. A wrong entry before it is found, and mended, by the
        # first read that meets it (entry_repair.py).
        for physical, size, _ in entries_back(self.chain, first, end):
            if size > 0 and (size == BLANK_SIZE or is_sound(end - 1, physical, size)):
                break
            end -= 1
        return end

    def _find_start(self, log_start: int, known: int) -> None:
        """Set `min_offset` to the first entry that points into the log; ``known`` is at or before it."""

        def physical_at(offset: int) -> int | None:
            physical, size, _ = ENTRY.unpack(self._read_entry(offset))
            return None if size == BLANK_SIZE else physical

        # The noted start is a lower bound: the cleaner only ever raises it.
        first = max(self.chain.start // ENTRY_BYTES, min(known, self.next_offset))
        self.min_offset = first_in_log(physical_at, first, self.next_offset, log_start)
