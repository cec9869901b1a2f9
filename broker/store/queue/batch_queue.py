"""A batch queue: the consume queue of a topic with ``queue.type=BatchCQ``, whose entries stand for whole batches.

An entry (entry.py) has the queue offset of its first message and the number of messages. So the place of an entry in
the files is not an offset: a message is found by bisection. Missing messages between two entries leave no blank;
readers continue with the next entry. A batch with one message is a plain record whose sysFlag has INNER_BATCH, so each
record shows the kind of its queue.
Invariants: offsets and physical offsets rise along the entries, and no two entries have a message in common.
Recovery is simpler than for a plain queue: after a crash all entries that point past the checkpoint are dropped, and
the scan of the log makes them again.
Neighbours: consumequeue.py (tail, checkpoints and threads are the same here), store/reader.py.
"""

from collections.abc import Iterator
from typing import NamedTuple

from skylark.broker.store.queue.bounds_search import BatchBoundsSearch, first_from_end, first_where
from skylark.broker.store.queue.consumequeue import ConsumeQueue, IsSound, QueueFiles, TopicHead
from skylark.broker.store.queue.delay_levels import DEFAULT, DelayLevels
from skylark.broker.store.queue.entry import BATCH_ENTRY, BATCH_ENTRY_BYTES, BLANK_SIZE, NOT_COMPACTED, messages_in
from skylark.broker.store.sums.growing_sums import GrowingSums
from skylark.mqcommon.message.batch import OVERHEAD
from skylark.mqcommon.message.flags import INNER_BATCH
from skylark.mqcommon.message.record import Record

# How many entries are read at once.
_READ = 512
_BYTES = BATCH_ENTRY_BYTES
_pack = BATCH_ENTRY.pack


class BatchAt(NamedTuple):
    """Messages ``base`` to ``base + messages`` of a queue are in one record."""

    physical: int
    size: int
    tags_code: int
    stored_ms: int
    base: int
    messages: int
    compacted: int = NOT_COMPACTED
    reserved: int = 0

    @property
    def end(self) -> int:
        """The offset after its last message."""
        return self.base + self.messages

    @property
    def is_entry(self) -> bool:
        """Whether this is a whole entry: False for zeros, and for a part of an entry that a crash left."""
        return self.physical >= 0 < self.size and self.base >= 0 < self.messages and self.compacted != 0


_ZEROS = BatchAt(0, 0, 0, 0, 0, 0, 0)


class BatchConsumeQueue(ConsumeQueue):
    """One batch queue: offsets ``min_offset`` to ``next_offset``. ``_stored`` counts entries, not messages."""

    __slots__ = ("_first",)

    is_batch = True
    sys_flag = INNER_BATCH
    entry_bytes = BATCH_ENTRY_BYTES
    least_bytes = OVERHEAD

    def __init__(self, files: QueueFiles, head: TopicHead, queue_id: int, levels: DelayLevels = DEFAULT) -> None:
        """As a plain queue."""
        super().__init__(files, head, queue_id, levels)
        # The place of the entry with `min_offset`.
        self._first = 0

    @property
    def first_place(self) -> int:
        return self._first

    @property
    def _end(self) -> int:
        """The place after the last entry."""
        return self._stored + len(self._tail) // _BYTES

    # --- a start

    def load(self) -> bool:
        self._chain = self._new_chain()
        self._first = 0
        if not self._chain.load():
            return False
        segments = self._chain.segments
        if len(segments) < 2:
            return True
        ends = [segment.end // _BYTES - 1 for segment in segments[:-1]]
        return all(self._in_file(place).is_entry for place in (segments[0].base // _BYTES, *ends))

    def resume(self, low: int, high: int) -> tuple[int, int] | None:
        if not self.load() or not self.chain.segments:
            return None
        self._first = self.chain.start // _BYTES
        end = self._find_last()
        last = self._in_file(end - 1) if end > self._first else _ZEROS
        # The noted ends differ from the entries on disk: the caller searches for the end instead.
        if last.end != high:
            return None
        self._stored = end
        self.min_offset, self.next_offset = low, high
        self.loaded_to = high
        self._first = self.place_of(low)
        return last.physical, last.size

    def find_ends(self, log_start: int, known: tuple[int, int], is_sound: IsSound | None) -> bool:
        """As in a plain queue. ``is_sound`` is called after any crash; it is False for entries past the checkpoint."""
        segments = self.chain.segments
        while len(segments) > 1 and not self._in_file(segments[-1].base // _BYTES).is_entry:
            self.chain.cut_after(segments[-1].base)
        if not segments:
            return False
        first = self.chain.start // _BYTES
        end = found = self._find_last()
        # Entries have no place of their own by offset, so one torn entry would shift all bisections after it. After any
        # crash the queue therefore ends with the last entry before the checkpoint that the log proves.
        if is_sound is not None:
            end = self._last_sound_place(first, found, is_sound)
            if end == first:
                self.chain.remove_all()
                self._stored = self._first = 0
                return True
            self.chain.cut_after(end * _BYTES)
            self.chain.zero_from(end * _BYTES, sync=end < found)
        self._stored = end
        self.next_offset = self.loaded_to = self._in_file(end - 1).end if end > first else 0
        self._first = low = first_where(first, end, lambda place: self._in_file(place).physical >= log_start)
        self.min_offset = self._in_file(low).base if low < end else self.next_offset
        return end < found

    def last_entry(self) -> tuple[int, int, int]:
        """(offset of the first message, physical offset, size) of the newest entry; size 0 if there is none."""
        if self._end == self._first:
            return 0, 0, 0
        last = self.at(self._end - 1)
        return last.base, last.physical, last.size

    def is_after_previous(self, offset: int, physical: int) -> bool:
        """Whether the last entry, which points to ``physical``, points past the entry before it.

        ``offset`` is not used: while the end is searched for, the entry that is judged is the last one.
        """
        place = self._stored - 1
        if place * _BYTES == self.chain.start:
            return True
        before = self._in_file(place - 1)
        return before.is_entry and before.physical + before.size <= physical

    def drop_past(self, log_end: int) -> None:
        place = end = self._end
        while place > self._first and self.at(place - 1).physical >= log_end:
            place -= 1
        if place < end:
            self.move_to(self.at(place - 1).end if place > self._first else self.at(place).base)

    def take_back(self, offset: int, tags_code: int) -> None:
        """As in a plain queue. The tags code stays: after a kill there is no entry here that the kill may have torn."""
        place = self.place_of(offset)
        if place < self._stored:
            raw = b""
            while (at := place + len(raw) // _BYTES) < self._stored:
                raw += self._raw(at, self._stored - at)
            self.chain.zero_from(place * _BYTES, sync=False)
            self._tail[:0] = raw
            self._stored = place
            self.sums.drop_from(self.stored_bytes)

    # --- entries

    def append(self, physical_offset: int, size: int, tags_code: int, stored_ms: int = 0, messages: int = 1) -> None:
        """Append a record that holds ``messages`` messages."""
        self._tail += _pack(physical_offset, size, tags_code, stored_ms, self.next_offset, messages, NOT_COMPACTED, 0)
        self.next_offset += messages

    def put_record(self, record: Record, tags_code: int) -> None:
        offset = record.queue_offset
        if offset != self.next_offset:
            # The scan begins at the checkpoint, and a kill may have left entries of later messages: these stay.
            if self.min_offset <= offset < self.next_offset:
                known = self.at(self.place_of(offset))
                if (known.physical, known.base) == (record.physical_offset, offset):
                    return
            self.move_to(offset)
        self.append(record.physical_offset, record.size, tags_code, record.store_timestamp, messages_in(record))

    def entry(self, offset: int) -> tuple[int, int, int]:
        """(physical offset, size, tags code) of the record that holds message ``offset``, or of the next one."""
        return self.at(self.place_of(offset))[:3]

    def entries(self, offset: int, count: int) -> Iterator[tuple[int, int, int]]:
        """For each of up to ``count`` messages the entry of its record; blank for a missing one."""
        end = min(offset + count, self.next_offset)
        for batch in self.batches(offset):
            for _ in range(offset, min(batch.base, end)):
                yield 0, BLANK_SIZE, 0
            for _ in range(max(offset, batch.base), min(batch.end, end)):
                yield batch[:3]
            offset = batch.end
            if offset >= end:
                break

    def batches(self, offset: int) -> Iterator[BatchAt]:
        """Entries from the entry that contains message ``offset``, or else from the next entry."""
        place = self.place_of(offset)
        while place < self._end:
            raw = self._raw(place, _READ)
            yield from map(BatchAt._make, BATCH_ENTRY.iter_unpack(raw))
            place += len(raw) // _BYTES

    # --- the start and the end of the queue

    def bounds_search(self) -> BatchBoundsSearch:
        rest = self.at(self._stored).base if self._tail else self.next_offset
        low = min(self._first, self._stored)
        return BatchBoundsSearch(self._fs, self.chain, low, self._stored, self.min_offset, rest)

    def start_at(self, offset: int) -> None:
        self.min_offset = max(self.min_offset, offset)
        self._first = self.place_of(self.min_offset)
        self.chain.retire_before(min(self._first, self._stored - 1) * _BYTES)
        self.sums.remove_before(self.chain.start)

    def forget(self) -> None:
        self.loaded_to, self.checked = 0, (0, 0)
        self.sums = GrowingSums(self._segment_bytes)
        self.chain.forget()
        self._tail.clear()
        self._stored = self._first = 0

    def continue_at(self, offset: int) -> None:
        self._tail.clear()
        self._first = self._stored
        self.min_offset = self.next_offset = offset

    def move_to(self, queue_offset: int) -> None:
        """Make ``queue_offset`` the next offset, because the log has a record with that number. See `ConsumeQueue`."""
        if queue_offset < self.next_offset:
            place = self.place_of(queue_offset)
            if place < self._stored:
                self.chain.cut_after(place * _BYTES)
                self.chain.zero_from(place * _BYTES, sync=True)
            self._end_before(place, queue_offset)
            return
        # Unlike in a plain queue nothing fills the gap: each entry names its first message.
        if self.is_empty:
            self.min_offset = queue_offset
        self.next_offset = queue_offset

    def end_at(self, offset: int) -> None:
        self._end_before(self.place_of(offset), offset)

    def _end_before(self, place: int, offset: int) -> None:
        if place >= self._stored:
            del self._tail[(place - self._stored) * _BYTES :]
        else:
            self._tail.clear()
            for segment in self.chain.leave_after(place * _BYTES):
                segment.close()
            self.chain.cut_ended()
            self.chain.map_last_anew()
            self._stored = place
            self.sums.drop_from(self.stored_bytes)
        self.next_offset = offset
        self.loaded_to, self.checked = min(self.loaded_to, offset), (0, 0)
        self.min_offset = min(self.min_offset, offset)
        self._first = min(self._first, place)

    # --- inside

    def place_of(self, offset: int) -> int:
        """The place of the first entry that ends after ``offset``; the end if there is none."""
        return first_from_end(self._first, self._end, lambda place: self.at(place).end > offset)

    def at(self, place: int) -> BatchAt:
        """The entry at ``place``."""
        return BatchAt._make(BATCH_ENTRY.unpack(self._raw(place, 1)))

    def _raw(self, place: int, most: int) -> bytes:
        """The bytes of up to ``most`` entries from ``place`` on; fewer at the end of a file."""
        if place >= self._stored:
            at = (place - self._stored) * _BYTES
            return bytes(self._tail[at : at + most * _BYTES])
        segment = self.chain.at(place * _BYTES)
        assert segment is not None
        file, at = segment.file, place * _BYTES - segment.base
        size = min(most, self._stored - place, (segment.size - at) // _BYTES) * _BYTES
        self._check(file, segment.base, at, size)
        return file.view[at : at + size]

    def _in_file(self, place: int) -> BatchAt:
        """An entry, read without mapping the file; zeros if the files do not go so far."""
        raw = self._read_file(place)
        return BatchAt._make(BATCH_ENTRY.unpack(raw)) if len(raw) == _BYTES else _ZEROS

    def _find_last(self) -> int:
        """The place after the last entry in the files."""
        low, high = self.chain.segments[-1].base // _BYTES, self.chain.end // _BYTES
        return first_where(low, high, lambda place: not self._in_file(place).is_entry)

    def _last_sound_place(self, first: int, end: int, is_sound: IsSound) -> int:
        while end > first:
            self._stored = end  # the entry that is judged is the last one
            last = self._in_file(end - 1)
            if last.is_entry and is_sound(last.base, last.physical, last.size):
                break
            end -= 1
        return end
