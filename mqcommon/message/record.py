"""The commit-log record: what brokers store, slaves copy and pulls hand out.

 total 4 | magic 4 | bodyCRC 4 | queueId 4 | flag 4 | queueOffset 8 | physicalOffset 8 | sysFlag 4 | bornTimestamp 8
 bornHost 8/20 | storeTimestamp 8 | storeHost 8/20 | reconsumeTimes 4 | preparedTransactionOffset 8
 bodyLength 4 | body | topicLength 1 (V1) / 2 (V2) | topic | propertiesLength 2 | properties

Big-endian. Hosts are 20 bytes when sysFlag says IPv6. V2 is for topics longer than 127 bytes. A file that a record
no longer fits into ends in a filler: remaining size 4 | BLANK_MAGIC 4.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple
from zlib import crc32

from mqcommon.errors import ProtocolError
from mqcommon.message.flags import BORN_HOST_V6, STORE_HOST_V6

MAGIC_V1 = 0xDAA320A7
MAGIC_V2 = 0xDAA320AB
BLANK_MAGIC = 0xCBD43194
BLANK_BYTES = 8
MAX_TOPIC_V1 = 127
MAX_PROPERTIES = 32_767
# RocketMQ keeps 31 bits of a CRC32.
CRC_MASK = 0x7FFFFFFF

SIZE_MAGIC = struct.Struct(">II")
_HEADS = {(born, store): struct.Struct(f">IIIiiqqiq{born}sq{store}siqi") for born in (8, 20) for store in (8, 20)}
_HEAD_V4 = _HEADS[8, 8]
# By the length of both hosts.
_BATCH_HEADS = {hosts: struct.Struct(f">I4sI4siqq{32 + hosts}si") for hosts in (16, 28, 40)}
PROPERTIES_LENGTH = struct.Struct(">h")
_TOPIC_LENGTH_V2 = struct.Struct(">h")
MIN_RECORD = _HEAD_V4.size + 1 + 2
PHYSICAL_OFFSET_AT = 28
SYS_FLAG_AT = 36
STORE_TIMESTAMP_V4_AT = 56


class Record(NamedTuple):
    """One decoded record; ``topic`` and ``properties`` are text, hosts 8 or 20 raw bytes."""

    size: int
    magic: int
    body_crc: int
    queue_id: int
    flag: int
    queue_offset: int
    physical_offset: int
    sys_flag: int
    born_timestamp: int
    born_host: bytes
    store_timestamp: int
    store_host: bytes
    reconsume_times: int
    prepared_transaction_offset: int
    body: bytes
    topic: str
    properties: bytes


def topic_field(topic: str) -> tuple[int, bytes]:
    """(magic, length and bytes of the topic): the same for every record of a topic."""
    raw = topic.encode()
    if len(raw) <= MAX_TOPIC_V1:
        return MAGIC_V1, bytes((len(raw),)) + raw
    return MAGIC_V2, _TOPIC_LENGTH_V2.pack(len(raw)) + raw


def record_head(born_host: bytes, store_host: bytes) -> struct.Struct:
    """The layout of a record's fields before its body, for hosts of these lengths."""
    return _HEADS[len(born_host), len(store_host)]


class BatchHead:
    """The head of records that differ only in what a batch's messages differ in; packs half as many values."""

    __slots__ = ("common", "magic", "pack", "queue_id")

    def __init__(
        self,
        magic: int,
        queue_id: int,
        sys_flag: int,
        born_timestamp: int,
        born_host: bytes,
        store_timestamp: int,
        store_host: bytes,
        reconsume_times: int,
    ) -> None:
        born, store = len(born_host), len(store_host)
        # All fields from sysFlag to preparedTransactionOffset.
        self.common = struct.pack(
            f">iq{born}sq{store}siq",
            sys_flag,
            born_timestamp,
            born_host,
            store_timestamp,
            store_host,
            reconsume_times,
            0,
        )
        self.magic = struct.pack(">I", magic)
        self.queue_id = struct.pack(">i", queue_id)
        # Takes size, magic, body CRC, queueId, flag, queueOffset, physicalOffset, common, body length.
        self.pack = _BATCH_HEADS[born + store].pack


def record_physical_offset(record: bytes) -> int:
    """Where a stored record says that it lies in the log."""
    return int.from_bytes(record[PHYSICAL_OFFSET_AT : PHYSICAL_OFFSET_AT + 8], "big", signed=True)


def encode_record(
    magic: int,
    topic_part: bytes,
    queue_id: int,
    queue_offset: int,
    physical_offset: int,
    body: bytes,
    properties: bytes,
    flag: int,
    sys_flag: int,
    born_timestamp: int,
    born_host: bytes,
    store_timestamp: int,
    store_host: bytes,
    reconsume_times: int,
    prepared_transaction_offset: int,
) -> bytes:
    """The stored bytes. ``magic, topic_part`` come from `topic_field`; sysFlag's IPv6 bits must fit the hosts."""
    head = _HEAD_V4 if len(born_host) + len(store_host) == 16 else _HEADS[len(born_host), len(store_host)]
    body_length = len(body)
    properties_length = len(properties)
    return b"".join(
        (
            head.pack(
                head.size + body_length + len(topic_part) + 2 + properties_length,
                magic,
                crc32(body) & CRC_MASK,
                queue_id,
                flag,
                queue_offset,
                physical_offset,
                sys_flag,
                born_timestamp,
                born_host,
                store_timestamp,
                store_host,
                reconsume_times,
                prepared_transaction_offset,
                body_length,
            ),
            body,
            topic_part,
            PROPERTIES_LENGTH.pack(properties_length),
            properties,
        )
    )


def decode_record(data: bytes | memoryview, at: int = 0, *, check_crc: bool = True) -> Record:
    """The record that starts at ``at``; ProtocolError when the bytes there are no whole, sound record."""
    try:
        size, magic = SIZE_MAGIC.unpack_from(data, at)
        if magic not in (MAGIC_V1, MAGIC_V2):
            raise ProtocolError(f"magic {magic:#010x} is no record's")
        if size < MIN_RECORD or at + size > len(data):
            raise ProtocolError(f"record of {size} bytes does not fit into {len(data) - at}")
        sys_flag = int.from_bytes(data[at + SYS_FLAG_AT : at + SYS_FLAG_AT + 4], "big")
        head = _HEADS[20 if sys_flag & BORN_HOST_V6 else 8, 20 if sys_flag & STORE_HOST_V6 else 8]
        fields = head.unpack_from(data, at)
        body_at = at + head.size
        body_length = fields[-1]
        end = at + size
        if body_length < 0 or body_at + body_length + 3 > end:
            raise ProtocolError(f"body of {body_length} bytes does not fit into a record of {size}")
        body = bytes(data[body_at : body_at + body_length])
        if check_crc and crc32(body) & CRC_MASK != fields[2]:
            raise ProtocolError("body does not match its CRC")
        topic_at = body_at + body_length
        if magic == MAGIC_V1:
            topic_length, topic_at = data[topic_at], topic_at + 1
        else:
            topic_length, topic_at = _TOPIC_LENGTH_V2.unpack_from(data, topic_at)[0], topic_at + 2
        properties_at = topic_at + topic_length + 2
        (properties_length,) = PROPERTIES_LENGTH.unpack_from(data, properties_at - 2)
        if topic_length < 0 or properties_length < 0 or properties_at + properties_length != end:
            raise ProtocolError(f"topic and properties do not end where the record of {size} bytes does")
        topic = bytes(data[topic_at : topic_at + topic_length]).decode()
    except (struct.error, UnicodeDecodeError, IndexError) as error:
        raise ProtocolError(f"record cannot be read: {error}") from None
    return Record._make((*fields[:-1], body, topic, bytes(data[properties_at:end])))


def split_records(data: bytes) -> Iterator[tuple[int, int]]:
    """(start, size) of each record in ``data``, which must hold whole records only."""
    at, end = 0, len(data)
    unpack = SIZE_MAGIC.unpack_from
    while at + BLANK_BYTES <= end:
        size, magic = unpack(data, at)
        if size < MIN_RECORD or at + size > end or magic not in (MAGIC_V1, MAGIC_V2):
            break
        yield at, size
        at += size
    if at != end:
        raise ProtocolError(f"no record at byte {at} of {end}")
