"""Which records of a queue's stretches a reader gets, as `read_queue` would have answered from the log. Pure.

Neighbours: reads.py (gets the stretches), store/reader.py (the same for messages in the log).
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import NamedTuple, cast

import numpy as np

from skylark.broker.store.expanded import expanded
from skylark.broker.store.filter import Filter, Matches
from skylark.broker.store.older import OlderRead
from skylark.broker.store.queue.entry import MIXED_TAGS
from skylark.broker.store.queue.tags import TagCodes
from skylark.broker.store.reader import MAX_PROPERTIES_BYTES, MAX_SCAN, matching
from skylark.mqcommon.message.flags import INNER_BATCH
from skylark.mqcommon.message.layout import HEAD_V4
from skylark.mqcommon.message.overlapping import overlapping
from skylark.mqcommon.message.record import decode_record
from skylark.mqcommon.tier.bucket import DamagedObject
from skylark.mqcommon.tier.record_places import Ints, record_places
from skylark.mqcommon.tier.records import stored_records

_OFFSET_AT = HEAD_V4.starts["queue_offset"]
_PHYSICAL_AT = HEAD_V4.starts["physical_offset"]
_FLAGS_AT = HEAD_V4.starts["sys_flag"]


class _Rows(NamedTuple):
    """The records of stretches: where each begins and ends, and its queue offset."""

    data: memoryview
    starts: Ints
    ends: Ints
    offsets: Ints

    @classmethod
    def of(cls, data: memoryview, begins: Sequence[int] | Ints) -> "_Rows":
        starts, sizes = record_places(data, np.asarray(begins, np.int64))
        if not len(starts) or starts[-1] + sizes[-1] != len(data):
            raise DamagedObject("a stretch of records does not consist of whole records")
        return cls(data, starts, starts + sizes, overlapping(data, ">i8")[starts + _OFFSET_AT].astype(np.int64))

    @property
    def may_have_batches(self) -> bool:
        return bool((overlapping(self.data, ">i4")[self.starts + _FLAGS_AT] & INNER_BATCH).any())

    def first_at(self, offset: int) -> int:
        """The number of the first record with this queue offset or a later one."""
        return 0 if self.offsets[0] >= offset else int(np.searchsorted(self.offsets, offset))

    def first_shown(self, hides: Callable[[int], bool]) -> int:
        """The number of the first record that is not hidden: all records before it are hidden."""
        places = overlapping(self.data, ">i8")
        if not hides(int(places[_PHYSICAL_AT])):
            return 0
        return bisect_left(self.starts, 1, key=lambda at: int(not hides(int(places[at + _PHYSICAL_AT]))))


class Taking:
    """Takes the messages of one read out of stretches, which are given in order.

    Takes messages of ``topic`` from ``offset`` on, before ``end``: at most ``max_count`` messages and ``max_bytes``
    bytes, but at least one message. ``hides``: whether the record at a physical offset is of an earlier topic of the
    same name.
    """

    def __init__(
        self,
        topic: str,
        offset: int,
        end: int,
        max_count: int,
        max_bytes: int,
        wanted: Filter,
        *,
        unwraps: bool,
        hides: Callable[[int], bool] = lambda physical: False,
    ) -> None:
        self._topic = topic
        self._end = end
        self._offset = offset
        self._left = max_count
        self._bytes_left = max_bytes
        self._wanted = wanted
        self._unwraps = unwraps
        self._hides = hides
        self._codes = TagCodes()
        # How many more messages are looked at for a filter, and how many bytes of their properties.
        self._scan = wanted.max_messages if wanted.matches is not None else MAX_SCAN
        self._parts: list[bytes | memoryview] = []
        self._messages = 0
        #: All messages before this offset were looked at.
        self.next_offset = offset
        #: Whether no more messages are taken.
        self.is_full = False

    @property
    def result(self) -> OlderRead:
        return OlderRead(self.next_offset, _joined(self._parts), self._messages)

    @property
    def has_messages(self) -> bool:
        return bool(self._parts)

    def add(self, data: memoryview, begins: Sequence[int] | Ints = (0,)) -> None:
        """Take what is wanted of stretches that follow each other. DamagedObject if they have no whole records.

        ``begins``: where in ``data`` each stretch begins.
        """
        if not data or self.is_full:
            return
        rows = _Rows.of(data, begins)
        if rows.may_have_batches:
            self._add_batches(bytes(data))
            return
        count = len(rows.starts)
        first = max(rows.first_at(self._offset), rows.first_shown(self._hides))
        last = rows.first_at(self._end) if rows.offsets[-1] >= self._end else count
        if first < last:
            if self._wanted.tag_codes is None and self._wanted.matches is None:
                self._add_plain(rows, first, last)
            else:
                self._add_matching(rows, first, last)
        elif first:
            self._reached(rows, first - 1)
        if last < count and not self.is_full:
            self._end_reached()

    def _add_plain(self, rows: _Rows, first: int, last: int) -> None:
        begin, stop = int(rows.starts[first]), min(last, first + self._left)
        most = begin + self._bytes_left
        if rows.ends[stop - 1] > most:
            stop = int(np.searchsorted(rows.ends, most, "right"))
            if not self._parts:
                stop = max(stop, first + 1)
        self.is_full = stop < last or stop - first == self._left
        if stop <= first:
            return
        part = rows.data[begin : int(rows.ends[stop - 1])]
        self._parts.append(part)
        self._messages += stop - first
        self._left -= stop - first
        self._bytes_left -= len(part)
        self._reached(rows, stop - 1)

    def _add_matching(self, rows: _Rows, first: int, last: int) -> None:
        stop, data = min(last, first + self._scan), rows.data
        starts, ends = rows.starts[first:stop].tolist(), rows.ends[first:stop].tolist()
        entries = [(start, end - start, 0) for start, end in zip(starts, ends, strict=True)]
        # `matching` uses only those operations of bytes that a memoryview has, too.
        found = matching(cast("bytes", data), 0, entries, self._topic, self._matches(), MAX_PROPERTIES_BYTES)
        self._scan -= len(found)
        for row, entry in enumerate(found, first):
            if entry is not None:
                at, size, _ = entry
                if not self._fits(size):
                    self.is_full = True
                    return
                self._take(data[at : at + size], 1)
            self._reached(rows, row)
        self.is_full = first + len(found) < last or not self._scan

    def _matches(self) -> Matches:
        matches, codes = self._wanted.matches, self._wanted.tag_codes
        if matches is not None:
            return matches
        assert codes is not None
        code_of = self._codes.of
        # The properties are given with a separator before and after them.
        return lambda properties: code_of(properties[1:-1]) in codes

    def _add_batches(self, data: bytes) -> None:
        keeps = self._unwraps and self._wanted.matches is None
        for record in stored_records(data):
            end = record.queue_offset + record.messages
            if record.queue_offset >= self._end:
                self._end_reached()
                return
            if not self._scan:
                self.is_full = True
                return
            if end > self._offset and not self._hides(record.physical_offset):
                raw = data[record.at : record.at + record.size]
                if not self._has_tag(raw):
                    self._scan -= 1
                elif keeps and self._offset <= record.queue_offset:
                    if not self._fits(len(raw)):
                        self.is_full = True
                        return
                    self._take(raw, record.messages)
                elif not self._expand(raw):
                    self.is_full = True
                    return
            self.next_offset = max(self.next_offset, end)

    def _has_tag(self, raw: bytes) -> bool:
        """Whether messages of the record may have a wanted tag."""
        codes = self._wanted.tag_codes
        return codes is None or self._codes.of_record(decode_record(raw, check_crc=False)) in (*codes, MIXED_TAGS)

    def _expand(self, raw: bytes) -> bool:
        """Take the messages of a record one by one; returns whether all were taken."""
        for number, single in expanded(raw, self._offset, self._wanted):
            if not self._fits(len(single)):
                self.next_offset = number
                return False
            self._take(single, 1)
        return True

    def _fits(self, size: int) -> bool:
        return not self._parts or (self._left > 0 and size <= self._bytes_left)

    def _take(self, raw: bytes | memoryview, messages: int) -> None:
        self._parts.append(raw)
        self._messages += messages
        self._left -= messages
        self._bytes_left -= len(raw)

    def _end_reached(self) -> None:
        # There may be no messages before the end.
        self.next_offset = max(self.next_offset, self._end)
        self.is_full = True

    def _reached(self, rows: _Rows, row: int) -> None:
        self.next_offset = max(self.next_offset, int(rows.offsets[row]) + 1)


def _joined(parts: Sequence[bytes | memoryview]) -> bytes:
    """The bytes of all parts; without a copy if one part is all that a download has brought."""
    if len(parts) == 1 and isinstance(parts[0], memoryview):
        whole = parts[0].obj
        if isinstance(whole, bytes) and len(whole) == len(parts[0]):
            return whole
    return b"".join(parts)
