"""Inner batches: one record holds a whole batch of messages, as queues of RocketMQ's type BatchCQ have them. Pure.

Its sysFlag has INNER_BATCH and NEED_UNWRAP. Its body is that of a batch send (batch.py), and may be compressed as a
whole. Its property INNER_NUM is the number of messages. Message ``i`` has the queue offset of the record + ``i``, and
flag, body and properties of its own. All else it has from the record, also the place in the log.
A record with INNER_BATCH alone is one message, as RocketMQ's clients see it.
Neighbours: message.py (message objects), mqcommon/arrow/inner.py (columns).
"""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from mqcommon.errors import ProtocolError
from mqcommon.message.batch import OVERHEAD, decode_batch
from mqcommon.message.compression import decompressed
from mqcommon.message.flags import COMPRESSED, COMPRESSION_MASK, WRAPPED
from mqcommon.message.layout import HEAD_V4
from mqcommon.message.properties import INNER_NUM, find_property
from mqcommon.message.record import Record, decode_record

# Entries of BatchCQ queues have 16 bits for the number of messages.
MAX_INNER = 32_767
# What the compressed batches of one buffer may hold in all.
CONTENT_BYTES = 256 * 1024 * 1024
#: Bits of sysFlag that are about the record, not about a message in it.
OUTER_BITS = WRAPPED | COMPRESSED | COMPRESSION_MASK
_COUNT = INNER_NUM.encode()
# The byte of sysFlag that has both bits.
_PLACE = HEAD_V4.places("sys_flag")[-1]


def may_hold_batches(data: bytes, starts: Sequence[int]) -> bool:
    """False when no record of ``data`` is an inner batch. ``starts`` are from `record_starts`.

    It costs some nanoseconds per record: INNER_BATCH is the bit of its byte that ASCII does not have.
    """
    if isinstance(starts, range):
        return not data[_PLACE :: starts.step].isascii()
    return not bytes([data[at + _PLACE] for at in starts]).isascii()


def inner_count(record: Record) -> int:
    """How many messages the record stands for in its queue. Raises ProtocolError when it does not say that."""
    return said_count(record.properties) if record.sys_flag & WRAPPED == WRAPPED else 1


def said_count(properties: bytes) -> int:
    """How many messages an inner batch has that has these encoded properties."""
    text = find_property(properties, _COUNT) or b""
    count = int(text) if text.isdigit() and len(text) < 6 else 0
    if not 0 < count <= MAX_INNER:
        raise ProtocolError(f"its property {INNER_NUM} is {text!r}, not a number from 1 to {MAX_INNER}")
    return count


def inner_records(record: Record) -> list[Record]:
    """The messages of an inner batch, each as a record of its own. Raises ProtocolError when it is damaged."""
    count = inner_count(record)
    body = record.body
    if record.sys_flag & COMPRESSED:
        body = decompressed(body, record.sys_flag)
    rows, end = decode_batch(body, 0, count + 1)
    if len(rows) != count or end != len(body):
        held = f"{len(rows)}" if end == len(body) else f"more than {count}"
        raise ProtocolError(f"it holds {held} messages where its property {INNER_NUM} says {count}")
    sys_flag = record.sys_flag & ~OUTER_BITS
    magic, queue_id, physical, topic = record.magic, record.queue_id, record.physical_offset, record.topic
    # From born_timestamp to prepared_transaction_offset.
    common = record[8:14]
    return [
        Record(
            OVERHEAD + len(content) + len(properties), magic, 0, queue_id, flag, offset, physical, sys_flag,
            *common, content, topic, properties,
        )
        for offset, (flag, content, properties) in enumerate(rows, record.queue_offset)
    ]  # fmt: skip


class Received(Protocol):
    """A `MessageExt`, which is made for the record that begins at some byte."""

    _record: Record | None


T = TypeVar("T", bound=Received)


def unwrapped(data: bytes, starts: Sequence[int], make: Callable[[int], T], first_offset: int = 0) -> list[T]:
    """The messages of records at ``starts``, of which some are inner batches.

    ``make`` gives a message object for the record that begins there. Messages of batches before ``first_offset`` are
    left out: a pull from the middle of a batch brings the whole. Raises ProtocolError when a batch is damaged.
    """
    found: list[T] = []
    left = CONTENT_BYTES
    for at in starts:
        if data[at + _PLACE] & WRAPPED != WRAPPED:
            found.append(make(at))
            continue
        batch = decode_record(data, at)
        try:
            records = inner_records(batch)
        except ProtocolError as error:
            raise ProtocolError(f"the inner batch at queue offset {batch.queue_offset} is damaged: {error}") from None
        if batch.sys_flag & COMPRESSED:
            left -= sum([record.size for record in records])
            if left < 0:
                raise ProtocolError(f"the inner batches of one answer hold more than {CONTENT_BYTES} bytes")
        for record in records[max(first_offset - batch.queue_offset, 0) :]:
            message = make(at)
            message._record = record
            found.append(message)
    return found
