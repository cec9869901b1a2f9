"""Reads of one queue: tag filter by hash, limits, RocketMQ's statuses.

Messages that are adjacent in the commit log are copied in one piece. Blank entries, which point to no message, are
skipped. A batch queue is read batch by batch; readers that cannot take batches apart get records of the messages.
Messages before the log's start are read from the bucket, if there is one.

For a read of thousands of messages, as bulk readers request, a loop over the entries would cost more than copying the
messages. So `long_runs` finds adjacent messages without a loop over the entries in Python. Its work for each entry is
done in C: by comparing columns of bytes where all messages have one size, as a producer's messages mostly do, else by
array and accumulate. `matching` finds the messages that a function of their properties accepts. It reads only the
lengths in a record's head, and the properties in place.
"""

import sys
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from itertools import accumulate
from mmap import mmap
from struct import Struct
from typing import Protocol

from skylark.broker.store.expanded import expanded
from skylark.broker.store.filter import ALL, Filter, Matches
from skylark.broker.store.log.commitlog import CommitLog
from skylark.broker.store.log.residency import NotResident, Span, ask, bytes_got
from skylark.broker.store.queue.batch_queue import BatchAt, BatchConsumeQueue
from skylark.broker.store.queue.bounds_search import first_where
from skylark.broker.store.queue.consumequeue import ConsumeQueue
from skylark.broker.store.queue.entry import BLANK_SIZE, ENTRY, ENTRY_BYTES, MIXED_TAGS
from skylark.broker.store.queue.entry_repair import (
    EntriesDamaged,
    are_own,
    are_sound,
    is_place_of,
    is_sound_record,
    name_batches,
    names_message,
    whole_batches,
)
from skylark.broker.store.visible import VisiblePart, visible_end
from skylark.mqcommon.errors import StoreError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.message.columns import alike
from skylark.mqcommon.message.flags import HOSTS_V6
from skylark.mqcommon.message.layout import HEAD_V4, HEADS
from skylark.mqcommon.message.record import topic_field

# The most entries that one read looks at to find matches.
MAX_SCAN = 16_000
# Reads of at least this many messages search for long runs first.
MANY = 256
# The most pieces of the log that one read joins: some milliseconds.
MAX_RANGES = 2_048
# Messages less than this apart are read from disk in one go, with the bytes between them: a disk reads this much in the
# time of a seek.
GAP_BYTES = 32 * 1024
# The most bytes that one pull reads from disk, with those between its messages. It returns the messages in them.
COLD_BYTES = 8 * 1024 * 1024
# The same for a filter by properties, which may want none of them.
COLD_MATCHING_BYTES = 2 * 1024 * 1024
# From this size on, bytes that were not written lately are copied in a thread, even if they are in memory: copying them
# here would block the event loop.
THREAD_BYTES = 128 * 1024

# A queue, or as much of it as consumers see.
Part = ConsumeQueue | VisiblePart

# Entries are five numbers of 32 bits: two for the physical offset, the size, and two for the tags code.
_WORDS = 5
_TYPE = "I" if array("I").itemsize == 4 else "L"
# This many entries are read at a time, until they are enough.
_AT_ONCE = 1_024
_MOST_AT_ONCE = 16_000
# Where an entry has its size; the last byte differs most often.
_SIZE_PLACES = (11, 10, 9, 8)
_size = Struct(">8xi").unpack_from
_physical = Struct(">q").unpack_from
# With runs that are shorter on average a loop over the entries is faster.
_LONG = 8
_FIRST_RUNS = 8
# Physical offsets: of the first byte, and one past the last.
Range = tuple[int, int]


# The properties of messages that one read looks at; it ends after the message that goes beyond.
MAX_PROPERTIES_BYTES = 512 * 1024
_LENGTHS_V4 = HEAD_V4.reader("sys_flag", "body_length").unpack_from
_LENGTHS = {bits: (head.reader("body_length").unpack_from, head.size) for bits, head in HEADS.items()}
_HEAD_BYTES_V4 = HEAD_V4.size
_LENGTH_BYTES = 2
#: An entry of a queue: physical offset, size, tag code.
Entry = tuple[int, int, int]


class GetStatus(Enum):
    """RocketMQ's GetMessageStatus."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"


@lazy_dataclass(slots=True)
class GetResult:
    """``records``: whole stored messages, one after another; ``next_offset``: where the next read begins."""

    status: GetStatus
    next_offset: int
    min_offset: int
    max_offset: int
    records: bytes = b""
    count: int = 0


def read_queue(
    log: CommitLog,
    queue: ConsumeQueue | None,
    offset: int,
    max_count: int,
    max_bytes: int,
    wanted: Filter = ALL,
    confirmed: Callable[[], int] | None = None,
    *,
    unwraps: bool = False,
    past_seal: bool = False,
) -> GetResult:
    """Messages of ``queue`` from ``offset`` on: at most ``max_count`` and ``max_bytes``, but always at least one.

    None stands for a queue that never had a message; it reads as an empty queue. With ``confirmed``, messages that end
    after this offset of the log are hidden, as if they had not come yet; a reader at a hidden message waits.
    The messages of a sealed queue (`ConsumeQueue.sealed_at`) end at the seal, unless the reader goes ``past_seal``.
    ``unwraps``: the reader takes inner batches apart. It may get more than ``max_count`` messages in one.
    """
    if queue is None:
        return GetResult(GetStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0)
    # A client may ask for 0 or fewer. RocketMQ gives it one message, too.
    if max_count < 1:
        max_count = 1
    part: Part = queue
    end = queue.next_offset if confirmed is None else visible_end(log, queue, confirmed())
    if queue.sealed_at is not None and not past_seal:
        end = min(end, queue.sealed_at)
    if end < queue.next_offset:
        if end <= offset <= queue.next_offset:
            return GetResult(GetStatus.OFFSET_OVERFLOW_ONE, offset, queue.min_offset, end)
        part = VisiblePart(queue, end)
    low, high = part.min_offset, part.next_offset
    if high == 0:
        return GetResult(GetStatus.NO_MESSAGE_IN_QUEUE, low, low, high)
    if offset < low:
        return _read_older(log, queue, offset, high, max_count, max_bytes, wanted, unwraps)
    if offset == high:
        return GetResult(GetStatus.OFFSET_OVERFLOW_ONE, offset, low, high)
    if offset > high:
        return GetResult(GetStatus.OFFSET_OVERFLOW_BADLY, high, low, high)
    # A wrong entry is found only by comparing the record that it names with the queue. Then the entry is replaced, and
    # the whole read is repeated: no result of a read with a wrong entry may reach the reader, since even its length
    # would be wrong. A wrong entry that cannot be replaced is an error, so this does not loop.
    is_mended = True
    while True:
        try:
            if isinstance(queue, BatchConsumeQueue):
                return _read_batches(log, queue, part, offset, max_count, max_bytes, wanted, unwraps)
            if wanted.matches is not None:
                return _read_matching(log, queue, part, offset, max_count, max_bytes, wanted, wanted.matches)
            return _read_plain(log, queue, part, offset, max_count, max_bytes, wanted)
        except _Removed:
            # The message's log file was removed before the cleaner has come to this queue.
            part.min_offset = queue.bounds_search().run(log.start)
            return _read_older(log, queue, offset, high, max_count, max_bytes, wanted, unwraps)
        except EntriesDamaged as error:
            # The traceback would keep this frame, and so the request and its connection, in a cycle.
            damaged = error.with_traceback(None)
        if not is_mended:
            raise StoreError(
                f"entries of queue {queue.topic}/{queue.queue_id} from offset {offset} on name other messages, and "
                "cannot be made again from the commit log. Stop the broker and run: broker verifyStore"
            )
        is_mended = damaged.mend()


class _Removed(Exception):
    """The log file of the message was removed."""


def _read_older(
    log: CommitLog,
    queue: ConsumeQueue,
    offset: int,
    high: int,
    max_count: int,
    max_bytes: int,
    wanted: Filter,
    unwraps: bool,
) -> GetResult:
    """As `read_queue`, for an offset before the queue's start; ``high``: the end of what the reader sees."""
    low = queue.min_offset
    if log.older is None or offset >= low:
        return GetResult(GetStatus.OFFSET_TOO_SMALL, low, low, high)
    if offset < 0:
        first = first_offset(log, queue)
        return GetResult(GetStatus.OFFSET_TOO_SMALL, first, first, high)
    found = ask(
        log.older.read, queue.topic, queue.queue_id, offset, min(low, high), max_count, max_bytes, wanted, unwraps
    )
    status = GetStatus.FOUND if found.messages else GetStatus.NO_MATCHED_MESSAGE
    if found.is_gone:
        status = GetStatus.OFFSET_TOO_SMALL
    first = shown_first_offset(log, queue)
    return GetResult(status, found.next_offset, first, high, found.records, found.messages)


def first_offset(log: CommitLog, queue: ConsumeQueue) -> int:
    """The offset of the oldest message of ``queue`` in the store or in the bucket. InBucket as in `ask`."""
    low, older = queue.min_offset, log.older
    if older is None or not low:
        return low
    first = older.known_first(queue.topic, queue.queue_id)
    return min(low, ask(older.first_offset, queue.topic, queue.queue_id, low) if first is None else first)


def shown_first_offset(log: CommitLog, queue: ConsumeQueue) -> int:
    """As `first_offset`, for figures: the queue's start in the store as long as the bucket's is not known."""
    low, older = queue.min_offset, log.older
    first = None if older is None or not low else older.known_first(queue.topic, queue.queue_id)
    return low if first is None else min(low, first)


def _read_plain(
    log: CommitLog, queue: ConsumeQueue, part: Part, offset: int, max_count: int, max_bytes: int, wanted: Filter
) -> GetResult:
    low, high = part.min_offset, part.next_offset
    ranges, count, scanned, size, entries = _choose(log, part, offset, max_count, max_bytes, wanted)
    if not scanned:
        return GetResult(GetStatus.OFFSET_FOUND_NULL, _next_file(part, offset), low, high)
    if not count:
        return GetResult(GetStatus.NO_MATCHED_MESSAGE, offset + scanned, low, high)
    # Entries that this process made lately are not compared: the log's bytes and the entries are the same process's
    # work, and in memory. All others came from a disk, which may return other bytes than were written.
    is_trusted = _is_trusted(log, queue, offset, ranges[0][0])
    if ranges[0][0] < log.start and (is_trusted or _is_removed(log, queue)):
        raise _Removed
    if not is_trusted and not _are_in_log(log, ranges):
        raise EntriesDamaged(log, queue, offset, offset + scanned)
    got = bytes_got()
    records = b""
    if got is None or is_trusted:
        records = _copied(log, ranges, as_written=is_trusted)
    elif size >= THREAD_BYTES or not (records := _at_hand(log, ranges)):
        # A thread reads bytes that may be on disk in few large pieces. If the pieces do not contain all messages, the
        # read returns fewer messages: they are chosen again, with the bytes of the pieces as the limit.
        pieces, near = _pieces(ranges, log.chain.segment_bytes)
        if near < size:
            ranges, count, scanned, size, entries = _choose(log, part, offset, max_count, near, wanted)
        records = _records(log, ranges, pieces, size, got)
    if not is_trusted:
        end, entries = offset + scanned, entries[: scanned * ENTRY_BYTES]
        # Where the bytes were compared with the sums of their blocks, only the ends of each run are compared with the
        # queue. Elsewhere each message is, and its body with the CRC, unless an earlier reader did that.
        is_checked = _is_checked(log, queue, offset, end, ranges)
        is_suspect = bool(log.blocks.given_up) and any(log.blocks.may_be_wrong(*each) for each in ranges)
        if is_suspect or not (are_own if is_checked else are_sound)(queue, offset, entries, ranges, records):
            raise EntriesDamaged(log, queue, offset, end, bodies=True)
        if not is_checked:
            queue.note_checked(offset, end)
    return GetResult(GetStatus.FOUND, offset + scanned, low, high, records, count)


def _is_trusted(log: CommitLog, queue: ConsumeQueue, offset: int, physical: int) -> bool:
    """Whether this process made the entry at ``offset``, whose message is at ``physical``, lately. It is right then."""
    # A slave may have copied a damaged record that was given up.
    return offset >= queue.loaded_to and log.is_recent(physical) and not log.blocks.given_up


def _is_checked(log: CommitLog, queue: ConsumeQueue, offset: int, end: int, ranges: list[Range]) -> bool:
    """Whether these messages, which lie in ``ranges``, need not be compared whole: their blocks have sums.

    Or nobody can mend damage; then the bytes are compared once if an earlier process stored them.
    """
    if log.blocks.hold is not None:
        return all(log.blocks.are_vouched_for(start, end) for start, end in ranges)
    return offset >= queue.loaded_to or (queue.checked[0] <= offset and end <= queue.checked[1])


def _are_in_log(log: CommitLog, ranges: list[Range]) -> bool:
    """Whether the log has bytes there, each range is in one file, and they are in the order of the log."""
    first, last, segment_bytes = log.start, log.end, log.chain.segment_bytes
    for start, end in ranges:
        if not first <= start < end <= last or start // segment_bytes != (end - 1) // segment_bytes:
            return False
        first = end
    return True


def _is_removed(log: CommitLog, queue: ConsumeQueue) -> bool:
    """Whether an entry that points before the log names a message that was removed. Else the entry is damaged.

    The queue's first entry points into the log, unless the cleaner has not got to this queue yet.
    """
    return log.was_cleaned and queue.entry(queue.min_offset)[0] < log.start


def _read_matching(
    log: CommitLog,
    queue: ConsumeQueue,
    part: Part,
    offset: int,
    max_count: int,
    max_bytes: int,
    wanted: Filter,
    matches: Matches,
) -> GetResult:
    """As `read_queue`, for a filter by properties: messages are tested in place, and only matches are copied.

    It tests messages in one file of the log, and stops earlier if they are only on disk or have long properties.
    """
    low, high = part.min_offset, part.next_offset
    entries = list(part.entries(offset, wanted.max_messages))
    if not entries:
        return GetResult(GetStatus.OFFSET_FOUND_NULL, _next_file(part, offset), low, high)
    first = next((physical for physical, size, _ in entries if size != BLANK_SIZE), None)
    if first is None:
        return GetResult(GetStatus.NO_MATCHED_MESSAGE, offset + len(entries), low, high)
    is_trusted = _is_trusted(log, queue, offset, first)
    if first < log.start and (is_trusted or _is_removed(log, queue)):
        raise _Removed
    got = bytes_got()
    is_near = got is None or is_trusted
    entries, end = _together(entries, first, log.chain.segment_bytes, None if is_near else COLD_MATCHING_BYTES)
    stop = offset + len(entries)
    if not is_trusted and not _are_in_log(log, [(at, at + size) for at, size, _ in entries if size != BLANK_SIZE]):
        raise EntriesDamaged(log, queue, offset, stop)
    data: mmap | bytes
    if is_trusted:
        file, at, _ = log.span(first, end)
        data, base = file.view, first - at
    else:
        # In the event loop NotResident, until a thread has read and compared them.
        data, base = log.read(first, end - first), first
    if not is_trusted and not all(
        names_message(queue, number, physical, size, data, physical - base)
        and is_sound_record(data, physical - base)
        and not log.blocks.may_be_wrong(physical, physical + size)
        for number, (physical, size, _) in enumerate(entries, offset)
        if size != BLANK_SIZE
    ):
        raise EntriesDamaged(log, queue, offset, stop, bodies=True)
    found = matching(data, base, entries, queue.topic, matches, MAX_PROPERTIES_BYTES)
    parts: list[bytes] = []
    scanned, left = len(found), max_bytes
    for number, entry in enumerate(found):
        if entry is None:
            continue
        physical, size, _ = entry
        if len(parts) == max_count or (left < size and parts):
            scanned = number
            break
        parts.append(data[physical - base : physical - base + size])
        left -= size
    status = GetStatus.FOUND if parts else GetStatus.NO_MATCHED_MESSAGE
    return GetResult(status, offset + scanned, low, high, b"".join(parts), len(parts))


def _read_batches(
    log: CommitLog,
    queue: BatchConsumeQueue,
    part: Part,
    offset: int,
    max_count: int,
    max_bytes: int,
    wanted: Filter,
    unwraps: bool,
) -> GetResult:
    """As `read_queue`. The part of a batch from ``offset`` on is expanded for all readers."""
    low, high = part.min_offset, part.next_offset
    # Places are found by bisection over the entries, so a damaged entry may lead to a wrong place. Entries of this
    # process are right, and need no look.
    if offset < queue.loaded_to:
        place = queue.place_of(offset)
        if not is_place_of(log, queue, place, offset):
            raise EntriesDamaged(log, queue, max(place - 1, queue.first_place), place + 1)
    batches, reached = _choose_batches(log, queue, high, offset, max_count, max_bytes, wanted)
    if not batches:
        return GetResult(GetStatus.NO_MATCHED_MESSAGE, reached, low, high)
    is_trusted = _is_trusted(log, queue, offset, batches[0].physical)
    if batches[0].physical < log.start and (is_trusted or _is_removed(log, queue)):
        raise _Removed
    got, (ranges, size) = bytes_got(), _ranges(batches, log.chain.segment_bytes)
    if not is_trusted and not _are_in_log(log, ranges):
        raise EntriesDamaged(log, queue, queue.place_of(offset), queue.stored_end)
    data = b""
    if got is None or is_trusted:
        data = _copied(log, ranges, as_written=is_trusted)
    elif size >= THREAD_BYTES or not (data := _at_hand(log, ranges)):
        pieces, near = _pieces(ranges, log.chain.segment_bytes)
        if near < size:
            batches, reached = _choose_batches(log, queue, high, offset, max_count, near, wanted)
            ranges, size = _ranges(batches, log.chain.segment_bytes)
        data = _records(log, ranges, pieces, size, got)
    if not is_trusted:
        is_checked = _is_checked(log, queue, offset, reached, ranges)
        if not name_batches(queue, batches, data, counted=not is_checked):
            raise EntriesDamaged(log, queue, queue.place_of(offset), queue.stored_end)
        if not is_checked or log.damaged_batches:
            data = whole_batches(log, queue, batches, data)
            queue.note_checked(offset, reached)
        if not batches:
            return GetResult(GetStatus.NO_MATCHED_MESSAGE, reached, low, high)
    keeps = unwraps and wanted.matches is None
    if keeps and offset <= batches[0].base:
        count = sum([batch.messages for batch in batches])
        return GetResult(GetStatus.FOUND, reached, low, high, data, count)
    parts: list[bytes] = []
    count, left, at = 0, max_bytes, 0
    for batch in batches:
        raw = data[at : at + batch.size]
        at += batch.size
        if keeps and offset <= batch.base:
            parts.append(raw)
            count, left = count + batch.messages, left - batch.size
            continue
        for number, record in expanded(raw, offset, wanted):
            if parts and (count >= max_count or left < len(record)):
                return GetResult(GetStatus.FOUND, number, low, high, b"".join(parts), count)
            parts.append(record)
            count, left = count + 1, left - len(record)
    status = GetStatus.FOUND if parts else GetStatus.NO_MATCHED_MESSAGE
    return GetResult(status, reached, low, high, b"".join(parts), count)


def _choose_batches(
    log: CommitLog, queue: BatchConsumeQueue, end: int, offset: int, max_count: int, max_bytes: int, wanted: Filter
) -> tuple[list[BatchAt], int]:
    """(the batches to read, the offset up to which all were looked at)."""
    chosen: list[BatchAt] = []
    reached, count, left, codes = offset, 0, max_bytes, wanted.tag_codes
    for looked, batch in enumerate(queue.batches(offset)):
        # Offsets rise along the entries: an entry whose offset goes back, or is past the end, is damaged.
        if batch.base >= queue.next_offset or (looked and batch.base < reached):
            place = queue.place_of(offset) + looked
            raise EntriesDamaged(log, queue, place - 1 if looked else place, place + 1)
        if batch.base >= end or looked == MAX_SCAN:
            return chosen, end if batch.base >= end else reached
        if codes is None or batch.tags_code in codes or batch.tags_code == MIXED_TAGS:
            if chosen and (count >= max_count or left < batch.size or len(chosen) == MAX_RANGES):
                break
            chosen.append(batch)
            count, left = count + batch.end - max(batch.base, offset), left - batch.size
        reached = batch.end
    return chosen, reached


def _ranges(batches: list[BatchAt], segment_bytes: int) -> tuple[list[Range], int]:
    """(where the records of the batches lie, the bytes in all)."""
    ranges: list[Range] = []
    for batch in batches:
        start, end = batch.physical, batch.physical + batch.size
        if ranges and ranges[-1][1] == start and start % segment_bytes:
            ranges[-1] = ranges[-1][0], end
        else:
            ranges.append((start, end))
    return ranges, sum([batch.size for batch in batches])


def _together(entries: list[Entry], first: int, segment_bytes: int, most: int | None) -> tuple[list[Entry], int]:
    """(the first entries, whose messages lie in one file and within ``most`` bytes from ``first`` on; their end)."""
    limit, end = (first // segment_bytes + 1) * segment_bytes, first
    if most is not None:
        limit = min(limit, first + most)
    for number, (physical, size, _) in enumerate(entries):
        if size == BLANK_SIZE:
            continue
        if physical != first and physical + size > limit:
            return entries[:number], end
        end = physical + size
    return entries, end


def _choose(
    log: CommitLog, queue: Part, offset: int, max_count: int, max_bytes: int, wanted: Filter
) -> tuple[list[Range], int, int, int, bytes]:
    """(ranges of the log, messages in them, number of entries looked at, bytes in the ranges, the entries)."""
    segment_bytes, tag_codes = log.chain.segment_bytes, wanted.tag_codes
    if tag_codes is None and max_count >= MANY:
        found = long_runs(queue, offset, max_count, max_bytes, MAX_RANGES, segment_bytes)
        if found is not None:
            ranges, count, size, raw = found
            return ranges, count, count, size, raw
    ranges = []
    count = scanned = 0
    left = max_bytes
    start = end = -1
    raw = queue.raw_entries(offset, MAX_SCAN if tag_codes else max_count)
    for physical, size, tags_code in ENTRY.iter_unpack(raw):
        if size == BLANK_SIZE or (tag_codes is not None and tags_code not in tag_codes):
            scanned += 1
            continue
        if count == max_count or (left < size and count):
            break
        scanned += 1
        count += 1
        left -= size
        # A range stays within one file of the log.
        if physical == end and physical % segment_bytes:
            end += size
            continue
        if count > 1:
            ranges.append((start, end))
            if len(ranges) == MAX_RANGES:
                return ranges, count - 1, scanned - 1, max_bytes - left - size, raw
        start, end = physical, physical + size
    if count:
        ranges.append((start, end))
    return ranges, count, scanned, max_bytes - left, raw


def _copied(log: CommitLog, ranges: list[Range], *, as_written: bool = False) -> bytes:
    """``as_written``: this process wrote the bytes lately, and nothing compares them."""
    read = log.copy if as_written else log.read
    if len(ranges) == 1:
        start, end = ranges[0]
        return read(start, end - start)
    return b"".join([read(start, end - start) for start, end in ranges])


def _at_hand(log: CommitLog, ranges: list[Range]) -> bytes:
    """The bytes of the ranges; b"" unless all from the first to the last are in memory, and few enough to ask for."""
    first, last = ranges[0][0], ranges[-1][1]
    if last - first > COLD_BYTES or not _in_one_file(first, last - 1, log.chain.segment_bytes):
        return b""
    return log.at_hand(ranges)


def _pieces(ranges: list[Range], segment_bytes: int) -> tuple[list[Range], int]:
    """(ranges, joined where they are near each other, up to COLD_BYTES in all; bytes of the ranges that they hold)."""
    pieces = [ranges[0]]
    near = covered = ranges[0][1] - ranges[0][0]
    for start, end in ranges[1:]:
        begin, before = pieces[-1]
        joined = start - before < GAP_BYTES and _in_one_file(begin, start, segment_bytes)
        covered += end - (before if joined else start)
        if covered > COLD_BYTES:
            break
        near += end - start
        if joined:
            pieces[-1] = (begin, end)
        else:
            pieces.append((start, end))
    return pieces, near


def _records(log: CommitLog, ranges: list[Range], pieces: list[Range], size: int, got: Mapping[Span, bytes]) -> bytes:
    """The bytes of the ranges, cut out of the pieces that a thread has read. NotResident if a thread must read them."""
    spans = [log.compared(start, end) for start, end in pieces]
    if not all(span in got for span in spans):
        if size >= THREAD_BYTES or not all(span.file.resident(span.at, span.size) for span in spans):
            # What is in memory but was not compared does not count as read from disk.
            places = [log.span(start, end) for start, end in pieces]
            on_disk = not all(file.resident(at, bytes_) for file, at, bytes_ in places)
            raise NotResident(spans, on_disk=on_disk)
        return _copied(log, ranges)
    if len(ranges) == 1:
        return got[spans[0]]
    parts: list[bytes] = []
    left = iter(zip(pieces, spans, strict=True))
    begin = stop = -1
    for start, end in ranges:
        if start >= stop:
            (begin, stop), span = next(left)
            data = got[span]
        parts.append(data[start - begin : end - begin])
    return b"".join(parts)


def _in_one_file(first: int, last: int, segment_bytes: int) -> bool:
    return first // segment_bytes == last // segment_bytes


def _next_file(queue: Part, offset: int) -> int:
    per_file = queue.chain.segment_bytes // 20
    return (offset // per_file + 1) * per_file


class RawEntries(Protocol):
    """A queue."""

    def raw_entries(self, offset: int, count: int) -> bytes:
        """Up to ``count`` entries from ``offset`` on, as they are in the file; fewer at its end."""


def long_runs(
    queue: RawEntries, offset: int, max_count: int, max_bytes: int, max_ranges: int, segment_bytes: int
) -> tuple[list[Range], int, int, bytes] | None:
    """(ranges of the log, number of messages in them, their bytes, the entries): from ``offset`` on, up to the limits.

    ``segment_bytes``: the size of the log's files, which no range crosses.
    None when only a loop over the entries can find them: runs are short, entries are blank, or a run continues in the
    next file of the log. Invariant: the entries of a queue are in the order of the log. So the bytes of other queues
    before a message only grow from one entry to the next, and while they stay the same, messages are adjacent.
    """
    raw, ends = _entries(queue, offset, max_count, max_bytes)
    if len(ends) == 1:
        return [], 0, 0, b""
    # At least one message, however large it is.
    count = min(max(bisect_right(ends, max_bytes) - 1, 1), max_count)
    # No answer is as large as the size in a blank entry, so none of those before is blank.
    if any(ends[number + 1] - ends[number] == BLANK_SIZE for number in (0, count) if number + 1 < len(ends)):
        return None
    ranges: list[Range] = []
    first = 0
    while first < count and len(ranges) < max_ranges:
        (begin,) = _physical(raw, first * ENTRY_BYTES)
        last = _last_of_run(raw, ends, first, count, begin - ends[first])
        end = begin + ends[last + 1] - ends[first]
        if begin // segment_bytes != (end - 1) // segment_bytes:
            return None
        ranges.append((begin, end))
        first = last + 1
        if len(ranges) >= _FIRST_RUNS and first < _LONG * len(ranges):
            return None
    return ranges, first, ends[first], raw


def _entries(queue: RawEntries, offset: int, max_count: int, max_bytes: int) -> tuple[bytes, Sequence[int]]:
    """(entries from ``offset`` on, their ends if they were adjacent): one entry more than fits, if there is one."""
    size = _size(first)[0] if (first := queue.raw_entries(offset, 1)) else 0
    if 0 < size < BLANK_SIZE:
        raw = queue.raw_entries(offset, min(max_bytes // size + 2, max_count + 1, _MOST_AT_ONCE))
        count = len(raw) // ENTRY_BYTES
        if alike(raw, ENTRY_BYTES, count, _SIZE_PLACES) == count:
            return raw, range(0, (count + 1) * size, size)
    raw, ends, read = b"", [0], _AT_ONCE
    while read == _AT_ONCE and ends[-1] <= max_bytes and len(ends) <= max_count:
        more = queue.raw_entries(offset + len(ends) - 1, _AT_ONCE)
        words = array(_TYPE, more)
        if sys.byteorder == "little":
            words.byteswap()
        raw += more
        read = len(words) // _WORDS
        ends[-1:] = accumulate(words[2::_WORDS], initial=ends[-1])
    return raw, ends


def _last_of_run(raw: bytes, ends: Sequence[int], first: int, count: int, others: int) -> int:
    """The last entry from ``first`` to ``count`` before which other queues have exactly ``others`` bytes."""
    low, step = first, 1
    while low + step < count and _others(raw, ends, low + step) == others:
        low, step = low + step, step * 2
    return first_where(low + 1, min(low + step, count), lambda number: _others(raw, ends, number) != others) - 1


def _others(raw: bytes, ends: Sequence[int], number: int) -> int:
    physical: int = _physical(raw, number * ENTRY_BYTES)[0]
    return physical - ends[number]


def matching(
    data: bytes | mmap, base: int, entries: Iterable[Entry], topic: str, matches: Matches, most: int
) -> list[Entry | None]:
    """For each entry that was looked at: the entry if its message matches, else None.

    ``data`` holds the bytes of the log from ``base`` on, with all messages of ``entries``. The search ends when
    ``most`` bytes of properties were seen.
    """
    found: list[Entry | None] = []
    add = found.append
    seen, v6, unpack, head_bytes = 0, HOSTS_V6, _LENGTHS_V4, _HEAD_BYTES_V4
    # Behind the body: the topic, the length of the properties, and these up to the end of the record.
    between = len(topic_field(topic)[1]) + _LENGTH_BYTES
    for entry in entries:
        physical, size, _ = entry
        if size == BLANK_SIZE:
            add(None)
            continue
        at = physical - base
        sys_flag, body_bytes = unpack(data, at)
        if sys_flag & v6:
            unpack_length, start = _LENGTHS[sys_flag & v6]
            start += at + unpack_length(data, at)[0] + between
        else:
            start = at + head_bytes + body_bytes + between
        add(entry if matches(b"\x02%b\x02" % data[start : at + size]) else None)
        seen += at + size - start
        if seen > most:
            break
    return found
