"""Finding messages: by key through the index, by time through a queue.

Store times never go back in what this broker writes. They may in what a Java broker wrote while its clock was set back,
or an older Skylark after a restart; see `first_at_least`. Places of a queue may be blank (RocketMQ's filler, or the
hole that a repair left): such a place counts as the next message after it. A message whose record is gone counts as
older than any time.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from broker.store.commitlog import CommitLog
from broker.store.consumequeue import BLANK_SIZE, ConsumeQueue
from broker.store.index import Index
from broker.store.log_keys import index_keys
from broker.store.residency import NotResident, Span
from broker.store.retention import HEAD_BYTES, stored_ms
from mqcommon.errors import ProtocolError
from mqcommon.message.properties import find_property
from mqcommon.message.record import decode_record

_UNIQUE_KEY = b"UNIQ_KEY"
# How many places of a queue are looked at in one step behind a blank one.
_BLANKS = 512
# How many places a search by time looks at in one round; four rounds are enough for 16 million messages.
_PROBES = 64
# The time of a place that no message follows.
_NEVER = 1 << 63


@dataclass
class QueryResult:
    """Stored messages that have a key, newest first, and how far the index goes."""

    records: list[bytes] = field(default_factory=list)
    last_update_timestamp: int = 0
    last_update_physical_offset: int = 0


def query_by_key(
    log: CommitLog,
    index: Index,
    topic: str,
    key: str,
    max_num: int,
    begin_ms: int,
    end_ms: int,
    max_bytes: int,
    *,
    unique: bool = False,
) -> QueryResult:
    """Messages of ``topic`` that have ``key`` as unique key or as a word of KEYS, stored within the time range.

    With ``unique`` only as unique key.
    """
    result = QueryResult()
    wanted = key.encode()
    seen: set[int] = set()
    for physical in index.find(topic, key, begin_ms, end_ms):
        if len(result.records) >= max_num or max_bytes <= 0:
            break
        if physical in seen:
            continue
        seen.add(physical)
        raw = log.record_at(physical)
        if raw is None:
            continue
        try:
            record = decode_record(raw, check_crc=False)
        except ProtocolError:
            continue
        # Hashes collide, and the index knows whole seconds only: what counts is the message itself.
        if record.topic != topic or not begin_ms <= record.store_timestamp <= end_ms:
            continue
        if unique:
            found = find_property(record.properties, _UNIQUE_KEY) == wanted
        else:
            found = wanted in index_keys(record.properties)
        if found:
            result.records.append(raw)
            max_bytes -= len(raw)
    if index.files:
        result.last_update_timestamp = index.files[-1].end_ms
        result.last_update_physical_offset = index.files[-1].end_physical
    return result


def store_time(log: CommitLog, queue: ConsumeQueue, offset: int) -> int:
    """When message ``offset`` of ``queue`` was stored (ms); -1 when there is no such message."""
    if not queue.min_offset <= offset < queue.next_offset:
        return -1
    physical, size, _ = queue.entry(offset)
    if size == BLANK_SIZE or physical < log.start or physical + max(size, HEAD_BYTES) > log.end:
        return -1
    time_ms = stored_ms(log.read(physical, HEAD_BYTES))
    return -1 if time_ms is None else time_ms


def first_store_time(log: CommitLog, queue: ConsumeQueue) -> int:
    """When the oldest message of ``queue`` was stored (ms); -1 when it has none."""
    return store_time(log, queue, _next_message(queue, queue.min_offset, queue.next_offset))


def offset_by_time(log: CommitLog, queue: ConsumeQueue, timestamp_ms: int, *, upper: bool = False) -> int:
    """The first offset stored at or after ``timestamp_ms``; with ``upper`` the last one stored at or before it.

    The queue's end when all is older (its start for ``upper`` when all is newer).
    """
    low, high = queue.min_offset, queue.next_offset

    def time_at(offset: int) -> int:
        at = _next_message(queue, offset, high)
        return store_time(log, queue, at) if at < high else _NEVER

    if not upper:
        return _next_message(queue, first_at_least(time_at, low, high, timestamp_ms), high)
    # The same search from the other end, where times fall.
    back = first_at_least(lambda place: -time_at(high - 1 - place), 0, high - low, -timestamp_ms)
    return max(high - 1 - back, low)


def first_at_least(time_at: Callable[[int], int], low: int, high: int, wanted: int) -> int:
    """The first place from ``low`` on whose time is at least ``wanted``; ``high`` when none before it is.

    Bisection would be enough if times never went back. Here each round looks at `_PROBES` places, so that a stretch of
    times that go back is seen when it is longer than what lies between two of them; where times go back between two
    places, the peak before that is looked at, too.
    """
    while low < high:
        step = -(-(high - low) // _PROBES)
        places = [*range(low + step - 1, high - 1, step), high - 1]
        times = _times_at(time_at, places)
        first, before = low, times[0]
        for place, time in zip(places, times, strict=True):
            if time < before and (peak := _peak(time_at, first - 1, place))[1] >= wanted:
                low, high = first, peak[0]
                break
            if time >= wanted:
                low, high = first, place
                break
            first, before = place + 1, time
        else:
            return high
    return high


def _peak(time_at: Callable[[int], int], low: int, high: int) -> tuple[int, int]:
    """(place, time) of a message that is followed by an older one; the time at ``low`` is later than at ``high``."""
    latest = time_at(low)
    while high - low > 1:
        middle = (low + high) // 2
        time = time_at(middle)
        if time >= latest:
            low, latest = middle, time
        else:
            high = middle
    return low, latest


def _times_at(time_at: Callable[[int], int], places: list[int]) -> list[int]:
    """The times at all ``places``; NotResident names all that is on disk only, to be read in one go."""
    times: list[int] = []
    cold: dict[Span, None] = {}
    for place in places:
        try:
            times.append(time_at(place))
        except NotResident as missing:
            cold.update(dict.fromkeys(missing.spans))
    if cold:
        raise NotResident([*cold])
    return times


def _next_message(queue: ConsumeQueue, offset: int, end: int) -> int:
    """The first offset from ``offset`` on that is not blank; ``end`` when there is none before it."""
    if offset < end and queue.entry(offset)[1] != BLANK_SIZE:
        return offset
    while offset < end:
        for _, size, _ in queue.entries(offset, min(_BLANKS, end - offset)):
            if size != BLANK_SIZE:
                return offset
            offset += 1
    return end
