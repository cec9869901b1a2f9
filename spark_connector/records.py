"""Where the fields of many stored records lie in one buffer: positions as numpy arrays, no loop over rows.

The layout is common/message/record.py's. A pull's buffer holds whole records back to back, so the 4-byte sizes chain
from one to the next. The fixed part of all records is copied out at once into a structured array, `Records.heads`;
rows may differ in the length of their hosts (IPv4, IPv6), then each of the four layouts is copied on its own.
Everything is checked before it is used as a position; `DamagedRecord` names the row.
Neighbours: columns.py makes Arrow arrays of these positions, decode.py puts them together.
"""

import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.errors import ProtocolError
from common.message.flags import BORN_HOST_V6, STORE_HOST_V6
from common.message.record import MAGIC_V1, MAGIC_V2, MIN_RECORD, QUEUE_OFFSET_AT, SYS_FLAG_AT

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

_SIZE = struct.Struct(">I")
_MAGIC_AT = 4


def _layout(born: int, store: int) -> np.dtype[Any]:
    """The fixed part of a record whose hosts take ``born`` and ``store`` bytes."""
    fields = [
        ("size", ">u4", 0),
        ("magic", ">u4", 4),
        ("body_crc", ">u4", 8),
        ("queue_id", ">i4", 12),
        ("flag", ">i4", 16),
        ("queue_offset", ">i8", 20),
        ("physical_offset", ("u1", (8,)), 28),
        ("sys_flag", ">i4", 36),
        ("born_timestamp", ">i8", 40),
        ("born_host", ("u1", (born,)), 48),
        ("store_timestamp", ">i8", 48 + born),
        ("store_host", ("u1", (store,)), 56 + born),
        ("reconsume_times", ">i4", 56 + born + store),
        ("body_length", ">i4", 68 + born + store),
    ]
    names, formats, offsets = zip(*fields, strict=True)
    return np.dtype(
        {"names": list(names), "formats": list(formats), "offsets": list(offsets), "itemsize": 72 + born + store}
    )


# by the two IPv6 bits of sysFlag; the last one, with room for all, also takes rows of different layouts
_LAYOUTS = (_layout(8, 8), _layout(20, 8), _layout(8, 20), _layout(20, 20))
_HEAD_BYTES = np.array([layout.itemsize for layout in _LAYOUTS])
_V6_SHIFT = BORN_HOST_V6.bit_length() - 1


class DamagedRecord(ProtocolError):
    """Row ``row`` of a buffer is no sound record; ``at`` is its first byte."""

    def __init__(self, row: int, at: int, reason: str) -> None:
        super().__init__(row, at, reason)
        self.row = row
        self.at = at
        self.reason = reason

    def __str__(self) -> str:
        return f"record {self.row} at byte {self.at}: {self.reason}"


class Records:
    """The records of ``data``, row by row: their ``heads``, and where body, topic and properties lie."""

    def __init__(self, data: bytes, starts: Ints | None = None) -> None:
        """The records at ``starts`` (some of `record_starts`); without it all that ``data`` holds."""
        self.data = data
        self.starts = record_starts(data) if starts is None else starts
        self.sys_flags = self._ints("i4", self.starts + SYS_FLAG_AT)
        self.born_v6 = (self.sys_flags & BORN_HOST_V6) != 0
        self.store_v6 = (self.sys_flags & STORE_HOST_V6) != 0
        ends = self.starts + self._ints("u4", self.starts)
        layouts = self.sys_flags >> _V6_SHIFT & 3
        head_bytes = _HEAD_BYTES[layouts]
        self._refuse(self.starts + head_bytes + 3 > ends, "too short for its hosts")
        self.heads = self._copy_heads(layouts)
        self._place(self.starts + head_bytes, ends)

    def __len__(self) -> int:
        return len(self.starts)

    def column(self, name: str) -> NDArray[Any]:
        """A number of every record's head, in this machine's byte order."""
        field = self.heads[name]
        return field.astype(field.dtype.newbyteorder("="))

    def _copy_heads(self, layouts: NDArray[np.int32]) -> NDArray[Any]:
        if len(layouts) and bool((layouts == layouts[0]).all()):
            return self._heads_of(self.starts, _LAYOUTS[layouts[0]])
        heads = np.zeros(len(layouts), dtype=_LAYOUTS[-1])
        for number, layout in enumerate(_LAYOUTS):
            rows = np.flatnonzero(layouts == number)
            found = self._heads_of(self.starts[rows], layout)
            for name in layout.names or ():
                field = found[name]
                if field.ndim == 2:
                    heads[name][rows, : field.shape[1]] = field
                else:
                    heads[name][rows] = field
        return heads

    def _heads_of(self, starts: Ints, layout: np.dtype[Any]) -> NDArray[Any]:
        heads: NDArray[Any] = overlapping(self.data, f"V{layout.itemsize}")[starts].view(layout)
        return heads

    def _place(self, body_at: Ints, ends: Ints) -> None:
        """Where the parts of varying length lie."""
        self.body_at = body_at
        self.body_lengths = self.heads["body_length"].astype(np.int64)
        topic_length_at = body_at + self.body_lengths
        self._refuse((self.body_lengths < 0) | (topic_length_at + 3 > ends), "the body does not fit into it")
        v2 = self.heads["magic"] == MAGIC_V2
        self.topic_lengths = self._ints("u1", topic_length_at).astype(np.int64)
        self.topic_at = topic_length_at + 1
        if v2.any():
            self.topic_lengths = np.where(v2, self._ints("i2", topic_length_at), self.topic_lengths)
            self.topic_at = self.topic_at + v2
        self.properties_at = self.topic_at + self.topic_lengths + 2
        self._refuse((self.topic_lengths < 0) | (self.properties_at > ends), "the topic does not fit into it")
        self.properties_lengths = self._ints("i2", self.properties_at - 2).astype(np.int64)
        wrong = (self.properties_lengths < 0) | (self.properties_at + self.properties_lengths != ends)
        self._refuse(wrong, "its properties do not end where it does")

    def _ints(self, kind: str, at: Ints) -> NDArray[Any]:
        """The big-endian integers ("i4", "u4" ...) at ``at``, in this machine's byte order."""
        return overlapping(self.data, f">{kind}")[at].astype(f"={kind}")

    def _refuse(self, bad: Mask, reason: str) -> None:
        if bad.any():
            row = int(bad.argmax())
            raise DamagedRecord(row, int(self.starts[row]), reason)


def overlapping(data: bytes | NDArray[np.uint8], kind: str) -> NDArray[Any]:
    """``data`` as values of ``kind`` that start at every byte; index it with positions to gather fields."""
    dtype = np.dtype(kind)
    return np.ndarray((max(0, len(data) - dtype.itemsize + 1),), dtype, data, strides=(1,))


def record_starts(data: bytes) -> Ints:
    """Where the records of ``data`` start; `DamagedRecord` unless it is whole records, one after another."""
    starts = _equal_starts(data)
    if starts is None:
        starts = _chained_starts(data)
    magic = overlapping(data, ">u4")[starts + _MAGIC_AT]
    bad = (magic != MAGIC_V1) & (magic != MAGIC_V2)
    if bad.any():
        row = int(bad.argmax())
        raise DamagedRecord(row, int(starts[row]), f"magic {magic[row]:#010x} is no record's")
    return starts


def queue_offsets(data: bytes, starts: Ints) -> Ints:
    """The queue offset of each record; `DamagedRecord` unless they ascend."""
    offsets = overlapping(data, ">i8")[starts + QUEUE_OFFSET_AT].astype(np.int64)
    falls = offsets[1:] <= offsets[:-1]
    if falls.any():
        row = int(falls.argmax()) + 1
        raise DamagedRecord(row, int(starts[row]), f"queue offset {offsets[row]} follows {offsets[row - 1]}")
    return offsets


def _equal_starts(data: bytes) -> Ints | None:
    """The starts when all records have one size (usual for machine-made bodies), without following the chain."""
    if len(data) < MIN_RECORD:
        return None
    (size,) = _SIZE.unpack_from(data)
    if size < MIN_RECORD or len(data) % size:
        return None
    starts = np.arange(0, len(data), size, dtype=np.int64)
    return starts if bool((overlapping(data, ">u4")[starts] == size).all()) else None


def _chained_starts(data: bytes) -> Ints:
    starts: list[int] = []
    add = starts.append
    unpack = _SIZE.unpack_from
    at, last = 0, len(data) - MIN_RECORD
    while at <= last:
        (size,) = unpack(data, at)
        if size < MIN_RECORD:
            raise DamagedRecord(len(starts), at, f"a size of {size} bytes is too small")
        add(at)
        at += size
    if at > len(data):
        raise DamagedRecord(len(starts) - 1, starts[-1], f"{at - len(data)} of its bytes are missing")
    if at < len(data):
        raise DamagedRecord(len(starts), at, f"{len(data) - at} bytes are too few for a record")
    return np.array(starts, dtype=np.int64)
