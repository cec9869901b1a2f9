"""Which records of a queue's stretches a reader gets, as `read_queue` would have answered from the log. Pure.

Neighbours: reads.py (gets the stretches), store/reader.py (the same for messages in the log).
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence

from skylark.broker.store.expanded import expanded
from skylark.broker.store.filter import Filter, Matches
from skylark.broker.store.older import OlderRead
from skylark.broker.store.queue.entry import MIXED_TAGS
from skylark.broker.store.queue.tags import TagCodes
from skylark.broker.store.reader import MAX_PROPERTIES_BYTES, MAX_SCAN, matching
from skylark.mqcommon.message.columns import record_starts
from skylark.mqcommon.message.inner import may_hold_batches
from skylark.mqcommon.message.layout import HEAD_V4
from skylark.mqcommon.message.record import decode_record
from skylark.mqcommon.tier.records import stored_records

_offset_at = HEAD_V4.reader("queue_offset").unpack_from
_physical_at = HEAD_V4.reader("physical_offset").unpack_from


class Taking:
    """Takes the messages of one read out of stretches, which are given in order.

    The messages are those of ``topic`` from ``offset`` on, before ``end``; at most ``max_count`` and ``max_bytes``, but
    at least one. ``hides``: whether the record at a physical offset is of an earlier topic of the same name.
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
        self._parts: list[bytes] = []
        self._messages = 0
        #: All messages before it were looked at.
        self.next_offset = offset
        #: Whether no more messages are taken.
        self.is_full = False

    @property
    def result(self) -> OlderRead:
        return OlderRead(self.next_offset, b"".join(self._parts), self._messages)

    @property
    def has_messages(self) -> bool:
        return bool(self._parts)

    def add(self, data: bytes) -> None:
        """Take what is wanted of a stretch. ProtocolError if it does not consist of whole records."""
        starts = record_starts(data)
        if not starts or self.is_full:
            return
        if may_hold_batches(data, starts):
            self._add_batches(data)
            return
        first = max(
            bisect_left(starts, self._offset, key=lambda at: int(_offset_at(data, at)[0])),
            bisect_left(starts, 1, key=lambda at: int(not self._hides(_physical_at(data, at)[0]))),
        )
        last = bisect_left(starts, self._end, key=lambda at: int(_offset_at(data, at)[0]))
        if first < last:
            if self._wanted.tag_codes is None and self._wanted.matches is None:
                self._add_plain(data, starts, first, last)
            else:
                self._add_matching(data, starts, first, last)
        elif first:
            self._reached(data, starts[first - 1])
        if last < len(starts) and not self.is_full:
            self._end_reached()

    def _add_plain(self, data: bytes, starts: Sequence[int], first: int, last: int) -> None:
        stop = min(last, first + self._left)
        most = starts[first] + self._bytes_left
        if _end_of(data, starts, stop) > most:
            # The end of a record is the begin of the next one.
            stop = bisect_right(starts, most, first, stop) - 1
            if not self._parts:
                stop = max(stop, first + 1)
        self.is_full = stop < last or stop - first == self._left
        if stop <= first:
            return
        part = data[starts[first] : _end_of(data, starts, stop)]
        self._parts.append(part)
        self._messages += stop - first
        self._left -= stop - first
        self._bytes_left -= len(part)
        self._reached(data, starts[stop - 1])

    def _add_matching(self, data: bytes, starts: Sequence[int], first: int, last: int) -> None:
        stop = min(last, first + self._scan)
        entries = [(starts[row], _end_of(data, starts, row + 1) - starts[row], 0) for row in range(first, stop)]
        found = matching(data, 0, entries, self._topic, self._matches(), MAX_PROPERTIES_BYTES)
        self._scan -= len(found)
        for row, entry in enumerate(found, first):
            if entry is not None:
                at, size, _ = entry
                if not self._fits(size):
                    self.is_full = True
                    return
                self._take(data[at : at + size], 1)
            self._reached(data, starts[row])
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

    def _take(self, raw: bytes, messages: int) -> None:
        self._parts.append(raw)
        self._messages += messages
        self._left -= messages
        self._bytes_left -= len(raw)

    def _end_reached(self) -> None:
        # There may be no messages before the end.
        self.next_offset = max(self.next_offset, self._end)
        self.is_full = True

    def _reached(self, data: bytes, at: int) -> None:
        self.next_offset = max(self.next_offset, _offset_at(data, at)[0] + 1)


def _end_of(data: bytes, starts: Sequence[int], row: int) -> int:
    """Where the record before ``row`` ends."""
    return starts[row] if row < len(starts) else len(data)
