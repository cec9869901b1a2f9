"""Makes the records of a uniform batch by columns, with numpy: a field of all its messages at once.

The bytes are the same as batch_records.py makes, which serves all other batches, and brokers without numpy (the extra
``fast``).
"""

from typing import TYPE_CHECKING, Any
from zlib import crc32

from skylark.broker.store.log.valid_record import SECTOR_BYTES
from skylark.broker.store.queue.batch_records import BatchRecords, RecordPlace, TagCode
from skylark.broker.store.queue.entry import ENTRY, ENTRY_BYTES
from skylark.broker.store.queue.tags import TAGS
from skylark.mqcommon.message.batch import BODY_AT, BODY_LENGTH_AT, FLAG_AT, OVERHEAD, one_shape
from skylark.mqcommon.message.layout import CRC_MASK, HEAD_V4, PROPERTIES_LENGTH

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Fewer messages are made one by one: numpy's calls cost some 30 µs. More would hold up the event loop.
LEAST, MOST = 32, 10_000
# Of a message's size, and of the code in an entry.
_SIZE_BYTES, _CODE_BYTES = 4, 8
_UNIQ_KEY = b"UNIQ_KEY\x01"
_PAIR_END = b"\x02"
# Heads with IPv6 hosts differ after these fields only.
_FIRST = HEAD_V4.starts


class Columns:
    """Finds uniform batches. Making it imports numpy, which takes some 0.1 s: in a thread."""

    def __init__(self) -> None:
        import numpy

        self.np: Any = numpy

    def of(self, batch: bytes) -> "UniformBatch | None":
        """The messages of a batch body if they are of one size, and each has its unique key at the same place."""
        found = one_shape(batch, 0, MOST)
        if found is None or found[1] < len(batch):
            return None
        uniform = UniformBatch(self.np, batch)
        return uniform if len(uniform) >= LEAST and uniform.has_keys else None


class UniformBatch:
    """Messages of one size, see `Columns.of`; a `Batch` (batch_records.py)."""

    def __init__(self, np: Any, batch: bytes) -> None:
        self._np = np
        self._batch = batch
        size = int.from_bytes(batch[:_SIZE_BYTES], "big")
        self._messages: NDArray[Any] = np.frombuffer(batch, np.uint8).reshape(-1, size)
        self._body_length = int.from_bytes(batch[BODY_LENGTH_AT:BODY_AT], "big")
        self.most_properties = size - OVERHEAD - self._body_length
        #: The encoded properties of all messages, one after another.
        self.properties: bytes = self._messages[:, size - self.most_properties :].tobytes()

    def __len__(self) -> int:
        return len(self._messages)

    def total_bytes(self, overhead: int) -> int:
        """What the records take together; ``overhead``: of each record, besides its body and properties."""
        return len(self) * (overhead + self._body_length + self.most_properties)

    @property
    def has_keys(self) -> bool:
        """Whether the properties are short and whole, and have a unique key, in all messages at the same place."""
        size, first = self.most_properties, self.properties[: self.most_properties]
        return (
            0 < size <= SECTOR_BYTES
            and first.endswith(_PAIR_END)
            and (at := first.find(_UNIQ_KEY)) >= 0
            and self._is_same(at, at + len(_UNIQ_KEY))
            and self._is_same(size - 1, size)
        )

    def _is_same(self, start: int, end: int) -> bool:
        """Whether these bytes of the properties are the same in all messages."""
        properties = self._messages[:, -self.most_properties :]
        return bool((properties[:, start:end] == properties[0, start:end]).all())

    @property
    def has_only_keys(self) -> bool:
        """Whether the unique key is the only property of each message; `has_keys` must hold."""
        return self.properties.startswith(_UNIQ_KEY) and self.properties.count(_PAIR_END) == len(self)

    def _codes(self, tag_code: TagCode) -> int | list[int]:
        """One tags code for all messages, or a list with the tags code of each message."""
        properties, size = self.properties, self.most_properties
        tagged = 0 if self.has_only_keys else properties.count(TAGS)
        if not tagged:
            return 0
        first = properties[:size]
        start = first.find(TAGS)
        # With more tags than messages, some message has several, and the valid tag of each must be searched for.
        if tagged == len(self) and start >= 0 and self._is_same(max(start - 1, 0), first.index(_PAIR_END, start) + 1):
            return tag_code(first)
        return [tag_code(properties[at : at + size]) for at in range(0, len(properties), size)]

    def make(self, place: RecordPlace, tag_code: TagCode) -> BatchRecords:
        """See `Batch.make`. None of the messages waits for a later delivery."""
        np, messages, count, body_length = self._np, self._messages, len(self), self._body_length
        head, topic_tail, suffix, overhead, start, queue_offset, _ = place
        tail = topic_tail + PROPERTIES_LENGTH.pack(self.most_properties + len(suffix))
        size = overhead + body_length + self.most_properties
        fixed = head.pack(size, head.magic, 0, head.queue_id, 0, 0, 0, head.common, body_length)

        records = np.empty((count, size), np.uint8)
        at = 0
        for part in (
            self._same(fixed),
            messages[:, BODY_AT : BODY_AT + body_length],
            self._same(tail),
            messages[:, -self.most_properties :],
            self._same(suffix),
        ):
            records[:, at : at + part.shape[-1]] = part
            at += part.shape[-1]

        stride, view = len(self._batch) // count, memoryview(self._batch)
        crcs = [crc32(view[body : body + body_length]) for body in range(BODY_AT, len(view), stride)]
        numbers = np.arange(count, dtype=np.int64)
        physical = range(start, start + count * size, size)
        offsets = self._bytes(start + numbers * size, ">i8")
        for name, column in (
            ("body_crc", self._bytes(np.array(crcs, np.uint32) & CRC_MASK, ">u4")),
            ("flag", messages[:, FLAG_AT:BODY_LENGTH_AT]),
            ("queue_offset", self._bytes(queue_offset + numbers, ">i8")),
            ("physical_offset", offsets),
        ):
            records[:, _FIRST[name] : _FIRST[name] + column.shape[1]] = column
        codes = self._codes(tag_code)
        entries = np.empty((count, ENTRY_BYTES), np.uint8)
        entries[:] = self._same(ENTRY.pack(0, size, codes if isinstance(codes, int) else 0))
        entries[:, : offsets.shape[1]] = offsets
        if not isinstance(codes, int):
            entries[:, ENTRY_BYTES - _CODE_BYTES :] = self._bytes(np.array(codes, np.int64), ">i8")
        return BatchRecords(records.tobytes(), entries.tobytes(), physical)

    def _same(self, content: bytes) -> "NDArray[Any]":
        """A part that all records have."""
        part: NDArray[Any] = self._np.frombuffer(content, self._np.uint8)
        return part

    def _bytes(self, column: "NDArray[Any]", kind: str) -> "NDArray[Any]":
        """The bytes of numbers, a row each."""
        rows: NDArray[Any] = column.astype(kind).view(self._np.uint8).reshape(len(column), -1)
        return rows
