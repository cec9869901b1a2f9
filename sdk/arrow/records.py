"""Finds the fields of many stored records in one buffer: positions as numpy arrays, and Arrow arrays of them.

The layout and the start of each record come from mqcommon/message (layout.py, columns.py). The heads of all records are
copied at once into a structured array, `Records.heads`. If rows differ in the length of their hosts (IPv4, IPv6), each
of the four layouts is copied separately. Every value is checked before it is used as a position; `DamagedRecord` has
the number of the bad row.
No array is made in a loop over rows. Values of variable length are gathered by Arrow itself: the buffer with offsets
start0, end0, start1, end1 ... is an Arrow array whose even elements are the values, and ``take`` copies them in C. Rare
rows that need Python code (a compressed body, an IPv6 host) are replaced with `patched`.
Neighbours: decode.py makes record batches of the arrays.
"""

from collections.abc import Sequence
from ipaddress import ip_address
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from skylark.mqcommon.addresses import format_address
from skylark.mqcommon.message.columns import DamagedRecord, record_starts
from skylark.mqcommon.message.flags import BORN_HOST_V6, HOSTS_V6
from skylark.mqcommon.message.layout import (
    HEAD_V4,
    HEADS,
    MAGIC_V1,
    MAGIC_V2,
    MIN_RECORD,
    PROPERTIES_LENGTH,
    TAIL_BYTES_V1,
    TOPIC_LENGTH_V1,
    TOPIC_LENGTH_V2,
    Head,
)
from skylark.mqcommon.message.overlapping import overlapping
from skylark.sdk.arrow.schema import MAX_TIME_MS

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

_SIZE = HEAD_V4.reader("size")
_BYTES = {"physical_offset", "born_host", "store_host"}


def _dtype(head: Head) -> np.dtype[Any]:
    """The fields of a head that are used for columns. Those in `_BYTES` are converted to text byte by byte."""
    formats: dict[str, str | tuple[str, int]] = {
        name: ("u1", head.ends[name] - head.starts[name]) if name in _BYTES else f">{code}"
        for name, code in head.codes.items()
        if name != "prepared_transaction_offset"
    }
    # Unsigned: see `Records._place`.
    formats["body_length"] = ">I"
    offsets = [head.starts[name] for name in formats]
    return np.dtype(
        {"names": list(formats), "formats": list(formats.values()), "offsets": offsets, "itemsize": head.size}
    )


# Indexed by the two IPv6 bits of sysFlag. The last layout has the longest hosts; it is also used for mixed rows.
_V6_SHIFT = BORN_HOST_V6.bit_length() - 1
_LAYOUTS = tuple(_dtype(HEADS[kind << _V6_SHIFT]) for kind in range(4))
_HEAD_BYTES = tuple(layout.itemsize for layout in _LAYOUTS)


class Records:
    """The records of ``data``, one per row: their ``heads``, and the positions of body, topic and properties.

    Without ``starts`` the records follow one another. With ``starts`` they begin at these positions; each record must
    have at least the smallest size, and the size in its head must lie within ``data``; ``heads`` are the result of
    `heads_at`, if the caller has it.
    """

    def __init__(self, data: bytes | memoryview, starts: Ints | None = None, heads: NDArray[Any] | None = None) -> None:
        self.data = data
        if starts is None:
            self.starts, self.heads = _split(bytes(data))
        else:
            self.starts, self.heads = starts, heads_at(data, starts) if heads is None else heads
        magic = self.heads["magic"]
        v1 = magic == MAGIC_V1
        v2 = None if v1.all() else magic == MAGIC_V2
        if v2 is not None:
            self._refuse(~(v1 | v2), "its magic is not a record's")
        self.sys_flags = self.column("sys_flag")
        self.v6 = bool((self.sys_flags & HOSTS_V6).any())
        # Every position is checked against the end of its record before it is used: damage raises, and no byte outside
        # of the buffer is read.
        ends = self.starts + self.heads["size"]
        head_bytes: Ints | int = _HEAD_BYTES[0]
        if self.v6:
            layouts = self.sys_flags >> _V6_SHIFT & 3
            head_bytes = np.array(_HEAD_BYTES)[layouts]
            self._refuse(self.starts + head_bytes + TAIL_BYTES_V1 > ends, "too short for its hosts")
            self.heads = self._copy_heads(layouts)
        self._place(self.starts + head_bytes, ends, v2)

    def __len__(self) -> int:
        return len(self.starts)

    def part(self, low: int, high: int) -> "Records":
        """The rows from ``low`` up to, not including, ``high``; nothing is copied."""
        if low == 0 and high == len(self):
            return self
        part = object.__new__(Records)
        for name, value in vars(self).items():
            setattr(part, name, value[low:high] if isinstance(value, np.ndarray) else value)
        return part

    def column(self, name: str) -> NDArray[Any]:
        """The number in the field ``name`` of each record's head, as ``queue_offset``; in this machine's byte order."""
        field = self.heads[name]
        return field.astype(field.dtype.newbyteorder("="))

    def _copy_heads(self, layouts: NDArray[np.int32]) -> NDArray[Any]:
        """The heads in one array, whose layout has the longest hosts."""
        heads = np.zeros(len(layouts), dtype=_LAYOUTS[-1])
        # The layout with the longest hosts is used for all rows: shorter hosts leave zeros, and columns know by the
        # flags.
        for number, layout in enumerate(_LAYOUTS):
            rows = np.flatnonzero(layouts == number)
            found = _heads(self.data, self.starts[rows], layout)
            for name in layout.names or ():
                field = found[name]
                if field.ndim == 2:
                    heads[name][rows, : field.shape[1]] = field
                else:
                    heads[name][rows] = field
        return heads

    def _place(self, body_at: Ints, ends: Ints, v2: Mask | None) -> None:
        """Find the parts of variable length. Lengths are read as unsigned: a negative one is refused as too large."""
        self.body_at = body_at
        self.body_lengths = self.heads["body_length"].astype(np.int64)
        topic_length_at = body_at + self.body_lengths
        self._refuse(topic_length_at + TAIL_BYTES_V1 > ends, "the body does not fit into it")
        self.topic_lengths = self._ints(TOPIC_LENGTH_V1.format, topic_length_at)
        self.topic_at = topic_length_at + TOPIC_LENGTH_V1.size
        if v2 is not None:
            long = self._ints(TOPIC_LENGTH_V2.format.upper(), topic_length_at)
            self.topic_lengths = np.where(v2, long, self.topic_lengths)
            self.topic_at = np.where(v2, topic_length_at + TOPIC_LENGTH_V2.size, self.topic_at)
        self.properties_at = self.topic_at + self.topic_lengths + PROPERTIES_LENGTH.size
        self._refuse(self.properties_at > ends, "the topic does not fit into it")
        self.properties_lengths = self._ints(PROPERTIES_LENGTH.format, self.properties_at - PROPERTIES_LENGTH.size)
        wrong = self.properties_at + self.properties_lengths != ends
        self._refuse(wrong, "its properties do not end where it does")

    def _ints(self, kind: str, at: Ints) -> Ints:
        """The integers of this format at ``at``."""
        return overlapping(self.data, kind)[at].astype(np.int64)

    def _refuse(self, bad: Mask, reason: str) -> None:
        if bad.any():
            row = int(bad.argmax())
            raise DamagedRecord(row, int(self.starts[row]), reason)


def heads_at(data: bytes | memoryview, starts: Ints) -> NDArray[Any]:
    """The heads of the records at ``starts``, as if all hosts were IPv4: right up to the hosts in any case."""
    return _heads(data, starts, _LAYOUTS[0])


def physical_offsets(heads: NDArray[Any]) -> Ints:
    """The offset in the log that each record contains."""
    found: Ints = np.ascontiguousarray(heads["physical_offset"]).view(">i8").reshape(-1)
    return found


def all_alike(rows: NDArray[np.uint8]) -> bool:
    """Whether all rows of a contiguous rows x bytes array are equal."""
    flat = rows.reshape(-1)
    width = rows.shape[1]
    return bool((flat[width:] == flat[:-width]).all()) if width else True


def _split(data: bytes) -> tuple[Ints, NDArray[Any]]:
    """(starts, heads as if all hosts were IPv4) of whole records, one after another; else `DamagedRecord`."""
    if len(data) >= MIN_RECORD:
        (size,) = _SIZE.unpack_from(data)
        if size >= MIN_RECORD and len(data) % size == 0:
            # Records with generated bodies often have the same size. The heads are needed anyway, and checking their
            # sizes is faster than `record_starts`.
            starts = np.arange(0, len(data), size, dtype=np.int64)
            heads = _heads(data, starts, _LAYOUTS[0])
            if (heads["size"] == size).all():
                return starts, heads
    starts = np.array(record_starts(data, check_magics=False), dtype=np.int64)
    return starts, _heads(data, starts, _LAYOUTS[0])


def _heads(data: bytes | memoryview, starts: Ints, layout: np.dtype[Any]) -> NDArray[Any]:
    heads: NDArray[Any] = overlapping(data, f"V{layout.itemsize}")[starts].view(layout)
    return heads


# the four hex digits of every two bytes, indexed by the number that these bytes are in this machine's byte order
_HEX = np.frombuffer(np.arange(2**16, dtype=np.uint16).tobytes().hex().upper().encode(), dtype=np.uint32)


def gather(data: Any, starts: Ints, lengths: Ints, kind: pa.DataType, valid: Mask | None = None) -> pa.Array:
    """The values ``data[start:start+length]`` as an array of ``kind`` (binary or string); null where not ``valid``."""
    rows = len(starts)
    if rows == 0:
        return pa.array([], kind)
    ends = starts + lengths
    if valid is not None:
        # Offsets of an Arrow array must not fall: a null is placed where the value before it ends.
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
    """Milliseconds as timestamps in microseconds; null where `MAX_TIME_MS` does not allow them."""
    fits = (ms <= MAX_TIME_MS) & (ms >= -MAX_TIME_MS)
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
    # Append the new values to the array, and let ``take`` pick them for their rows.
    which = np.arange(len(array), dtype=np.int64)
    which[rows] = np.arange(len(array), len(array) + len(rows), dtype=np.int64)
    return pa.concat_arrays([array, values]).take(numbers(which))


def equal_texts(data: Any, width: int, rows: int, kind: pa.DataType | None = None) -> pa.Array:
    """The strings (or values of ``kind``) in ``data``, which are ``width`` bytes each, back to back."""
    offsets = np.arange(rows + 1, dtype=np.int32) * np.int32(width)
    return pa.Array.from_buffers(kind or pa.string(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def _host_text(host: bytes) -> str:
    return format_address(str(ip_address(host[:-4])), int.from_bytes(host[-4:], "big", signed=True))
