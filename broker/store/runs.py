"""Long runs of messages that are adjacent in the commit log, found without a look at each entry of their queue.

A read of thousands of messages, as bulk readers ask for, would cost more in a loop over the entries than in copying the
messages. Here the work for each entry is done by array and accumulate, in C.
"""

import sys
from array import array
from bisect import bisect_right
from itertools import accumulate
from typing import Protocol

from broker.store.queue.entry import BLANK_SIZE

# Entries are five numbers of 32 bits: two for the physical offset, the size, and two for the tags code.
_WORDS = 5
_TYPE = "I" if array("I").itemsize == 4 else "L"
# So many entries are read at a time, until they are enough.
_AT_ONCE = 1_024
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
) -> tuple[list[Range], int, int] | None:
    """(ranges of the log, number of messages in them, their bytes): messages from ``offset`` on, up to the limits.

    None when a loop over the entries has to find them: runs are short, entries are blank, or a run goes on in the next
    file of the log. Invariant: the entries of a queue are in the order of the log. So the bytes of other queues before
    a message only grow from one entry to the next, and while they stay the same, messages are adjacent.
    """
    words = array(_TYPE)
    # Of the first messages together: how many bytes.
    ends = [0]
    read = _AT_ONCE
    while read == _AT_ONCE and ends[-1] <= max_bytes and len(ends) <= max_count:
        more = array(_TYPE, queue.raw_entries(offset + len(ends) - 1, _AT_ONCE))
        if sys.byteorder == "little":
            more.byteswap()
        words += more
        read = len(more) // _WORDS
        ends[-1:] = accumulate(more[2::_WORDS], initial=ends[-1])
    if len(ends) == 1:
        return [], 0, 0
    # At least one message, however large it is.
    count = min(max(bisect_right(ends, max_bytes) - 1, 1), max_count)
    # No answer is as large as the size in a blank entry, so none of those before is blank.
    if any(ends[number + 1] - ends[number] == BLANK_SIZE for number in (0, count) if number + 1 < len(ends)):
        return None
    ranges: list[Range] = []
    first = 0
    while first < count and len(ranges) < max_ranges:
        begin = words[first * _WORDS] << 32 | words[first * _WORDS + 1]
        last = _last_of_run(words, ends, first, count, begin - ends[first])
        end = begin + ends[last + 1] - ends[first]
        if begin // segment_bytes != (end - 1) // segment_bytes:
            return None
        ranges.append((begin, end))
        first = last + 1
        if len(ranges) >= _FIRST_RUNS and first < _LONG * len(ranges):
            return None
    return ranges, first, ends[first]


def _last_of_run(words: "array[int]", ends: list[int], first: int, count: int, others: int) -> int:
    """The last of the entries from ``first`` to ``count`` before which there are as many bytes of ``others``."""
    low, step = first, 1
    while low + step < count and _others(words, ends, low + step) == others:
        low, step = low + step, step * 2
    high = min(low + step, count)
    while high - low > 1:
        middle = (low + high) // 2
        if _others(words, ends, middle) == others:
            low = middle
        else:
            high = middle
    return low


def _others(words: "array[int]", ends: list[int], number: int) -> int:
    at = number * _WORDS
    return (words[at] << 32 | words[at + 1]) - ends[number]
