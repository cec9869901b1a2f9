"""Queue entries that do not name the queue's messages: they are found when they are used, and made again from the log.

An entry with a wrong physical offset or size would make a pull return another queue's messages. So a read compares the
first and the last entry of each run of adjacent messages with the records that they name. If both are right, the
entries between them are right, too: the log has all messages of the queue in order. Entries that this process made
lately are right, and are not compared. Where the log has no sums for its blocks, each message is compared, and its body
with the CRC.

A thread finds the right entries: it goes outwards from the wrong ones to the next right ones, and reads the log between
the two records that these name. The event loop then replaces the entries, unless they have changed meanwhile. A message
that the log does not have any more gets a blank entry, which readers skip. Where the log has bytes that are no sound
record, the search raises Damaged: the message may be mended. When its block was given up, the entry stays as it is, and
readers skip the message (`ConsumeQueue.skip`) until the block is mended.
Neighbours: store/reader.py (compares), log/compared.py (blocks and sums), log/residency.py (how a read waits for a
thread), rebuild.py (whole queues).
"""

import logging
import struct
import sys
from array import array
from collections.abc import Iterator, Sequence
from functools import partial
from mmap import mmap
from zlib import crc32

from skylark.broker.store.log.commitlog import CommitLog
from skylark.broker.store.log.log_files import LogFile
from skylark.broker.store.log.residency import Damaged, NotResident, Span, bytes_got
from skylark.broker.store.log.segment import Segment
from skylark.broker.store.log.valid_record import valid_record
from skylark.broker.store.queue.batch_queue import BatchAt, BatchConsumeQueue
from skylark.broker.store.queue.consumequeue import ConsumeQueue
from skylark.broker.store.queue.entry import BATCH_ENTRY, BLANK_SIZE, ENTRY, ENTRY_BYTES, NOT_COMPACTED, messages_in
from skylark.broker.store.queue.rebuild import is_queued
from skylark.broker.store.queue.tags import TagCodes
from skylark.broker.store.sums.block_sums import Block
from skylark.mqcommon.disk.files import FileSystem, MappedFile
from skylark.mqcommon.errors import FileClosed, ProtocolError, SkylarkError, StoreError
from skylark.mqcommon.message.columns import alike
from skylark.mqcommon.message.flags import HOSTS_V6
from skylark.mqcommon.message.layout import (
    BLANK_BYTES,
    BLANK_MAGIC,
    CRC_MASK,
    HEAD_V4,
    HEADS,
    MAGIC_V1,
    PROPERTIES_LENGTH,
    SIZE_MAGIC,
    TOPIC_LENGTH_V1,
    TOPIC_LENGTH_V2,
)
from skylark.mqcommon.message.light import in_each_queue, is_in
from skylark.mqcommon.message.record import Record, decode_record

logger = logging.getLogger(__name__)

_HEAD = HEAD_V4.reader("size", "magic", "queue_id", "queue_offset", "physical_offset", "body_length").unpack_from
_BODY = HEAD_V4.reader("size", "magic", "body_crc", "sys_flag", "body_length").unpack_from
_HEAD_BYTES = HEAD_V4.size
# The bytes of an entry of a batch queue that are compared: RocketMQ may use those after them.
_COMPARED = 38
_FIRST = struct.Struct(">q")
# From this many ranges on, all messages are compared in one pass.
_MANY = 6
# Ranges of this many messages each are long: comparing their ends costs less than comparing all messages.
_LONG = 20
_ALIKE = HEAD_V4.places("size", "magic", "queue_id", "body_length")
_PHYSICAL_AT, _OFFSET_AT = HEAD_V4.starts["physical_offset"], HEAD_V4.starts["queue_offset"]
# Entries that are read at once on the way to the next right one.
_READ = 512
_BLANK = ENTRY.pack(0, BLANK_SIZE, 0)


def names_message(queue: ConsumeQueue, offset: int, physical: int, size: int, data: bytes | mmap, at: int) -> bool:
    """Whether the bytes at ``at`` of ``data`` are message ``offset`` of ``queue``, or in a batch queue its batch.

    ``physical`` and ``size``: what the entry says.
    """
    if not 0 <= at <= len(data) - _HEAD_BYTES or size < _HEAD_BYTES:
        return False
    *head, body = _HEAD(data, at)
    if head == [size, queue.magic, queue.queue_id, offset, physical]:
        tail, end = queue.topic_tail, at + _HEAD_BYTES + body
        if data[end : end + len(tail)] == tail:
            return True
    # The record is of a light queue, has IPv6 hosts, or is another message.
    return _is_message(data[at : at + size], queue.topic, queue.queue_id, offset, physical) and head[0] == size


def are_own(queue: ConsumeQueue, offset: int, entries: bytes, ranges: Sequence[tuple[int, int]], data: bytes) -> bool:
    """Whether each range of the log begins and ends with the message of ``queue`` that its entry is for.

    ``entries``: the entries from ``offset`` on, of which some may not be wanted; ``data``: the bytes of the ranges.
    """
    if len(ranges) == 1:
        (start, end), count = ranges[0], len(entries) // ENTRY_BYTES
        first, last = ENTRY.unpack_from(entries), ENTRY.unpack_from(entries, (count - 1) * ENTRY_BYTES)
        if first[0] == start and last[0] + last[1] == end:
            return names_message(queue, offset, first[0], first[1], data, 0) and (
                count == 1 or names_message(queue, offset + count - 1, last[0], last[1], data, len(data) - last[1])
            )
    elif len(ranges) >= _MANY and _all_are_own(queue, offset, entries, ranges, data):
        return True
    # Within a range records follow one another without a gap, so the first and the last one vouch for those between:
    # a wrong entry in the middle would have torn the range apart.
    at, left = 0, iter(ranges)
    start, end = next(left)
    for number, (physical, size, _) in enumerate(ENTRY.iter_unpack(entries), offset):
        if physical == start and not names_message(queue, number, physical, size, data, at):
            return False
        if physical + size == end:
            if physical != start and not names_message(queue, number, physical, size, data, at + end - start - size):
                return False
            at += end - start
            start, end = next(left, (-1, -1))
            if start < 0:
                return True
    return False


def _all_are_own(
    queue: ConsumeQueue, offset: int, entries: bytes, ranges: Sequence[tuple[int, int]], data: bytes
) -> bool:
    """As `are_own`, for messages of one size. False says only that a closer look is needed.

    Where ranges are short, bytes at the same place in all messages are compared at once: in a loop over the messages
    each would cost 1 µs.
    """
    count = len(entries) // ENTRY_BYTES
    physical, size, _ = ENTRY.unpack_from(entries)
    if len(data) != count * size or not names_message(queue, offset, physical, size, data, 0):
        return False
    if count >= _LONG * len(ranges):
        at = 0
        for start, end in ranges:
            number, last = offset + at // size, at + end - start - size
            if not names_message(queue, number, start, size, data, at):
                return False
            if not names_message(queue, offset + last // size, end - size, size, data, last):
                return False
            at = last + size
        return True
    *_, body = _HEAD(data)
    topic = _HEAD_BYTES + body
    if alike(data, size, count, (*_ALIKE, *range(topic, topic + len(queue.topic_tail)))) < count:
        return False
    offsets = array("Q", range(offset, offset + count))
    if sys.byteorder == "little":
        offsets.byteswap()
    places = offsets.tobytes()
    return all(
        [
            data[_PHYSICAL_AT + byte :: size] == entries[byte::ENTRY_BYTES]
            and data[_OFFSET_AT + byte :: size] == places[byte::8]
            for byte in range(8)
        ]
    )


def are_sound(queue: ConsumeQueue, offset: int, entries: bytes, ranges: Sequence[tuple[int, int]], data: bytes) -> bool:
    """As `are_own`, for each message and not only the first and the last; and whether each is a sound record."""
    at, left = 0, iter(ranges)
    place, end = next(left)
    for number, (physical, size, _) in enumerate(ENTRY.iter_unpack(entries), offset):
        if physical != place or size == BLANK_SIZE:
            continue
        if not names_message(queue, number, physical, size, data, at) or not is_sound_record(data, at):
            return False
        at += size
        place += size
        if place == end:
            place, end = next(left, (-1, -1))
            if end < 0:
                return True
    return False


def is_sound_record(data: bytes | mmap, at: int) -> bool:
    """Whether the body of the record at ``at`` matches its CRC, and its properties end where the record does.

    Its sizes and its topic are right: `names_message` has compared them.
    """
    record_bytes, magic, crc, sys_flag, size = _BODY(data, at)
    start = at + _HEAD_BYTES
    if sys_flag & HOSTS_V6:
        head = HEADS[sys_flag & HOSTS_V6]
        (size,) = head.reader("body_length").unpack_from(data, at)
        start = at + head.size
    topic_at = start + size
    if crc32(data[start:topic_at]) & CRC_MASK != crc:
        return False
    length = TOPIC_LENGTH_V1 if magic == MAGIC_V1 else TOPIC_LENGTH_V2
    (topic_bytes,) = length.unpack_from(data, topic_at)
    properties_at = topic_at + length.size + topic_bytes
    (properties_bytes,) = PROPERTIES_LENGTH.unpack_from(data, properties_at)
    return bool(properties_at + PROPERTIES_LENGTH.size + properties_bytes == at + record_bytes)


def name_batches(queue: BatchConsumeQueue, batches: list[BatchAt], data: bytes, *, counted: bool) -> bool:
    """Whether the records in ``data``, one after another, are these batches of ``queue``.

    ``counted``: also compare the numbers of messages, which takes copies of the records.
    """
    at = 0
    for batch in batches:
        if not names_message(queue, batch.base, batch.physical, batch.size, data, at):
            return False
        if counted and messages_in(decode_record(data[at : at + batch.size], check_crc=False)) != batch.messages:
            return False
        at += batch.size
    return True


def whole_batches(log: CommitLog, queue: BatchConsumeQueue, batches: list[BatchAt], data: bytes) -> bytes:
    """``data``, the records of ``batches``, without those whose bodies are damaged; these go from ``batches``, too.

    Raises Damaged if they may be mended.
    """
    at, sound, parts = 0, [], []
    for batch in batches:
        may_be_wrong = log.blocks.may_be_wrong(batch.physical, batch.physical + batch.size)
        if is_sound_record(data, at) and not may_be_wrong:
            sound.append(batch)
            parts.append(data[at : at + batch.size])
        elif not log.blocks.is_given_up(batch.physical):
            raise Damaged([*log.sums.blocks(batch.physical, batch.physical + batch.size)], log.blocks.hold)
        elif batch.physical not in log.damaged_batches:
            log.damaged_batches.add(batch.physical)
            log.messages_skipped += batch.messages
            segment = log.chain.at(batch.physical)
            logger.error(
                "%d messages of queue %s/%d, from offset %d on, are in a batch that is damaged, at %s, byte %d: "
                "readers skip them. To examine the store, stop the broker and run: broker verifyStore",
                batch.messages,
                queue.topic,
                queue.queue_id,
                batch.base,
                "" if segment is None else segment.path,
                0 if segment is None else batch.physical - segment.base,
            )
        at += batch.size
    if len(sound) < len(batches):
        batches[:] = sound
        return b"".join(parts)
    return data


def is_place_of(log: CommitLog, queue: BatchConsumeQueue, place: int, offset: int) -> bool:
    """Whether the entry at ``place``, found by bisection, is of the batch with message ``offset``, or of the next one.

    Entries that are not near may have misled it. But if this entry and the one before it are right, then it is right.
    """
    before, after = place - 1, place
    if before >= queue.first_place:
        entry = queue.at(before)
        if entry.end > offset or not _is_batch(log, queue, entry, counted=after < queue.stored_end):
            return False
    if after < queue.stored_end:
        entry = queue.at(after)
        return entry.end > offset and _is_batch(log, queue, entry, counted=False)
    return True


def _is_batch(log: CommitLog, queue: BatchConsumeQueue, entry: BatchAt, *, counted: bool) -> bool:
    """``counted``: also compare the number of messages, which takes a copy of the record."""
    if not entry.is_entry or not log.start <= entry.physical < entry.physical + entry.size <= log.end:
        # An entry before the start of the log names a batch that was removed.
        return entry.is_entry and entry.physical < log.start and log.was_cleaned
    data = log.read(entry.physical, entry.size)
    if not names_message(queue, entry.base, entry.physical, entry.size, data, 0):
        return False
    return not counted or name_batches(queue, [entry], data, counted=True)


def _is_message(raw: bytes, topic: str, queue_id: int, offset: int, physical: int) -> bool:
    try:
        record = decode_record(raw, check_crc=False)
    except ProtocolError:
        return False
    return record.size == len(raw) and record.physical_offset == physical and is_in(record, topic, queue_id, offset)


class EntriesDamaged(SkylarkError):
    """Some of the entries from ``place`` to ``end`` of ``queue`` do not name its messages, or these are damaged."""

    def __init__(
        self, log: CommitLog, queue: ConsumeQueue, place: int, end: int, *, bodies: bool = False, whole: bool = False
    ) -> None:
        """``bodies``: a message with a damaged body counts as gone. ``whole``: as in `_Search`."""
        self.queue = queue
        self._log = log
        # Entries that are in memory only are right, but the message of one may be damaged.
        self._place, self._end = place, min(end, queue.stored_end if queue.is_batch else queue.next_offset)
        segment = queue.chain.at(place * queue.entry_bytes) if place < queue.stored_end else log.chain.at(log.start)
        if segment is None or place >= self._end:
            raise StoreError(f"entry {place} of queue {queue.topic}/{queue.queue_id} names another message")
        super().__init__(f"entries of queue {queue.topic}/{queue.queue_id} from place {place} on")
        # The name under which `mend` gets what the thread has found.
        self._span = Span(segment.file, place * queue.entry_bytes - segment.base, queue.entry_bytes)
        self._search = _Search(log, queue, self._place, self._end, bodies=bodies, whole=whole)

    def mend(self) -> bool:
        """Replace the wrong entries by what a thread found for this read of the queue; whether something was replaced.

        For the event loop. NotResident when a thread has to look for them first.
        """
        # Outside of the event loop the search may run here. In the event loop a thread runs it, like a read from disk,
        # and `mend` is called again with the result. Entries that have changed meanwhile are not replaced.
        got = bytes_got()
        found = self._search.run() if got is None else got.get(self._span)
        if found is None:
            raise NotResident([self._span], find=self._search.run)
        return self.replace(found)

    @property
    def unresolved(self) -> int:
        """How many entries, of those to be compared whole, `search` has found wrong, and no record for them."""
        return self._search.unresolved

    def search(self) -> bytes:
        """What `replace` needs. Blocks; for a thread."""
        return self._search.run()

    def replace(self, found: bytes) -> bool:
        """Replace the wrong entries by what `search` has found; whether something was replaced. For the event loop."""
        (first,) = _FIRST.unpack_from(found)
        size = self.queue.entry_bytes
        count = (len(found) - _FIRST.size) // (2 * size + _FIRST.size)
        middle, end = _FIRST.size + count * size, _FIRST.size + 2 * count * size
        seen, right = found[_FIRST.size : middle], found[middle:end]
        # Replaced only where the bytes are still those that the thread has seen.
        places = self.queue.replace_entries(first, seen, right)
        skipped: list[int] = []
        blocks = self._log.blocks
        for place, (block,) in enumerate(_FIRST.iter_unpack(found[end:]), first):
            if block >= 0 and self.queue.skip(place, partial(blocks.is_given_up, block)):
                skipped.append(place)
        if places or skipped:
            self._report_repair(places, skipped, first, seen, right)
        return bool(places or skipped)

    def _report_repair(self, places: list[int], skipped: list[int], first: int, seen: bytes, right: bytes) -> None:
        # A blank in place of an entry means that the log has no such message: it is lost, which is an ERROR, as is a
        # message that is skipped. The other messages were found again.
        queue, size = self.queue, self.queue.entry_bytes
        name = f"{queue.topic}/{queue.queue_id}"
        blank = [place for place in places if not queue.is_batch and right.startswith(_BLANK, (place - first) * size)]
        lost = sorted([*blank, *skipped])
        self._log.messages_skipped += len(lost)
        self._log.entries_mended += len(places) - len(blank)
        if len(blank) < len(places):
            segment = queue.chain.at(places[0] * size)
            base = 0 if segment is None else segment.base
            logger.warning(
                "%s is damaged from byte %d to %d: %d entries of queue %s did not name its messages, and were made "
                "again from the commit log",
                queue.directory if segment is None else segment.path,
                places[0] * size - base,
                (places[-1] + 1) * size - base,
                len(places) - len(blank),
                name,
            )
        if lost:
            (physical,) = _FIRST.unpack_from(seen, (lost[0] - first) * size)
            segment = self._log.chain.at(physical)
            where = "the commit log" if segment is None else f"{segment.path}, byte {physical - segment.base}"
            logger.error(
                "%d messages of queue %s, from offset %d to %d, are damaged or gone, the first one at %s: readers skip "
                "them%s. To examine the store, stop the broker and run: broker verifyStore",
                len(lost),
                name,
                lost[0],
                lost[-1],
                where,
                ", until they are mended" if skipped else "",
            )


def mend_block(log: CommitLog, queue: ConsumeQueue, number: int) -> None:
    """Mend block ``number`` of the queue's files, which does not fit its sum; see `EntriesDamaged.mend`."""
    places = places_of(queue, queue.sums.block(number))
    if places and EntriesDamaged(log, queue, places.start, places.stop, whole=True).mend():
        queue.sums.look_again(number)
        return
    # The entries are what the log says, as far as it goes. So the sum is stale, or of entries that are not used.
    queue.sums.forget(number)


def places_of(queue: ConsumeQueue, block: Block) -> range:
    """The places of the entries that have bytes in ``block``, as far as the queue has them in files."""
    size = queue.entry_bytes
    return range(max(block.start // size, queue.first_place), min(-(-block.end // size), queue.stored_end))


class _Search:
    """Finds the right entries, in a thread, from copies of what the event loop may change."""

    def __init__(
        self, log: CommitLog, queue: ConsumeQueue, place: int, end: int, *, bodies: bool = False, whole: bool = False
    ) -> None:
        """``whole``: compare all bytes of the entries, and leave entries as they are whose messages the log lacks."""
        self._bodies = bodies
        self._whole = whole
        self.unresolved = 0
        self._fs: FileSystem = queue.chain.fs
        self._queue = queue
        self._codes = TagCodes(queue.levels)
        self._place, self._end = place, end
        # From `_stored` on the entries are in `_tail`.
        self._low, self._stored = queue.first_place, queue.stored_end
        self._tail = queue.tail() if end > self._stored else b""
        self._high = self._stored + len(self._tail) // queue.entry_bytes
        self._files = queue.chain.segments[:]
        log_end = log.end if self._tail else queue.tail_start(log.end)
        self._log = _LogPart(self._fs, log.chain.segments[:], log.start, log_end, log)

    def run(self) -> bytes:
        """The first place as 8 bytes, the entries as they are, and as they should be.

        Then for each place 8 bytes: where the block starts whose damage hides its message, or -1. Raises Damaged.
        """
        try:
            first, last = self._wrong()
            if first == last:
                return _FIRST.pack(first)
            seen = b"".join(self._raw(place, last) for place in self._starts(first, last))
            right = self._right(first, last, seen)
            return _FIRST.pack(first) + seen + self._without_hidden(seen, right)
        except (FileNotFoundError, FileClosed):
            return _FIRST.pack(self._place)  # a file was removed meanwhile: the repeated read sees that
        finally:
            self._log.close()

    def _wrong(self) -> tuple[int, int]:
        """The places from the first wrong entry to the one after the last wrong entry."""
        # From the entries that were looked at outwards, to the next right ones on both sides: between two right entries
        # the log has all messages of the queue, in order.
        wrong = [place for place, raw in self._each(self._place, self._end) if not self._is_right(place, raw)]
        if not wrong:
            return self._place, self._place
        first, last = wrong[0], wrong[-1] + 1
        while first > self._low and not self._is_right(first - 1, raw := self._raw(first - 1, first)):
            if 0 <= ENTRY.unpack_from(raw)[0] < self._log.start:
                break  # most likely its message was removed, and the cleaner has not got to this queue yet
            first -= 1
        for place, raw in self._each(last, self._high):
            if self._is_right(place, raw):
                break
            last = place + 1
        return first, last

    def _right(self, first: int, last: int, seen: bytes) -> bytes:
        """What the log says about these places. A hole in the queue stays one."""
        queue, size = self._queue, self._queue.entry_bytes
        # The part of the log between the records that the right entries on both sides name, or its start or end.
        start = self._log.start
        if first > self._low:
            physical, bytes_ = ENTRY.unpack_from(self._raw(first - 1, first))[:2]
            start = self._log.start if bytes_ == BLANK_SIZE else physical + bytes_
        end = self._log.end
        for _, raw in self._each(last, self._high):
            physical, bytes_ = ENTRY.unpack_from(raw)[:2]
            if bytes_ != BLANK_SIZE:
                end = physical
                break
        found: list[Record] = []

        def collect(record: Record) -> None:
            if (record.topic, record.queue_id) == (queue.topic, queue.queue_id) and is_queued(record.sys_flag):
                found.append(record)

        # A record of light queues is in several queues, and this queue may be any of them.
        for record in self._log.records(start, end):
            in_each_queue(collect)(record)
        # Entries of a batch queue have no place by offset: they can be made again only if the log has as many.
        if isinstance(queue, BatchConsumeQueue):
            if len(found) != last - first:
                raise StoreError(
                    f"{queue.directory}: {last - first} entries from entry {first} on are damaged, and the commit log "
                    f"has {len(found)} records for them. Stop the broker and run: broker verifyStore"
                )
            return b"".join([self._batch_entry(record) for record in found])
        right = bytearray(seen if self._whole else _BLANK * (last - first))
        for record in found:
            is_whole = not self._bodies or crc32(record.body) & CRC_MASK == record.body_crc
            if not is_whole or self._log.may_be_wrong(record.physical_offset, record.size):
                is_whole = False
                self._log.note_damage(record)
            if first <= record.queue_offset < last and is_whole:
                at = (record.queue_offset - first) * size
                right[at : at + size] = ENTRY.pack(record.physical_offset, record.size, self._codes.of_record(record))
        if self._whole:
            places = range(len(right) // size)
            self.unresolved = sum(
                not self._is_right(first + n, bytes(right[n * size : (n + 1) * size])) for n in places
            )
        return bytes(right)

    def _without_hidden(self, seen: bytes, right: bytes) -> bytes:
        """``right``, with ``seen`` in place of blanks for messages that damage of the log hides; and the blocks."""
        size, damaged = self._queue.entry_bytes, self._log.damaged
        count = len(seen) // size
        if self._queue.is_batch or not damaged:
            return right + _FIRST.pack(-1) * count
        self._log.refuse_damaged()
        kept, blocks = bytearray(right), bytearray()
        for at in range(0, len(seen), size):
            block = -1
            if right.startswith(_BLANK, at) and not seen.startswith(_BLANK, at):
                # The entry may be wrong, too: then any damaged block may hide its message.
                named = self._log.block_start(_FIRST.unpack_from(seen, at)[0])
                block = named if named in damaged else min(damaged)
                kept[at : at + size] = seen[at : at + size]
            blocks += _FIRST.pack(block)
        return bytes(kept) + bytes(blocks)

    def _batch_entry(self, record: Record) -> bytes:
        code, messages = self._codes.of_record(record), messages_in(record)
        return BATCH_ENTRY.pack(
            record.physical_offset,
            record.size,
            code,
            record.store_timestamp,
            record.queue_offset,
            messages,
            NOT_COMPACTED,
            0,
        )

    def _is_right(self, place: int, raw: bytes) -> bool:
        queue = self._queue
        physical, size, _ = ENTRY.unpack_from(raw)
        if queue.is_batch:
            batch = BatchAt._make(BATCH_ENTRY.unpack(raw))
            record = self._log.record(physical, size) if batch.is_entry else None
            if record is None or not self._is_own(record, batch.base):
                return False
            return self._batch_entry(record)[:_COMPARED] == raw[:_COMPARED]
        if size == BLANK_SIZE:
            return not self._whole or raw == _BLANK
        record = self._log.record(physical, size, check_crc=self._bodies)
        if record is None or not self._is_own(record, place) or self._log.may_be_wrong(physical, size):
            return False
        return not self._whole or self._codes.of_record(record) == ENTRY.unpack(raw)[2]

    def _is_own(self, record: Record, offset: int) -> bool:
        return is_in(record, self._queue.topic, self._queue.queue_id, offset)

    def _starts(self, first: int, last: int) -> Iterator[int]:
        """The places from ``first`` to ``last`` at which `_raw` goes on."""
        per_file = self._queue.chain.segment_bytes // self._queue.entry_bytes
        while first < last:
            yield first
            end = (first // per_file + 1) * per_file if first < self._stored else last
            first = min(end, self._stored if first < self._stored else last, first + _READ, last)

    def _each(self, first: int, last: int) -> Iterator[tuple[int, bytes]]:
        size = self._queue.entry_bytes
        for start in self._starts(first, last):
            raw = self._raw(start, last)
            for at in range(0, len(raw), size):
                yield start + at // size, raw[at : at + size]

    def _raw(self, place: int, end: int) -> bytes:
        """The bytes of entries from ``place`` on, at most `_READ`, up to ``end``, the end of the file, or the tail."""
        size = self._queue.entry_bytes
        if place >= self._stored:
            return self._tail[(place - self._stored) * size : (min(place + _READ, end) - self._stored) * size]
        position = place * size
        segment = self._files[(position - self._files[0].base) // self._files[0].size]
        count = min(end - place, self._stored - place, _READ, (segment.end - position) // size)
        return self._fs.read_part(segment.path, position - segment.base, count * size)


class _LogPart:
    """The log from ``start`` to ``end``, in files that a thread maps for itself. Its reads raise Damaged."""

    def __init__(self, fs: FileSystem, segments: list[Segment], start: int, end: int, log: CommitLog) -> None:
        self._fs = fs
        self._segments = segments
        self._open: dict[int, LogFile] = {}
        self._maps: dict[int, MappedFile] = {}
        self._blocks, self._sums = log.blocks, log.sums
        # Where the blocks start that were compared.
        self._compared: set[int] = set()
        #: The blocks in which bytes are no sound records, by where they start.
        self.damaged: dict[int, Block] = {}
        self.start = start
        self.end = end

    def block_start(self, offset: int) -> int:
        """Where the block of ``offset`` starts."""
        return self._sums.block_at(offset).start

    def refuse_damaged(self) -> None:
        """Raise Damaged for the blocks with unsound records, unless they are given up."""
        if wrong := [block for block in self.damaged.values() if not self._blocks.is_given_up(block.start)]:
            raise Damaged(wrong, self._blocks.hold)

    def _compare(self, file: LogFile, start: int, end: int) -> None:
        """Compare the blocks that hold these bytes, once: then they can be read in the map."""
        for block in self._sums.blocks(start, min(end, file.end)):
            if block.start not in self._compared:
                self._blocks.compare(self._maps[file.base], file.base, block)
                self._compared.add(block.start)

    def may_be_wrong(self, physical: int, size: int) -> bool:
        """Whether the record at ``physical`` may be wrong although it looks sound."""
        return self._blocks.may_be_wrong(physical, physical + size)

    def note_damage(self, record: Record) -> None:
        """Note that ``record`` is damaged, or may be."""
        self._note_damage(record.physical_offset, record.physical_offset + record.size)

    def _note_damage(self, start: int, end: int) -> None:
        self.damaged.update({block.start: block for block in self._sums.blocks(start, end)})

    def _file(self, offset: int) -> LogFile | None:
        if not self.start <= offset < self.end:
            return None
        segment = self._segments[(offset - self._segments[0].base) // self._segments[0].size]
        file = self._open.get(segment.base)
        if file is None:
            map_ = self._maps[segment.base] = self._fs.open_map(segment.path, segment.size, create=False)
            file = self._open[segment.base] = LogFile(segment.path, segment.base, map_)
        return file

    def record(self, physical: int, size: int, *, check_crc: bool = False) -> Record | None:
        """The record at ``physical`` if it has ``size`` bytes."""
        file = self._file(physical)
        if file is None or not 0 < size <= file.end - physical:
            return None
        at = physical - file.base
        self._compare(file, physical, physical + size)
        record, _ = valid_record(file.view[at : at + size], physical, check_crc=check_crc)
        return record if record is not None and record.size == size else None

    def records(self, start: int, end: int) -> Iterator[Record]:
        """All records from ``start``, where a record begins, to ``end``. Bytes that are no record are skipped."""
        at = start
        while (file := self._file(at)) is not None and at < end:
            if at + BLANK_BYTES > file.end:
                at = file.end
                continue
            self._compare(file, at, at + BLANK_BYTES)
            size, magic = SIZE_MAGIC.unpack_from(file.view, at - file.base)
            if magic == BLANK_MAGIC:
                at = file.end
                continue
            record = self.record(at, size)
            if record is None:
                after = file.next_sound(at + 1, min(end, file.end)) or file.end
                self._note_damage(at, min(after, end))
                at = after
                continue
            yield record
            at += size

    def close(self) -> None:
        for file in self._open.values():
            file.map.close()
        self._open.clear()
