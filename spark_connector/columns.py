"""Arrow arrays out of positions in a buffer: the building blocks of decode.py, each without a loop over rows.

Variable-length values are gathered by Arrow itself: the buffer with offsets start0, end0, start1, end1 ... is an
Arrow array whose even elements are the values, and ``take`` copies them in C.
The rare row that needs Python (a compressed body, an IPv6 host) is put in with `patched`.
"""

from collections.abc import Sequence
from ipaddress import ip_address
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_connector.records import Ints, Mask

_HEX_PAIRS = np.frombuffer(b"".join(b"%02X" % value for value in range(256)), dtype=np.uint16)
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
    even = np.arange(0, 2 * rows, 2, dtype=np.int32)
    return spread.take(pa.array(even, mask=None if valid is None else ~valid))


def text(array: pa.Array) -> pa.Array:
    """A string array as it is, or with U+FFFD for what is not UTF-8."""
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        values = array.view(pa.binary()).to_pylist()
        return pa.array([value if value is None else value.decode("utf-8", "replace") for value in values], pa.string())
    return array


def is_text(array: pa.Array) -> bool:
    """Whether every value of a string array is UTF-8."""
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def numbers(values: NDArray[Any]) -> pa.Array:
    """An array over the numbers of ``values``, without copying them."""
    return pa.array(values)


def timestamps(ms: Ints, kind: pa.DataType) -> pa.Array:
    """Milliseconds as timestamps in microseconds; null where they do not fit (about 292,000 years)."""
    beyond = (ms > _MAX_MS) | (ms < -_MAX_MS)
    return pa.array(ms * 1000, mask=beyond if beyond.any() else None).cast(kind)


def repeated(value: str, rows: int) -> pa.Array:
    """``value`` in every row."""
    return pa.repeat(pa.scalar(value, pa.string()), rows)


def hex_text(raw: NDArray[np.uint8]) -> pa.Array:
    """Upper-case hex of each row of ``raw`` (rows x bytes)."""
    rows, width = raw.shape
    digits = _HEX_PAIRS.take(raw)
    offsets = np.arange(0, (rows + 1) * width * 2, width * 2, dtype=np.int32)[: rows + 1]
    return pa.Array.from_buffers(pa.string(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(digits)])


def hosts(raw: NDArray[np.uint8]) -> pa.Array:
    """``ip:port`` of each row of ``raw`` (rows x 8 or 20 bytes); few hosts send many rows."""
    rows = len(raw)
    if rows and bool((raw == raw[0]).all()):
        return repeated(_host_text(raw[0].tobytes()), rows)
    whole = np.ascontiguousarray(raw).view(f"V{raw.shape[1]}").reshape(rows)
    unique, which = np.unique(whole, return_inverse=True)
    return pa.array([_host_text(host.tobytes()) for host in unique], pa.string()).take(pa.array(which))


def patched(array: pa.Array, rows: NDArray[np.int64], values: Sequence[Any] | pa.Array) -> pa.Array:
    """``array`` with ``values`` in ``rows``."""
    if not isinstance(values, pa.Array):
        values = pa.array(values, array.type)
    which = np.arange(len(array), dtype=np.int64)
    which[rows] = np.arange(len(array), len(array) + len(rows), dtype=np.int64)
    return pa.concat_arrays([array, values]).take(pa.array(which))


def _host_text(host: bytes) -> str:
    return f"{ip_address(host[:-4])}:{int.from_bytes(host[-4:], 'big', signed=True)}"
