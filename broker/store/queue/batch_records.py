"""Makes the records of a batch in one go: the parts that all of them share are packed only once."""

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, count, repeat
from typing import NamedTuple, Protocol
from zlib import crc32

from skylark.broker.store.queue.entry import ENTRY
from skylark.broker.store.queue.tags import TAGS
from skylark.mqcommon.message.layout import CRC_MASK, PROPERTIES_LENGTH
from skylark.mqcommon.message.record import BatchHead

Row = tuple[int, bytes, bytes]
TagCode = Callable[[bytes], int]


class BatchRecords(NamedTuple):
    """Bytes for the log and for the consume queue, and where each message will be."""

    records: bytes
    entries: bytes
    physical_offsets: Sequence[int]


class RecordPlace(NamedTuple):
    """What the records of a batch have in common, and where they go."""

    head: BatchHead
    #: The bytes between body and properties, without the length of the properties.
    topic_tail: bytes
    #: Encoded properties that are appended to the properties of each message.
    suffix: bytes
    #: The bytes of each record besides its body and properties.
    overhead: int
    #: Where the first record begins in the log, and its offset in the queue.
    start: int
    queue_offset: int
    #: Whether these are messages that wait for a later delivery: each has a code then, not only those with tags.
    is_waiting: bool = False


class Batch(Protocol):
    """Messages that become records of their own: `RowBatch`, or `UniformBatch` (batch_columns.py)."""

    @property
    def most_properties(self) -> int:
        """The length of the longest properties."""

    def __len__(self) -> int: ...

    def total_bytes(self, overhead: int) -> int:
        """What the records take together; ``overhead``: of each record, besides its body and properties."""

    def make(self, place: RecordPlace, tag_code: TagCode) -> BatchRecords:
        """The records, one after another, and their entries; ``tag_code`` is asked for messages with tags."""


class RowBatch:
    """(flag, body, encoded properties) rows, which may differ in everything."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = rows
        self._lengths = [len(properties) for _, _, properties in rows]

    @property
    def most_properties(self) -> int:
        return max(self._lengths)

    def __len__(self) -> int:
        return len(self._rows)

    def total_bytes(self, overhead: int) -> int:
        return overhead * len(self._rows) + sum([len(body) for _, body, _ in self._rows]) + sum(self._lengths)

    def make(self, place: RecordPlace, tag_code: TagCode) -> BatchRecords:
        rows, lengths = self._rows, self._lengths
        head, topic_tail, suffix, overhead, start, queue_offset, is_waiting = place
        sizes = [overhead + len(body) + length for (_, body, _), length in zip(rows, lengths, strict=True)]
        offsets = list(accumulate(sizes[:-1], initial=start))
        pack_head, magic, queue_id, common = head.pack, head.magic, head.queue_id, head.common
        # The topic and the length of the properties, which is the same for all rows of most batches.
        tails: Iterable[bytes] = repeat(topic_tail + PROPERTIES_LENGTH.pack(lengths[0] + len(suffix)))
        if min(lengths) != max(lengths):
            tails = [topic_tail + PROPERTIES_LENGTH.pack(length + len(suffix)) for length in lengths]
        parts: list[bytes] = []
        for (flag, body, properties), size, number, physical, tail in zip(
            rows, sizes, count(queue_offset), offsets, tails
        ):
            crc = crc32(body) & CRC_MASK
            parts += (
                pack_head(size, magic, crc, queue_id, flag, number, physical, common, len(body)),
                body,
                tail,
                properties,
                suffix,
            )
        codes: Iterable[int] = repeat(0)
        if is_waiting or b"".join([properties for _, _, properties in rows]).find(TAGS) >= 0:
            codes = [tag_code(properties) for _, _, properties in rows]
        entries = b"".join(map(ENTRY.pack, offsets, sizes, codes))
        return BatchRecords(b"".join(parts), entries, offsets)
