"""Reads of one queue: tag filter by hash, limits, RocketMQ's statuses.

Messages of a queue that lie side by side in the commit log are copied out in one piece. Blank entries, which point to
no message, are passed over.
"""

from collections.abc import Set
from dataclasses import dataclass
from enum import Enum

from broker.store.commitlog import CommitLog
from broker.store.consumequeue import BLANK_SIZE, ConsumeQueue
from broker.store.residency import NotResident, is_checked

# How many entries one read looks at for matches, at the most.
MAX_SCAN = 16_000
# How many pieces of the log one read puts together, at the most: some milliseconds.
MAX_RANGES = 2_048
# Messages less than this apart are brought into memory in one go with what lies between them: a disk gives so much in
# the time that it takes to find another place.
GAP_BYTES = 32 * 1024
# The most that one pull brings into memory, what lies between its messages included; it gets what is in that.
COLD_BYTES = 8 * 1024 * 1024


class GetStatus(Enum):
    """RocketMQ's GetMessageStatus."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    NO_MATCHED_LOGIC_QUEUE = "NO_MATCHED_LOGIC_QUEUE"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"


@dataclass(slots=True)
class GetResult:
    """``records``: whole stored messages, one after another; ``next_offset``: where to read on."""

    status: GetStatus
    next_offset: int
    min_offset: int
    max_offset: int
    records: bytes = b""
    count: int = 0


def read_queue(
    log: CommitLog,
    queue: ConsumeQueue,
    offset: int,
    max_count: int,
    max_bytes: int,
    tag_codes: Set[int] | None = None,
) -> GetResult:
    """Messages of ``queue`` from ``offset`` on: at most ``max_count``, and ``max_bytes`` but for the first one.

    ``tag_codes``: hash codes of the tags wanted; None takes all.
    """
    low, high = queue.min_offset, queue.next_offset
    if high == 0:
        return GetResult(GetStatus.NO_MESSAGE_IN_QUEUE, low, low, high)
    if offset < low:
        return GetResult(GetStatus.OFFSET_TOO_SMALL, low, low, high)
    if offset == high:
        return GetResult(GetStatus.OFFSET_OVERFLOW_ONE, offset, low, high)
    if offset > high:
        return GetResult(GetStatus.OFFSET_OVERFLOW_BADLY, high, low, high)
    ranges, count, scanned = _choose(log, queue, offset, max_count, max_bytes, tag_codes)
    next_offset = offset + scanned
    if not scanned:
        return GetResult(GetStatus.OFFSET_FOUND_NULL, _next_file(queue, offset), low, high)
    if not count:
        return GetResult(GetStatus.NO_MATCHED_MESSAGE, next_offset, low, high)
    if ranges[0][0] < log.start:
        # Its file has gone, and the cleaner is still going through the queues.
        low = queue.min_offset = queue.find_start(log.start)
        return GetResult(GetStatus.OFFSET_TOO_SMALL, low, low, high)
    if is_checked() and not log.is_recent(ranges[0][0]):
        at_hand = _resident_bytes(log, ranges)
        if at_hand is not None:
            ranges, count, scanned = _choose(log, queue, offset, max_count, at_hand, tag_codes)
            next_offset = offset + scanned
    if len(ranges) == 1:
        start, end = ranges[0]
        records = log.copy(start, end - start)
    else:
        records = b"".join([log.copy(start, end - start) for start, end in ranges])
    return GetResult(GetStatus.FOUND, next_offset, low, high, records, count)


def _choose(
    log: CommitLog, queue: ConsumeQueue, offset: int, max_count: int, max_bytes: int, tag_codes: Set[int] | None
) -> tuple[list[tuple[int, int]], int, int]:
    """(ranges of the log, number of messages in them, number of entries looked at)."""
    ranges: list[tuple[int, int]] = []
    count = scanned = 0
    left = max_bytes
    start = end = -1
    segment_bytes = log.chain.segment_bytes
    for physical, size, tags_code in queue.entries(offset, MAX_SCAN if tag_codes else max_count):
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
        if end >= 0:
            ranges.append((start, end))
            if len(ranges) == MAX_RANGES:
                scanned, count, end = scanned - 1, count - 1, -1
                break
        start, end = physical, physical + size
    if end >= 0:
        ranges.append((start, end))
    return ranges, count, scanned


def _resident_bytes(log: CommitLog, ranges: list[tuple[int, int]]) -> int | None:
    """How many bytes of the ranges are near enough to be given; None is all of them. NotResident if not in memory."""
    segment_bytes = log.chain.segment_bytes
    first, last = ranges[0][0], ranges[-1][1]
    if first // segment_bytes == (last - 1) // segment_bytes and last - first <= COLD_BYTES:
        file, at, size = log.span(first, last)
        if file.resident(at, size):
            return None
    pieces: list[tuple[int, int]] = []
    given = covered = 0
    for start, end in ranges:
        begin, before = pieces[-1] if pieces else (start, start)
        joined = start - before < GAP_BYTES and start // segment_bytes == begin // segment_bytes
        more = end - (before if joined else start)
        if given and covered + more > COLD_BYTES:
            break
        if joined and pieces:
            pieces[-1] = (begin, end)
        else:
            pieces.append((start, end))
        covered += more
        given += end - start
    cold = [span for start, end in pieces if not (span := log.span(start, end)).file.resident(span.at, span.size)]
    if cold:
        raise NotResident(cold)
    return given if pieces[-1][1] < last else None


def _next_file(queue: ConsumeQueue, offset: int) -> int:
    per_file = queue.chain.segment_bytes // 20
    return (offset // per_file + 1) * per_file
