"""An inner batch as records of its messages, for readers that cannot take it apart, and to filter them one by one."""

import struct
from collections.abc import Callable, Iterator

from skylark.broker.store.filter import Filter
from skylark.broker.store.queue.tags import TagCodes
from skylark.mqcommon.errors import ProtocolError
from skylark.mqcommon.message.batch import OVERHEAD, decode_batch
from skylark.mqcommon.message.compression import decompressed
from skylark.mqcommon.message.flags import COMPRESSED, WRAPPED
from skylark.mqcommon.message.inner import OUTER_BITS
from skylark.mqcommon.message.record import Record, decode_record, encode_record, topic_field

# How many messages are decoded at once. Most readers want few of them at a time.
_ROWS = 64
_unpack_size = struct.Struct(">i").unpack_from


def expanded(raw: bytes, start: int, wanted: Filter) -> Iterator[tuple[int, bytes]]:
    """(queue offset, record) of the messages in the record ``raw``, from queue offset ``start`` on, that are wanted.

    Each record has the place of the batch in the log. A batch that cannot be taken apart is returned unchanged.
    """
    batch = decode_record(raw, check_crc=False)
    is_wanted = _test(wanted)
    if batch.sys_flag & WRAPPED != WRAPPED:
        if is_wanted(batch.properties):
            yield batch.queue_offset, raw
        return
    first = number = max(start, batch.queue_offset)
    magic, topic = topic_field(batch.topic)
    sys_flag = batch.sys_flag & ~OUTER_BITS
    try:
        for flag, body, properties in _rows(batch, first - batch.queue_offset):
            if is_wanted(properties):
                record = encode_record(
                    magic,
                    topic,
                    batch.queue_id,
                    number,
                    batch.physical_offset,
                    body,
                    properties,
                    flag,
                    sys_flag,
                    batch.born_timestamp,
                    batch.born_host,
                    batch.store_timestamp,
                    batch.store_host,
                    batch.reconsume_times,
                    batch.prepared_transaction_offset,
                )
                yield number, record
            number += 1
    except ProtocolError:
        if number == first:
            yield batch.queue_offset, raw


def _rows(batch: Record, skip: int) -> Iterator[tuple[int, bytes, bytes]]:
    """(flag, body, properties) of the messages but the first ``skip``. ProtocolError if the batch is damaged."""
    body = decompressed(batch.body, batch.sys_flag) if batch.sys_flag & COMPRESSED else batch.body
    at = 0
    try:
        for _ in range(skip):
            (size,) = _unpack_size(body, at)
            if size < OVERHEAD:
                raise ProtocolError(f"a message of {size} bytes in a batch")
            at += size
    except struct.error:
        at = len(body)
    if at >= len(body):
        raise ProtocolError("the batch has fewer messages than it says")
    while at < len(body):
        rows, at = decode_batch(body, at, _ROWS)
        yield from rows


def _test(wanted: Filter) -> Callable[[bytes], bool]:
    codes, matches = wanted.tag_codes, wanted.matches
    if codes is not None:
        code_of = TagCodes().of
        return lambda properties: code_of(properties) in codes
    if matches is not None:
        return lambda properties: matches(b"\x02%b\x02" % properties)
    return lambda properties: True
