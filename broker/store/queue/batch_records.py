"""Makes the records of a batch in one go: the parts that all of them share are packed only once."""

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, count, repeat
from typing import NamedTuple
from zlib import crc32

from broker.store.queue.entry import ENTRY
from broker.store.queue.tags import TAGS
from mqcommon.message.layout import CRC_MASK, PROPERTIES_LENGTH
from mqcommon.message.record import BatchHead

Row = tuple[int, bytes, bytes]


class BatchRecords(NamedTuple):
    """Bytes for the log and for the consume queue, and where each message will be."""

    records: bytes
    entries: bytes
    physical_offsets: list[int]


def make_batch_records(
    head: BatchHead,
    topic_tail: bytes,
    messages: Sequence[Row],
    sizes: Sequence[int],
    lengths: Sequence[int],
    suffix: bytes,
    start: int,
    queue_offset: int,
    tag_code: Callable[[bytes], int],
) -> BatchRecords:
    """Records of (flag, body, properties) rows, ``sizes`` bytes each, one after another from ``start`` on.

    ``lengths``: those of the rows' properties; ``suffix`` follows the properties in each record.
    """
    offsets = list(accumulate(sizes[:-1], initial=start))
    pack_head, magic, queue_id, common = head.pack, head.magic, head.queue_id, head.common
    # The topic and the length of the properties, which is the same for all rows of most batches.
    tails: Iterable[bytes] = repeat(topic_tail + PROPERTIES_LENGTH.pack(lengths[0] + len(suffix)))
    if min(lengths) != max(lengths):
        tails = [topic_tail + PROPERTIES_LENGTH.pack(length + len(suffix)) for length in lengths]
    parts: list[bytes] = []
    for (flag, body, properties), size, number, physical, tail in zip(
        messages, sizes, count(queue_offset), offsets, tails
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
    if b"".join([properties for _, _, properties in messages]).find(TAGS) >= 0:
        codes = [tag_code(properties) for _, _, properties in messages]
    entries = b"".join(map(ENTRY.pack, offsets, sizes, codes))
    return BatchRecords(b"".join(parts), entries, offsets)
