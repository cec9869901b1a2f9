"""The records of a batch, made in one go: what differs between them is packed, what does not is packed once."""

from collections.abc import Callable, Sequence
from itertools import accumulate, count
from typing import NamedTuple
from zlib import crc32

from broker.store.consumequeue import ENTRY
from broker.store.tags import TAGS
from common.message.record import PROPERTIES_LENGTH, BatchHead

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
    suffix: bytes,
    start: int,
    queue_offset: int,
    tag_code: Callable[[bytes], int],
) -> BatchRecords:
    """Records of (flag, body, properties) rows, ``sizes`` bytes each, one behind the other from ``start`` on."""
    offsets = list(accumulate(sizes[:-1], initial=start))
    pack_head, magic, queue_id, common = head.pack, head.magic, head.queue_id, head.common
    pack_entry = ENTRY.pack
    suffix_length = len(suffix)
    # The topic, and the length of the properties: most messages of a batch share it.
    tails: dict[int, bytes] = {}
    parts: list[bytes] = []
    codes: list[int] = []
    for (flag, body, properties), size, number, physical in zip(messages, sizes, count(queue_offset), offsets):
        length = len(properties)
        tail = tails.get(length)
        if tail is None:
            tail = tails[length] = topic_tail + PROPERTIES_LENGTH.pack(length + suffix_length)
        crc = crc32(body) & 0x7FFFFFFF
        parts += (
            pack_head(size, magic, crc, queue_id, flag, number, physical, common, len(body)),
            body,
            tail,
            properties,
            suffix,
        )
        if properties.find(TAGS) >= 0:
            codes += [0] * (number - queue_offset - len(codes))
            codes.append(tag_code(properties))
    codes += [0] * (len(sizes) - len(codes))
    entries = b"".join(map(pack_entry, offsets, sizes, codes))
    return BatchRecords(b"".join(parts), entries, offsets)
