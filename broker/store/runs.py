"""Long runs of messages that are adjacent in the commit log, found without a look at each entry of their queue.

A read of thousands of messages, as bulk readers ask for, would cost more in a loop over the entries than in copying the
messages. Here the work for each entry is done in C: by comparing columns of bytes where all messages have one size, as
those of a producer mostly do, else by array and accumulate.
"""

import sys
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from struct import Struct
from typing import Protocol

from broker.store.queue.entry import BLANK_SIZE, ENTRY_BYTES
from mqcommon.message.columns import alike

# Entries are five numbers of 32 bits: two for the physical offset, the size, and two for the tags code.
_WORDS = 5
_TYPE = "I" if array("I").itemsize == 4 else "L"
# So many entries are read at a time, until they are enough.
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


class Entries(Protocol):
    """A queue."""

    def raw_entries(self, offset: int, count: int) -> bytes:
        """Up to ``count`` entries from ``offset`` on, as they are in the file; fewer at its end."""


def long_runs(
    queue: Entries, offset: int, max_count: int, max_bytes: int, max_ranges: int, segment_bytes: int
) -> tuple[list[Range], int, int, bytes] | None:
    """(ranges of the log, number of messages in them, their bytes, the entries): from ``offset`` on, up to the limits.

    None when a loop over the entries has to find them: runs are short, entries are blank, or a run goes on in the next
    file of the log. Invariant: the entries of a queue are in the order of the log. So the bytes of other queues before
    a message only grow from one entry to the next, and while they stay the same, messages are adjacent.
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


def _entries(queue: Entries, offset: int, max_count: int, max_bytes: int) -> tuple[bytes, Sequence[int]]:
    """(entries from ``offset`` on, their ends if they were adjacent): one more than fit, if there are so many."""
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
    """The last of the entries from ``first`` to ``count`` before which there are as many bytes of ``others``."""
    low, step = first, 1
    while low + step < count and _others(raw, ends, low + step) == others:
        low, step = low + step, step * 2
    high = min(low + step, count)
    while high - low > 1:
        middle = (low + high) // 2
        if _others(raw, ends, middle) == others:
            low = middle
        else:
            high = middle
    return low


def _others(raw: bytes, ends: Sequence[int], number: int) -> int:
    physical: int = _physical(raw, number * ENTRY_BYTES)[0]
    return physical - ends[number]
