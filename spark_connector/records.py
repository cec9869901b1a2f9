"""Where the fields of many stored records lie in one buffer: positions as numpy arrays, no loop over rows.

The layout is common/message/record.py's. A pull's buffer holds whole records back to back, so the 4-byte sizes chain
from one to the next. Rows may differ in version (V1, V2) and in the length of their hosts (IPv4, IPv6): what moves a
field is added to its position row by row, so a mixed buffer needs no second path.
Everything is checked before it is used as a position; `DamagedRecord` names the row.
Neighbours: columns.py makes Arrow arrays of these positions, decode.py puts them together.
"""

import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.errors import ProtocolError
from common.message.flags import BORN_HOST_V6, STORE_HOST_V6
from common.message.record import (
    MAGIC_V1,
    MAGIC_V2,
    MIN_RECORD,
    PHYSICAL_OFFSET_AT,
    QUEUE_OFFSET_AT,
    STORE_TIMESTAMP_V4_AT,
    SYS_FLAG_AT,
)

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

_SIZE = struct.Struct(">I")
_MAGIC_AT = 4
_QUEUE_ID_AT = 12
_FLAG_AT = 16
_BORN_TIMESTAMP_AT = 40
_BORN_HOST_AT = 48
_STORE_HOST_V4_AT = 64
_RECONSUME_TIMES_V4_AT = 72
_BODY_LENGTH_V4_AT = 84
_BODY_V4_AT = 88
_V6_EXTRA = 12  # an IPv6 host takes 20 bytes instead of 8


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
    """The records of ``data``, row by row; arrays named ``*_at`` hold positions in ``data``."""

    def __init__(self, data: bytes, starts: Ints | None = None) -> None:
        """The records at ``starts`` (some of `record_starts`); without it all that ``data`` holds."""
        self.data = data
        self._place(record_starts(data) if starts is None else starts)

    def __len__(self) -> int:
        return len(self.starts)

    def ints(self, kind: str, at: Ints) -> NDArray[Any]:
        """The big-endian integers ("i8", "i4", "i2", "u4" ...) at ``at``, in this machine's byte order."""
        return overlapping(self.data, f">{kind}")[at].astype(f"={kind}")

    def raw(self, length: int, at: Ints) -> NDArray[np.uint8]:
        """``length`` bytes at each position: rows x length."""
        found: NDArray[np.uint8] = overlapping(self.data, f"V{length}")[at].view(np.uint8).reshape(len(at), length)
        return found

    def column(self, name: str) -> NDArray[Any]:
        """A fixed-width number of every record, by its name in `Record`."""
        kind, at = self._fixed[name]
        return self.ints(kind, at)

    def _place(self, starts: Ints) -> None:
        self.starts = starts
        self.sizes = self.ints("u4", starts).astype(np.int64)
        sys_flags = self.ints("i4", starts + SYS_FLAG_AT)
        self.sys_flags = sys_flags
        self.born_v6 = (sys_flags & BORN_HOST_V6) != 0
        self.store_v6 = (sys_flags & STORE_HOST_V6) != 0
        born = starts + self.born_v6 * _V6_EXTRA if self.born_v6.any() else starts
        both = born + self.store_v6 * _V6_EXTRA if self.store_v6.any() else born
        self.physical_offset_at = starts + PHYSICAL_OFFSET_AT
        self.born_host_at = starts + _BORN_HOST_AT
        self.store_host_at = born + _STORE_HOST_V4_AT
        self._fixed = {
            "queue_id": ("i4", starts + _QUEUE_ID_AT),
            "flag": ("i4", starts + _FLAG_AT),
            "sys_flag": ("i4", starts + SYS_FLAG_AT),
            "queue_offset": ("i8", starts + QUEUE_OFFSET_AT),
            "born_timestamp": ("i8", starts + _BORN_TIMESTAMP_AT),
            "store_timestamp": ("i8", born + STORE_TIMESTAMP_V4_AT),
            "reconsume_times": ("i4", both + _RECONSUME_TIMES_V4_AT),
        }
        self._place_variable(both)

    def _place_variable(self, both: Ints) -> None:
        """Body, topic, properties; ``both`` is each record's start, moved by what its hosts take above 8 bytes."""
        ends = self.starts + self.sizes
        self.body_at = both + _BODY_V4_AT
        self._refuse(self.body_at + 3 > ends, "too short for its hosts")
        self.body_lengths = self.ints("i4", both + _BODY_LENGTH_V4_AT).astype(np.int64)
        topic_length_at = self.body_at + self.body_lengths
        self._refuse((self.body_lengths < 0) | (topic_length_at + 3 > ends), "the body does not fit into it")
        v2 = self.ints("u4", self.starts + _MAGIC_AT) == MAGIC_V2
        self.topic_lengths = self.ints("u1", topic_length_at).astype(np.int64)
        self.topic_at = topic_length_at + 1
        if v2.any():
            self.topic_lengths = np.where(v2, self.ints("i2", topic_length_at), self.topic_lengths)
            self.topic_at = self.topic_at + v2
        self.properties_at = self.topic_at + self.topic_lengths + 2
        self._refuse((self.topic_lengths < 0) | (self.properties_at > ends), "the topic does not fit into it")
        self.properties_lengths = self.ints("i2", self.properties_at - 2).astype(np.int64)
        wrong = (self.properties_lengths < 0) | (self.properties_at + self.properties_lengths != ends)
        self._refuse(wrong, "its properties do not end where it does")

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
