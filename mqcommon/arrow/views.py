"""Binary arrays of Arrow's string views and binary views, which few functions of Arrow take; polars gives such columns.

A view has 16 bytes: length 4 | the value, of at most 12 bytes; or, of a longer one,
                     length 4 | its first 4 bytes | number of the buffer 4 | place in the buffer 4
"""

from itertools import pairwise

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from mqcommon.arrow.records import Ints

_VIEW_WORDS = 4
_SHORT = 12


def view_lengths(array: pa.Array) -> Ints:
    """How many bytes each value has; any number for a null."""
    return _words(array)[:, 0].astype(np.int64)


def without_views(array: pa.Array) -> pa.Array:
    """The same values as a binary array. Long values that lie side by side are copied together."""
    words = _words(array)
    sizes = view_lengths(array)
    if array.null_count:
        sizes[array.is_null().to_numpy(zero_copy_only=False)] = 0
    ends = np.cumsum(sizes)
    begins = ends - sizes
    data = np.empty(int(sizes.sum()), np.uint8)
    short = np.flatnonzero((sizes > 0) & (sizes <= _SHORT))
    places = np.arange(_SHORT)
    held = places < sizes[short, None]
    data[(begins[short, None] + places)[held]] = words.view(np.uint8)[short, 4:][held]
    long = np.flatnonzero(sizes > _SHORT)
    which, at = words[long, 2], words[long, 3]
    is_next = (np.diff(long) == 1) & (which[1:] == which[:-1]) & (at[1:] == at[:-1] + sizes[long][:-1])
    buffers = [np.frombuffer(buffer, np.uint8) for buffer in array.buffers()[2:]]
    for first, end in pairwise([0, *(np.flatnonzero(~is_next) + 1).tolist(), len(long)]):
        if first < end:
            begin, stop, start = int(begins[long[first]]), int(ends[long[end - 1]]), int(at[first])
            data[begin:stop] = buffers[which[first]][start : start + stop - begin]
    bounds = np.append(0, ends).astype(np.int32)
    bitmap = None
    if array.null_count:
        bitmap = pa.py_buffer(np.packbits(array.is_valid().to_numpy(zero_copy_only=False), bitorder="little"))
    return pa.Array.from_buffers(pa.binary(), len(array), [bitmap, pa.py_buffer(bounds), pa.py_buffer(data)])


def _words(array: pa.Array) -> NDArray[np.int32]:
    """The views, a row each."""
    words = np.frombuffer(array.buffers()[1], np.int32)[_VIEW_WORDS * array.offset :]
    return words[: _VIEW_WORDS * len(array)].reshape(-1, _VIEW_WORDS)
