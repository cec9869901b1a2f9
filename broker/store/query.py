"""Finding messages: by key through the index, by time through a queue."""

import struct
from dataclasses import dataclass, field

from broker.store.commitlog import CommitLog
from broker.store.consumequeue import ConsumeQueue
from broker.store.index import Index, index_keys
from common.errors import ProtocolError
from common.message.record import decode_record

_LONG = struct.Struct(">q")


@dataclass
class QueryResult:
    """Stored messages that have a key, newest first, and how far the index goes."""

    records: list[bytes] = field(default_factory=list)
    last_update_timestamp: int = 0
    last_update_physical_offset: int = 0


def query_by_key(
    log: CommitLog, index: Index, topic: str, key: str, max_num: int, begin_ms: int, end_ms: int, max_bytes: int
) -> QueryResult:
    """Messages of ``topic`` that have ``key`` as unique key or as a word of KEYS, stored within the time range."""
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
        # Hashes collide: what counts is the message itself.
        if record.topic == topic and wanted in index_keys(record.properties):
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
    if log.record_at(physical) is None:
        return -1
    # bornHost, which stands before storeTimestamp, has 8 or 20 bytes.
    sys_flag_and_on = log.read(physical + 36, min(size - 36, 40))
    at = 40 - 36 + 8 + (20 if sys_flag_and_on[3] & 0x10 else 8)
    return int(_LONG.unpack_from(sys_flag_and_on, at)[0])


def offset_by_time(log: CommitLog, queue: ConsumeQueue, timestamp_ms: int, *, upper: bool = False) -> int:
    """The first offset stored at or after ``timestamp_ms``; with ``upper`` the last one stored at or before it.

    The queue's end when all is older (its start for ``upper`` when all is newer).
    """
    low, high = queue.min_offset, queue.next_offset
    while low < high:
        middle = (low + high) // 2
        stored = store_time(log, queue, middle)
        if stored < timestamp_ms or (upper and stored == timestamp_ms):
            low = middle + 1
        else:
            high = middle
    return max(low - 1, queue.min_offset) if upper else low
