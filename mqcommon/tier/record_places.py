"""Where the records of an object of a class begin: many at a time, by the beginnings that the index knows. Needs numpy.

A record says where the next one begins. So from each place where a stretch begins one goes from record to record, and
all these walks take each of their steps together.
Neighbours: segment_index.py (has the beginnings), restore.py (uses the places).
"""

import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skylark.mqcommon.message.layout import MIN_RECORD

Ints = NDArray[np.int64]
#: With fewer walks, steps one by one are faster.
LEAST_AT_ONCE = 8
_SIZE = struct.Struct(">I").unpack_from
_SIZE_BYTES = 4


def overlapping(data: bytes | memoryview, code: str) -> NDArray[Any]:
    """A view of ``data`` with a number of type ``code`` at every byte; index it with places to read a field there."""
    return np.ndarray(max(len(data) - np.dtype(code).itemsize + 1, 0), code, data, strides=(1,))


def record_places(data: bytes | memoryview, begins: Ints) -> tuple[Ints, Ints] | None:
    """(where records begin, their sizes) for the whole records of ``data``, whose first byte begins a record.

    ``begins``: places, in ascending order, where records begin among other places. The last record of ``data`` may be
    incomplete: it is left out. None if at one of the places, or where a record ends, there is no other record.
    """
    every = overlapping(data, ">u4")
    if (alike := _of_one_size(every, len(data), begins)) is not None:
        return alike
    lanes = np.concatenate(([0], begins[begins > 0]))
    ends = np.append(lanes[1:], len(data))
    found: list[Ints] = []
    while len(lanes) >= LEAST_AT_ONCE:
        lanes, ends = _with_a_size(lanes, ends, len(every))
        stops = lanes + every[lanes]
        is_whole = (stops >= lanes + MIN_RECORD) & (stops <= ends)
        lanes, stops, ends = lanes[is_whole], stops[is_whole], ends[is_whole]
        found.append(lanes)
        is_before = stops < ends
        lanes, ends = stops[is_before], ends[is_before]
    found += [_one_by_one(data, at, end) for at, end in zip(lanes.tolist(), ends.tolist(), strict=True)]
    starts = np.sort(np.concatenate(found))
    sizes = every[starts].astype(np.int64)
    stops = starts + sizes
    if not len(starts):
        return (starts, sizes) if _is_begun(data) else None
    if starts[0] or not np.array_equal(stops[:-1], starts[1:]) or not _is_begun(data[int(stops[-1]) :]):
        return None
    return starts, sizes


def _of_one_size(every: NDArray[Any], end: int, begins: Ints) -> tuple[Ints, Ints] | None:
    """The result if all records have the size of the first one, else None."""
    size = int(every[0]) if len(every) else 0
    if size < MIN_RECORD or end < LEAST_AT_ONCE * size:
        return None
    count, left = divmod(end, size)
    if left or (every[::size] != size).any() or (begins % size).any():
        return None
    return np.arange(0, end, size), np.full(count, size)


def _with_a_size(lanes: Ints, ends: Ints, count: int) -> tuple[Ints, Ints]:
    if lanes[-1] < count:
        return lanes, ends
    has_size = lanes < count
    return lanes[has_size], ends[has_size]


def _one_by_one(data: bytes | memoryview, at: int, end: int) -> Ints:
    """Where whole records begin, from ``at`` on."""
    found: list[int] = []
    add = found.append
    while at + MIN_RECORD <= end:
        stop = at + _SIZE(data, at)[0]
        if not at + MIN_RECORD <= stop <= end:
            break
        add(at)
        at = stop
    return np.array(found, np.int64)


def _is_begun(data: bytes | memoryview) -> bool:
    """Whether a record may begin with ``data`` that has more bytes than ``data``, or no record at all."""
    if len(data) < _SIZE_BYTES:
        return True
    size: int = _SIZE(data)[0]
    return size >= MIN_RECORD and size > len(data)
