"""Runs of similar records, parsed together: the usual case while a slave catches up.

All records of a run have the same size, topic and tag (mqcommon/message/columns.py). replica.py, which owns this, reads
other records one by one.
"""

import struct
from itertools import repeat
from typing import NamedTuple
from zlib import crc32

from broker.store.queue.entry import ENTRY
from broker.store.queue.tags import TAGS, TagCodes
from mqcommon.message.columns import MIN_RUN, Fixed, Run, RunReader, Shape
from mqcommon.message.layout import CRC_MASK, HEAD_V4, PROPERTIES_LENGTH, TAIL_BYTES_V1, TOPIC_LENGTH_V1
from mqcommon.message.light import OFFSETS

_HEAD = HEAD_V4.format("body_crc", "queue_id", "queue_offset", "physical_offset", "store_timestamp")
_MAX_REACH = 512


class QueueRun(NamedTuple):
    """Entries of one queue; the first is that of message ``first``."""

    queue_id: int
    first: int
    entries: bytes


class RunEntries(NamedTuple):
    """The queue entries of ``records`` records of one topic, and their latest store time."""

    records: int
    topic: bytes
    queues: list[QueueRun]
    latest_ms: int


class _Known(NamedTuple):
    topic: bytes
    tag_code: int


class ReplicaRuns:
    """Reads runs, and remembers what the last records had in common."""

    def __init__(self, tag_codes: TagCodes) -> None:
        self._tag_codes = tag_codes
        self._runs = RunReader(self._learn, _MAX_REACH)

    def read(self, data: bytes, at: int, size: int, body_bytes: int, physical: int, limit: int) -> RunEntries | None:
        """The run that begins with the record of ``size`` bytes at ``at``, which is whole; None when there is none.

        ``physical``: where that record is in the log. At most ``limit`` records.
        """
        most = min(limit, (len(data) - at) // size, self._runs.reach)
        if most < MIN_RUN:
            return None
        run = self._runs.read(data[at : at + most * size], size, body_bytes)
        if run is None:
            return None
        entries = _entries(run, size, physical)
        if entries is None:
            self._runs.refuse()
        return entries

    def _learn(self, raw: bytes, body_bytes: int) -> Shape[_Known] | None:
        tail_at = HEAD_V4.size + body_bytes
        tail = raw[tail_at:]
        head_bytes = TAIL_BYTES_V1 + tail[0]
        head, properties = tail[:head_bytes], tail[head_bytes:]
        length_at = head_bytes - PROPERTIES_LENGTH.size
        if len(head) < head_bytes or PROPERTIES_LENGTH.unpack_from(head, length_at)[0] != len(properties):
            return None
        name = TAGS + b"\x01"
        at = 0 if properties.startswith(name) else properties.find(b"\x02" + name)
        # The tag's property with its borders, and where it is in the tail; empty without a tag.
        tag, tag_at = b"", head_bytes
        if at >= 0:
            end = properties.find(b"\x02", at + 1)
            tag = properties[at : end + 1 if end >= 0 else None]
            tag_at += at
        rest = len(tail) - tag_at - len(tag)
        # The body is column 5; 6 and 8 are fixed.
        record = struct.Struct(f"{_HEAD}{body_bytes}s{head_bytes}s{tag_at - head_bytes}s{len(tag)}s{rest}s")
        fixed = Fixed(6, tail_at, head), Fixed(8, tail_at + tag_at, tag)
        topic = head[TOPIC_LENGTH_V1.size : length_at]
        return Shape(record, fixed, _Known(topic, self._tag_codes.of(properties)))


def _entries(run: Run[_Known], size: int, physical: int) -> RunEntries | None:
    """None when the records must be read one by one."""
    crcs, ids, offsets, places, times, bodies, _, before, _, after = run.columns
    if (
        tuple([crc32(body) & CRC_MASK for body in bodies]) != crcs
        or places != tuple(range(physical, physical + run.records * size, size))
        # The rest of the properties may contain another tag, or something that looks like one.
        or b"".join(before).find(TAGS) >= 0
        or (rest := b"".join(after)).find(TAGS) >= 0
        # Records in light queues have more entries than these.
        or rest.find(OFFSETS) >= 0
    ):
        return None
    queues = _by_queue(ids, offsets, places, size, run.known.tag_code)
    return None if queues is None else RunEntries(run.records, run.known.topic, queues, max(times))


def _by_queue(
    ids: tuple[int, ...], offsets: tuple[int, ...], places: tuple[int, ...], size: int, tag_code: int
) -> list[QueueRun] | None:
    """The entries by queue; None when the messages of some queue are not consecutive."""
    rows: dict[int, tuple[list[int], list[int]]] = {}
    if ids.count(ids[0]) == len(ids):
        rows[ids[0]] = list(offsets), list(places)
    else:
        for queue_id, offset, place in zip(ids, offsets, places, strict=True):
            row = rows.get(queue_id)
            if row is None:
                rows[queue_id] = [offset], [place]
            else:
                row[0].append(offset)
                row[1].append(place)
    found = []
    for queue_id, (its_offsets, its_places) in rows.items():
        first = its_offsets[0]
        if queue_id < 0 or its_offsets != list(range(first, first + len(its_offsets))):
            return None
        entries = b"".join(map(ENTRY.pack, its_places, repeat(size), repeat(tag_code)))
        found.append(QueueRun(queue_id, first, entries))
    return found
