"""Runs of records of one layout, taken apart at once: what a slave that catches up meets most of the time.

A producer's messages mostly have one size, one topic and one tag. What such records differ in comes out of them column
by column; whatever is not as in the first of them ends the run, and so does a body that does not match its CRC. All
else is read one by one: replica.py (owns this).
"""

import struct
from itertools import repeat
from typing import NamedTuple
from zlib import crc32

from broker.store.queue.entry import ENTRY
from broker.store.queue.tags import TAGS, TagCodes
from mqcommon.message.record import CRC_MASK

# size, magic, bodyCRC, queueId, queueOffset, physicalOffset, sysFlag, storeTimestamp, bodyLength with IPv4 hosts; then
# the body.
_COLUMNS = ">8sIi4xqq4s16xq20x4s"
_BODY_AT = struct.calcsize(_COLUMNS)
# Shorter runs are read one by one.
MIN_RUN = 8
_FIRST_REACH = 32
_MAX_REACH = 512
_MAX_LAYOUTS = 256


class QueueRun(NamedTuple):
    """Entries for one queue, the first of them for message ``first``."""

    queue_id: int
    first: int
    entries: bytes


class Run(NamedTuple):
    """``records`` records of one topic, and the latest store time of them."""

    records: int
    topic: bytes
    queues: list[QueueRun]
    latest_ms: int


class _Layout(NamedTuple):
    record: struct.Struct
    # What is behind the body of each: length and bytes of the topic, length of the properties.
    head: bytes
    topic: bytes
    # The tag's property with its borders, and where it is; empty without a tag.
    tag: bytes
    tag_at: int
    tag_code: int


class RunReader:
    """Remembers layouts, and how far the last run went."""

    def __init__(self, tag_codes: TagCodes) -> None:
        self._tag_codes = tag_codes
        self._layouts: dict[tuple[int, int], _Layout | None] = {}
        self._reach = _FIRST_REACH

    def read(self, data: bytes, at: int, size: int, body_bytes: int, physical: int, limit: int) -> Run | None:
        """The run that begins with the record of ``size`` bytes at ``at``, which is whole; None when there is none.

        ``physical``: where that record is in the log. At most ``limit`` records.
        """
        most = min(limit, (len(data) - at) // size, self._reach)
        if most < MIN_RUN:
            return None
        layout = self._layout(data, at, size, body_bytes)
        if layout is None:
            return None
        part = data[at : at + most * size]
        heads, crcs, ids, offsets, places, flags, times, lengths, contents, topics, before, tags, behind = zip(
            *layout.record.iter_unpack(part), strict=True
        )
        count = most
        for column in (heads, flags, lengths, topics, tags):
            if column.count(column[0]) < count:
                count = min(count, next(number for number, value in enumerate(column) if value != column[0]))
        sums = [crc32(body) & CRC_MASK for body in contents[:count]]
        if tuple(sums) != crcs[:count]:
            count = next(number for number, value in enumerate(sums) if value != crcs[number])
        if count < most:
            self._reach = _FIRST_REACH
            if count < MIN_RUN:
                return None
        else:
            self._reach = min(2 * self._reach, _MAX_REACH)
        places = places[:count]
        if (
            places != tuple(range(physical, physical + count * size, size))
            # Elsewhere in the properties there may be something that looks like a tag, or is one.
            or b"".join(before[:count]).find(TAGS) >= 0
            or b"".join(behind[:count]).find(TAGS) >= 0
        ):
            return None
        queues = _by_queue(ids[:count], offsets[:count], places, size, layout.tag_code)
        return None if queues is None else Run(count, layout.topic, queues, max(times[:count]))

    def _layout(self, data: bytes, at: int, size: int, body_bytes: int) -> _Layout | None:
        key = size, body_bytes
        tail_at = at + _BODY_AT + body_bytes
        layout = self._layouts.get(key)
        if (
            layout is None
            or not data.startswith(layout.head, tail_at)
            or not data.startswith(layout.tag, tail_at + layout.tag_at)
        ):
            if len(self._layouts) >= _MAX_LAYOUTS:
                self._layouts.clear()
            layout = self._layouts[key] = self._learn(data[tail_at : at + size], body_bytes)
        return layout

    def _learn(self, tail: bytes, body_bytes: int) -> _Layout | None:
        head_bytes = 1 + tail[0] + 2
        properties = tail[head_bytes:]
        head = tail[:head_bytes]
        if len(head) < head_bytes or int.from_bytes(head[-2:], "big") != len(properties):
            return None
        name = TAGS + b"\x01"
        at = 0 if properties.startswith(name) else properties.find(b"\x02" + name)
        tag, tag_at = b"", head_bytes
        if at >= 0:
            end = properties.find(b"\x02", at + 1)
            tag = properties[at : end + 1 if end >= 0 else None]
            tag_at += at
        rest = len(tail) - tag_at - len(tag)
        record = struct.Struct(f"{_COLUMNS}{body_bytes}s{head_bytes}s{tag_at - head_bytes}s{len(tag)}s{rest}s")
        return _Layout(record, head, head[1:-2], tag, tag_at, self._tag_codes.of(properties))


def _by_queue(
    ids: tuple[int, ...], offsets: tuple[int, ...], places: tuple[int, ...], size: int, tag_code: int
) -> list[QueueRun] | None:
    """What goes to which queue; None when one gets messages that do not follow each other."""
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
