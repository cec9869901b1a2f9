"""Where the fields of many stored records lie in one buffer: positions as numpy arrays, no loop over rows.

The layout is mqcommon/message/record.py's. A pull's buffer holds whole records back to back, so the 4-byte sizes chain
from one to the next. The fixed part of all records is copied out at once into a structured array, `Records.heads`;
rows may differ in the length of their hosts (IPv4, IPv6), then each of the four layouts is copied on its own.
Everything is checked before it is used as a position; `DamagedRecord` names the row.
Neighbours: columns.py makes Arrow arrays of these positions, decode.py puts them together.
"""

import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mqcommon.errors import ProtocolError
from mqcommon.message.flags import BORN_HOST_V6, STORE_HOST_V6
from mqcommon.message.record import MAGIC_V1, MAGIC_V2, MIN_RECORD

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

_SIZE = struct.Struct(">I")


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
        ("body_length", ">u4", 68 + born + store),
    ]
    names, formats, offsets = zip(*fields, strict=True)
    return np.dtype(
        {"names": list(names), "formats": list(formats), "offsets": list(offsets), "itemsize": 72 + born + store}
    )


# by the two IPv6 bits of sysFlag; the last one, with room for all, also takes rows of different layouts
_LAYOUTS = (_layout(8, 8), _layout(20, 8), _layout(8, 20), _layout(20, 20))
_HEAD_BYTES = tuple(layout.itemsize for layout in _LAYOUTS)
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

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.starts, self.heads = _split(data)
        magic = self.heads["magic"]
        v1 = magic == MAGIC_V1
        v2 = None if v1.all() else magic == MAGIC_V2
        if v2 is not None:
            self._refuse(~(v1 | v2), "its magic is no record's")
        self.sys_flags = self.column("sys_flag")
        self.v6 = bool((self.sys_flags & (BORN_HOST_V6 | STORE_HOST_V6)).any())
        ends = self.starts + self.heads["size"]
        head_bytes: Ints | int = _HEAD_BYTES[0]
        if self.v6:
            layouts = self.sys_flags >> _V6_SHIFT & 3
            head_bytes = np.array(_HEAD_BYTES)[layouts]
            self._refuse(self.starts + head_bytes + 3 > ends, "too short for its hosts")
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
        """A number of every record's head, in this machine's byte order."""
        field = self.heads[name]
        return field.astype(field.dtype.newbyteorder("="))

    def _copy_heads(self, layouts: NDArray[np.int32]) -> NDArray[Any]:
        """The heads in one array with room for the longest hosts."""
        heads = np.zeros(len(layouts), dtype=_LAYOUTS[-1])
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
        """Where the parts of varying length lie. Lengths are read without a sign: a negative one is just too large."""
        self.body_at = body_at
        self.body_lengths = self.heads["body_length"].astype(np.int64)
        topic_length_at = body_at + self.body_lengths
        self._refuse(topic_length_at + 3 > ends, "the body does not fit into it")
        self.topic_lengths = self._ints("u1", topic_length_at)
        self.topic_at = topic_length_at + 1
        if v2 is not None:
            self.topic_lengths = np.where(v2, self._ints("u2", topic_length_at), self.topic_lengths)
            self.topic_at = self.topic_at + v2
        self.properties_at = self.topic_at + self.topic_lengths + 2
        self._refuse(self.properties_at > ends, "the topic does not fit into it")
        self.properties_lengths = self._ints("i2", self.properties_at - 2)
        wrong = self.properties_at + self.properties_lengths != ends
        self._refuse(wrong, "its properties do not end where it does")

    def _ints(self, kind: str, at: Ints) -> Ints:
        """The big-endian integers ("i2", "u1" ...) at ``at``."""
        return overlapping(self.data, f">{kind}")[at].astype(np.int64)

    def _refuse(self, bad: Mask, reason: str) -> None:
        if bad.any():
            row = int(bad.argmax())
            raise DamagedRecord(row, int(self.starts[row]), reason)


def overlapping(data: bytes | NDArray[np.uint8], kind: str) -> NDArray[Any]:
    """``data`` as values of ``kind`` that start at every byte; index it with positions to gather fields."""
    dtype = np.dtype(kind)
    return np.ndarray((max(0, len(data) - dtype.itemsize + 1),), dtype, data, strides=(1,))


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
            # records of machine-made bodies often have one size: then there is no chain to follow
            starts = np.arange(0, len(data), size, dtype=np.int64)
            heads = _heads(data, starts, _LAYOUTS[0])
            if (heads["size"] == size).all():
                return starts, heads
    starts = _chained_starts(data)
    return starts, _heads(data, starts, _LAYOUTS[0])


def _heads(data: bytes, starts: Ints, layout: np.dtype[Any]) -> NDArray[Any]:
    heads: NDArray[Any] = overlapping(data, f"V{layout.itemsize}")[starts].view(layout)
    return heads


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
