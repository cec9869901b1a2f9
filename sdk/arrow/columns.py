"""Arrow arrays made of positions in a buffer, without a loop over rows: the building blocks of decode.py and encode.py.

Variable-length values are gathered by Arrow itself: the buffer with offsets start0, end0, start1, end1 ... is an
Arrow array whose even elements are the values, and ``take`` copies them in C.
Rare rows that need Python code (a compressed body, an IPv6 host) are replaced with `patched`.
"""

from collections.abc import Sequence
from ipaddress import ip_address
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from mqcommon.addresses import format_address
from sdk.arrow.records import Ints, Mask, all_alike

# the four hex digits of every two bytes, indexed by the number that these bytes are in this machine's byte order
_HEX = np.frombuffer(np.arange(2**16, dtype=np.uint16).tobytes().hex().upper().encode(), dtype=np.uint32)
_MAX_MS = (2**63 - 1) // 1000


def gather(data: Any, starts: Ints, lengths: Ints, kind: pa.DataType, valid: Mask | None = None) -> pa.Array:
    """The values ``data[start:start+length]`` as an array of ``kind`` (binary or string); null where not ``valid``."""
    rows = len(starts)
    if rows == 0:
        return pa.array([], kind)
    ends = starts + lengths
    if valid is not None:
        ends = np.maximum.accumulate(np.where(valid, ends, 0))
        starts = np.where(valid, starts, ends)
    offsets = np.empty(2 * rows, dtype=np.int32)
    offsets[0::2] = starts
    offsets[1::2] = ends
    spread = pa.Array.from_buffers(kind, 2 * rows - 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    return spread.take(numbers(np.arange(0, 2 * rows, 2, dtype=np.int32), valid=valid))


def text(array: pa.Array) -> pa.Array:
    """The string array with U+FFFD in place of invalid UTF-8."""
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        values = array.view(pa.binary()).to_pylist()
        return pa.array([value if value is None else value.decode("utf-8", "replace") for value in values], pa.string())
    return array


def is_text(array: pa.Array) -> bool:
    """Whether all values of a string array are valid UTF-8."""
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def numbers(values: NDArray[Any], kind: pa.DataType | None = None, valid: Mask | None = None) -> pa.Array:
    """An array over the numbers of ``values``, without copying them; null where not ``valid``."""
    # not pa.array(values), since that imports pandas (0.2 s in every new worker) to check for a Series
    bitmap = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
    kind = kind or pa.from_numpy_dtype(values.dtype)
    return pa.Array.from_buffers(kind, len(values), [bitmap, pa.py_buffer(values)])


def timestamps(ms: Ints, kind: pa.DataType) -> pa.Array:
    """Milliseconds as timestamps in microseconds; null where they are out of range (about 292,000 years)."""
    fits = (ms <= _MAX_MS) & (ms >= -_MAX_MS)
    return numbers(ms * 1000, kind, None if fits.all() else fits)


def repeated(value: str, rows: int) -> pa.Array:
    """``value`` in every row."""
    raw = value.encode()
    return equal_texts(raw * rows, len(raw), rows)


def hex_text(*fields: NDArray[np.uint8]) -> pa.Array:
    """Upper-case hex of each row of ``fields`` (rows x bytes each, even numbers of bytes), one after the other."""
    rows = len(fields[0])
    raw = np.empty((rows, sum(field.shape[1] for field in fields)), dtype=np.uint8)
    at = 0
    for field in fields:
        width = field.shape[1]
        raw[:, at : at + width].view(f"V{width}")[:] = field.view(f"V{width}")  # row by row, not byte by byte
        at += width
    digits = _HEX.take(
        raw.view(np.uint16), mode="wrap"
    )  # mode="wrap" skips a range check: every number is in the table
    return equal_texts(digits, at * 2, rows)


def hosts(raw: NDArray[np.uint8]) -> pa.Array:
    """``ip:port`` of each row of ``raw`` (rows x 8 or 20 bytes); few hosts send many rows."""
    width = raw.shape[1]
    rows = np.ascontiguousarray(raw.view(f"V{width}"))
    raw = rows.view(np.uint8).reshape(len(rows), width)
    if len(raw) and all_alike(raw):
        return repeated(_host_text(raw[0].tobytes()), len(raw))
    unique, which = np.unique(rows.reshape(len(rows)), return_inverse=True)
    return pa.array([_host_text(host.tobytes()) for host in unique], pa.string()).take(numbers(which))


def patched(array: pa.Array, rows: NDArray[np.int64], values: Sequence[Any] | pa.Array) -> pa.Array:
    """``array`` with ``values`` in ``rows``."""
    if not isinstance(values, pa.Array):
        values = pa.array(values, array.type)
    which = np.arange(len(array), dtype=np.int64)
    which[rows] = np.arange(len(array), len(array) + len(rows), dtype=np.int64)
    return pa.concat_arrays([array, values]).take(numbers(which))


def equal_texts(data: Any, width: int, rows: int, kind: pa.DataType | None = None) -> pa.Array:
    """The strings (or values of ``kind``) in ``data``, which are ``width`` bytes each, back to back."""
    offsets = np.arange(rows + 1, dtype=np.int32) * np.int32(width)
    return pa.Array.from_buffers(kind or pa.string(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def _host_text(host: bytes) -> str:
    return format_address(str(ip_address(host[:-4])), int.from_bytes(host[-4:], "big", signed=True))
