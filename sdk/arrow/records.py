"""Finds the fields of many stored records in one buffer: positions as numpy arrays, without a loop over rows.

The layout and the start of each record come from mqcommon/message (layout.py, columns.py). The heads of all records are
copied at once into a structured array, `Records.heads`. If rows differ in the length of their hosts (IPv4, IPv6), each
of the four layouts is copied separately. Every value is checked before it is used as a position; `DamagedRecord` has
the number of the bad row.
Neighbours: columns.py makes Arrow arrays of these positions, decode.py makes record batches of the arrays.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mqcommon.message.columns import DamagedRecord, record_starts
from mqcommon.message.flags import BORN_HOST_V6, HOSTS_V6
from mqcommon.message.layout import (
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

    Without ``starts`` they follow one another. With it they begin there, and each has its smallest size at least, and
    the size that its head says, within ``data``; ``heads`` are those of `heads_at`, if the caller has them.
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
            self._refuse(~(v1 | v2), "its magic is not that of a record")
        self.sys_flags = self.column("sys_flag")
        self.v6 = bool((self.sys_flags & HOSTS_V6).any())
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
        """The number ``name`` in the head of every record, in this machine's byte order."""
        field = self.heads[name]
        return field.astype(field.dtype.newbyteorder("="))

    def _copy_heads(self, layouts: NDArray[np.int32]) -> NDArray[Any]:
        """The heads in one array, whose layout has the longest hosts."""
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


def overlapping(data: bytes | memoryview | NDArray[np.uint8], kind: str) -> NDArray[Any]:
    """A view of ``data`` with a value of ``kind`` at every byte; index it with positions to read fields there."""
    dtype = np.dtype(kind)
    return np.ndarray((max(0, len(data) - dtype.itemsize + 1),), dtype, data, strides=(1,))


def heads_at(data: bytes | memoryview, starts: Ints) -> NDArray[Any]:
    """The heads of the records at ``starts``, as if all hosts were IPv4: right up to the hosts in any case."""
    return _heads(data, starts, _LAYOUTS[0])


def physical_offsets(heads: NDArray[Any]) -> Ints:
    """Where in the log each record says that it is."""
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
