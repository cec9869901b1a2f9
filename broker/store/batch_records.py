"""The records of a batch, made in one go, column by column: what differs between them is packed for all at once."""

from collections.abc import Callable, Sequence
from itertools import accumulate, chain, count, repeat
from typing import NamedTuple
from zlib import crc32

from broker.store.consumequeue import ENTRY
from broker.store.tags import TAGS
from common.message.record import PROPERTIES_LENGTH, BatchHead

Row = tuple[int, bytes, bytes]


class BatchColumns(NamedTuple):
    """The messages of a batch."""

    flags: Sequence[int]
    bodies: Sequence[bytes]
    properties: Sequence[bytes]
    body_lengths: list[int]
    property_lengths: list[int]


class BatchRecords(NamedTuple):
    """Bytes for the log and for the consume queue, and where each message will be."""

    records: bytes
    entries: bytes
    physical_offsets: list[int]


def columns_of(messages: Sequence[Row]) -> BatchColumns:
    """(flag, body, properties) rows, at least one, turned."""
    flags, bodies, properties = zip(*messages, strict=True)
    return BatchColumns(flags, bodies, properties, list(map(len, bodies)), list(map(len, properties)))


def make_batch_records(
    head: BatchHead,
    topic_tail: bytes,
    batch: BatchColumns,
    overhead: int,
    suffix: bytes,
    start: int,
    queue_offset: int,
    tag_code: Callable[[bytes], int],
) -> BatchRecords:
    """Records one behind the other from ``start`` on; each is ``overhead`` longer than its body and properties."""
    flags, bodies, properties, body_lengths, property_lengths = batch
    sizes = [overhead + body + own for body, own in zip(body_lengths, property_lengths, strict=True)]
    offsets = list(accumulate(sizes[:-1], initial=start))
    heads = map(
        head.pack,
        sizes,
        repeat(head.magic),
        [crc & 0x7FFFFFFF for crc in map(crc32, bodies)],
        repeat(head.queue_id),
        flags,
        count(queue_offset),
        offsets,
        repeat(head.common),
        body_lengths,
    )
    # The topic, and the length of the properties: most messages of a batch share it.
    tails = {length: topic_tail + PROPERTIES_LENGTH.pack(length + len(suffix)) for length in set(property_lengths)}
    parts = zip(heads, bodies, map(tails.__getitem__, property_lengths), properties, repeat(suffix))
    records = b"".join(chain.from_iterable(parts))
    if b"".join(properties).find(TAGS) >= 0:
        entries = map(ENTRY.pack, offsets, sizes, map(tag_code, properties))
    else:
        entries = map(ENTRY.pack, offsets, sizes, repeat(0))
    return BatchRecords(records, b"".join(entries), offsets)
