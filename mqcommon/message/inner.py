"""Inner batches: one record holds a whole batch of messages, as queues of RocketMQ's type BatchCQ have them. Pure.

The record's sysFlag has INNER_BATCH and NEED_UNWRAP. Its body has the form of a batch send (batch.py), and may be
compressed as a whole. Its property INNER_NUM is the number of messages. Message ``i`` has the queue offset of the
record + ``i``, and flag, body and properties of its own. All other fields it has from the record, also the place in the
log. A record with INNER_BATCH alone is one message, as RocketMQ's clients see it.
Neighbours: message.py (message objects), sdk/arrow/decode.py (columns).
"""

from collections.abc import Callable, Sequence
from struct import Struct
from typing import Protocol, TypeVar

from skylark.mqcommon.errors import ProtocolError
from skylark.mqcommon.message.batch import OVERHEAD, decode_batch, one_shape
from skylark.mqcommon.message.compression import decompressed
from skylark.mqcommon.message.flags import COMPRESSED, COMPRESSION_MASK, WRAPPED
from skylark.mqcommon.message.layout import HEAD_V4
from skylark.mqcommon.message.properties import INNER_NUM, find_property
from skylark.mqcommon.message.record import Record, decode_record

# Entries of BatchCQ queues have 16 bits for the number of messages.
MAX_INNER = 32_767
# The most bytes that the compressed batches of one buffer may hold together.
CONTENT_BYTES = 256 * 1024 * 1024
#: Bits of sysFlag that are about the record, not about a message in it.
OUTER_BITS = WRAPPED | COMPRESSED | COMPRESSION_MASK
_COUNT = INNER_NUM.encode()
# Flag, body, encoded properties.
Row = tuple[int, bytes, bytes]
# The byte of sysFlag that holds both bits.
_PLACE = HEAD_V4.places("sys_flag")[-1]


def may_hold_batches(data: bytes, starts: Sequence[int]) -> bool:
    """False when no record of ``data`` is an inner batch. ``starts`` are from `record_starts`.

    It costs some nanoseconds per record: INNER_BATCH is the bit of its byte that ASCII does not have.
    """
    if isinstance(starts, range):
        return not data[_PLACE :: starts.step].isascii()
    return not bytes([data[at + _PLACE] for at in starts]).isascii()


def inner_count(record: Record) -> int:
    """How many messages the record is in its queue. Raises ProtocolError when its property INNER_NUM is wrong."""
    return said_count(record.properties) if record.sys_flag & WRAPPED == WRAPPED else 1


def said_count(properties: bytes) -> int:
    """How many messages an inner batch with these encoded properties has."""
    text = find_property(properties, _COUNT) or b""
    count = int(text) if text.isdigit() and len(text) < 6 else 0
    if not 0 < count <= MAX_INNER:
        raise ProtocolError(f"its property {INNER_NUM} is {text!r}, not a number from 1 to {MAX_INNER}")
    return count


class InnerBatch:
    """The messages of an inner batch, each of which is made a record when it is asked for.

    Raises ProtocolError when the batch is damaged.
    """

    __slots__ = ("_body", "_count", "_outer", "_rows", "_shape")

    def __init__(self, outer: Record) -> None:
        count = self._count = inner_count(outer)
        body = outer.body
        if outer.sys_flag & COMPRESSED:
            body = decompressed(body, outer.sys_flag)
        self._outer, self._body = outer, body
        # One of the two is set: the struct of messages of one shape, or a row for each message.
        self._shape: Struct | None = None
        self._rows: list[Row] = []
        if (found := one_shape(body, 0, count + 1)) is not None:
            self._shape, end = found
            held = end // self._shape.size
        else:
            self._rows, end = decode_batch(body, 0, count + 1)
            held = len(self._rows)
        if held != count or end != len(body):
            said = f"{held}" if end == len(body) else f"more than {count}"
            raise ProtocolError(f"it holds {said} messages where its property {INNER_NUM} says {count}")

    def __len__(self) -> int:
        return self._count

    @property
    def content_bytes(self) -> int:
        """The bytes of the batch's messages, decompressed."""
        return len(self._body)

    def record(self, number: int) -> Record:
        """The message with this number, from 0 on, as a record of its own."""
        shape, outer = self._shape, self._outer
        row: Row = self._rows[number] if shape is None else shape.unpack_from(self._body, number * shape.size)
        flag, body, properties = row
        return Record(
            OVERHEAD + len(body) + len(properties),
            outer.magic,
            0,
            outer.queue_id,
            flag,
            outer.queue_offset + number,
            outer.physical_offset,
            outer.sys_flag & ~OUTER_BITS,
            outer.born_timestamp,
            outer.born_host,
            outer.store_timestamp,
            outer.store_host,
            outer.reconsume_times,
            outer.prepared_transaction_offset,
            body,
            outer.topic,
            properties,
        )


def inner_records(record: Record) -> list[Record]:
    """The messages of an inner batch, each as a record of its own. Raises ProtocolError when it is damaged."""
    batch = InnerBatch(record)
    return [batch.record(number) for number in range(len(batch))]


class Received(Protocol):
    """A `MessageExt`, which is made for the record that begins at some byte."""

    _inner: InnerBatch
    _row: int


T = TypeVar("T", bound=Received)


def unwrapped(data: bytes, starts: Sequence[int], make: Callable[[int], T], first_offset: int = 0) -> list[T]:
    """The messages of records at ``starts``, of which some are inner batches.

    ``make`` gives a message object for the record that begins there. Messages of batches before ``first_offset`` are
    left out: a pull from the middle of a batch brings the whole. Raises ProtocolError when a batch is damaged.
    """
    found: list[T] = []
    add = found.append
    left = CONTENT_BYTES
    for at in starts:
        if data[at + _PLACE] & WRAPPED != WRAPPED:
            add(make(at))
            continue
        outer = decode_record(data, at)
        try:
            batch = InnerBatch(outer)
        except ProtocolError as error:
            raise ProtocolError(f"the inner batch at queue offset {outer.queue_offset} is damaged: {error}") from None
        if outer.sys_flag & COMPRESSED:
            left -= batch.content_bytes
            if left < 0:
                raise ProtocolError(f"the inner batches of one answer hold more than {CONTENT_BYTES} bytes")
        for row in range(max(first_offset - outer.queue_offset, 0), len(batch)):
            message = make(at)
            message._inner = batch
            message._row = row
            add(message)
    return found
