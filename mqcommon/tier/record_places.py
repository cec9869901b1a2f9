"""Where the records of an object of a class begin: many at a time, by the beginnings that the index knows. Needs numpy.

A record's size says where the next record begins. So from each place where a stretch begins a walk goes from record to
record, and all walks take each of their steps together.
Neighbours: segment_index.py (has the beginnings), restore.py (uses the places).
"""

import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skylark.mqcommon.message.layout import MIN_RECORD
from skylark.mqcommon.message.overlapping import overlapping

Ints = NDArray[np.int64]
#: With fewer walks, one walk after the other is faster.
LEAST_AT_ONCE = 8
# The walks that are at their ends are counted each time after this many steps.
_STEPS = 16
_SIZE = struct.Struct(">I").unpack_from
_SIZE_BYTES = 4


def record_places(data: bytes | memoryview, begins: Ints) -> tuple[Ints, Ints]:
    """(where records begin, their sizes), of the records that follow each other from the first byte of ``data`` on.

    ``begins``: places, in ascending order, where records begin among other places. The last row ends with ``data`` if
    ``data`` consists of whole records; else before an incomplete record, or where sizes do not fit the places.
    """
    every = overlapping(data, ">u4")
    if (alike := _of_one_size(every, len(data), begins)) is not None:
        return alike
    walks = np.concatenate(([0], begins[begins > 0]))
    found = _walked(data, every, walks)
    starts = found[: int(np.searchsorted(found, len(every)))]
    if not len(starts):
        return starts, starts
    # Within a walk a record's size has led to the next place; the size of the last record of a walk may lead elsewhere.
    sizes = np.diff(starts, append=len(data))
    lasts = np.searchsorted(starts, np.append(walks[1:], len(data))) - 1
    sizes[lasts] = every[starts[lasts]]
    stops = starts + sizes
    is_wrong = (sizes < MIN_RECORD) | (stops > len(data))
    # Where a record does not end at the next place, the next place is wrong, and the record itself is right.
    is_wrong[1:] |= stops[:-1] != starts[1:]
    count = int(np.argmax(is_wrong)) if is_wrong.any() else len(starts)
    return starts[:count], sizes[:count]


def _walked(data: bytes | memoryview, every: NDArray[Any], at: Ints) -> Ints:
    """The places that the walks pass, in ascending order: each goes from its place in ``at`` up to the next place."""
    ends = np.append(at[1:], len(data))
    steps, last = [at], len(every) - 1
    most = int((ends - at).max()) // MIN_RECORD
    while last >= 0 and len(steps) <= most and np.count_nonzero(at < ends) >= LEAST_AT_ONCE:
        for _ in range(_STEPS):
            # A walk that is at its end stays there.
            at = np.minimum(at + every[np.minimum(at, last)], ends)
            steps.append(at)
    table = np.stack(steps, axis=1)
    starts: Ints = table[table < ends[:, np.newaxis]]
    left = np.flatnonzero(at < ends)
    if not len(left):
        return starts
    more = [_one_by_one(data, int(at[lane]), int(ends[lane])) for lane in left]
    return np.sort(np.concatenate([starts, *[each[1:] for each in more]]))


def _of_one_size(every: NDArray[Any], end: int, begins: Ints) -> tuple[Ints, Ints] | None:
    """The result if all records have the size of the first one, else None."""
    size = int(every[0]) if len(every) else 0
    if size < MIN_RECORD or end < LEAST_AT_ONCE * size:
        return None
    count, left = divmod(end, size)
    if left or (every[::size] != size).any() or (begins % size).any():
        return None
    return np.arange(0, end, size), np.full(count, size)


def _one_by_one(data: bytes | memoryview, at: int, end: int) -> Ints:
    """Where records begin, from ``at`` on."""
    found = [at]
    add = found.append
    while at + _SIZE_BYTES <= end:
        size = _SIZE(data, at)[0]
        at += size
        if size < MIN_RECORD or at >= end:
            break
        add(at)
    return np.array(found, np.int64)
