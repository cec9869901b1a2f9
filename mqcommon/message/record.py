"""The commit-log record, which brokers store, slaves copy and pulls return. Its layout is in layout.py."""

import struct
from collections.abc import Callable
from typing import NamedTuple
from zlib import crc32

from skylark.mqcommon.errors import ProtocolError
from skylark.mqcommon.message.flags import HOSTS_V6
from skylark.mqcommon.message.layout import (
    CRC_MASK,
    HEAD_V4,
    HEADS,
    MAGIC_V1,
    MAGIC_V2,
    MAX_TOPIC_V1,
    MIN_RECORD,
    PROPERTIES_LENGTH,
    TAIL_BYTES_V1,
    TOPIC_LENGTH_V1,
    TOPIC_LENGTH_V2,
    Raw,
)

_HEADS = {bits: head.all for bits, head in HEADS.items()}
# By the lengths of born host and store host: the struct of a head, and the size of a record without body, topic and
# properties.
_ENCODERS: dict[int, dict[int, tuple[Callable[..., bytes], int]]] = {}
for _head in HEADS.values():
    _born_bytes, _store_bytes = _head.host_bytes
    _ENCODERS.setdefault(_born_bytes, {})[_store_bytes] = _head.all.pack, _head.size + PROPERTIES_LENGTH.size
_unpack_v4, _V4_BYTES = HEAD_V4.all.unpack_from, HEAD_V4.size
_PHYSICAL_OFFSET = HEAD_V4.reader("physical_offset")
# Bound methods of imported objects: Python 3.11 calls them faster when they are bound once.
_pack_properties_length = PROPERTIES_LENGTH.pack
_unpack_properties_length = PROPERTIES_LENGTH.unpack_from
_TOPIC_LENGTH_BYTES_V1 = TOPIC_LENGTH_V1.size
_TOPIC_LENGTH_BYTES_V2 = TOPIC_LENGTH_V2.size
_PROPERTIES_LENGTH_BYTES = PROPERTIES_LENGTH.size


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


_SYS_FLAG_PLACE = Record._fields.index("sys_flag")
# Makes a named tuple without a call of Python, which takes a third of the time.
_new = tuple.__new__


def topic_field(topic: str) -> tuple[int, bytes]:
    """(magic, length and bytes of the topic), which are the same for every record of a topic."""
    raw = topic.encode()
    if len(raw) <= MAX_TOPIC_V1:
        return MAGIC_V1, TOPIC_LENGTH_V1.pack(len(raw)) + raw
    return MAGIC_V2, TOPIC_LENGTH_V2.pack(len(raw)) + raw


_COMMON = Raw("sys_flag", "prepared_transaction_offset")
_BATCH_FIELDS = (
    *("size", Raw("magic"), "body_crc", Raw("queue_id"), "flag", "queue_offset", "physical_offset", _COMMON),
    "body_length",
)
_BATCH_HEADS = {head.host_bytes: (head.reader(*_BATCH_FIELDS).pack, head.part(_COMMON).pack) for head in HEADS.values()}
_MAGIC = HEAD_V4.part(Raw("magic"))
_QUEUE_ID = HEAD_V4.part(Raw("queue_id"))


class BatchHead:
    """The head of the records of one batch: the common fields are packed once, so half as many values per message."""

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
        # `pack` takes size, magic, body CRC, queueId, flag, queueOffset, physicalOffset, common, body length.
        self.pack, pack_common = _BATCH_HEADS[len(born_host), len(store_host)]
        self.common = pack_common(sys_flag, born_timestamp, born_host, store_timestamp, store_host, reconsume_times, 0)
        self.magic = _MAGIC.pack(magic)
        self.queue_id = _QUEUE_ID.pack(queue_id)


def record_physical_offset(record: bytes) -> int:
    """The offset in the log that a stored record has in its own field."""
    return int(_PHYSICAL_OFFSET.unpack_from(record)[0])


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
    pack, size = _ENCODERS[len(born_host)][len(store_host)]
    body_length = len(body)
    properties_length = len(properties)
    return b"".join(
        (
            pack(
                size + body_length + len(topic_part) + properties_length,
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
            _pack_properties_length(properties_length),
            properties,
        )
    )


def decode_record(data: bytes | memoryview, at: int = 0, *, check_crc: bool = True) -> Record:
    """The record that starts at ``at``. Raises ProtocolError when the bytes there are not a whole, intact record."""
    try:
        # By far the most records have hosts of IPv4. The head of others is no shorter.
        fields = _unpack_v4(data, at)
        size, magic = fields[0], fields[1]
        if magic not in (MAGIC_V1, MAGIC_V2):
            raise ProtocolError(f"magic {magic:#010x} is not a record's")
        if size < MIN_RECORD or at + size > len(data):
            raise ProtocolError(f"record of {size} bytes does not fit into {len(data) - at}")
        if not isinstance(data, bytes):
            data, at = bytes(data[at : at + size]), 0
        body_at = at + _V4_BYTES
        if hosts := fields[_SYS_FLAG_PLACE] & HOSTS_V6:
            head = _HEADS[hosts]
            fields, body_at = head.unpack_from(data, at), at + head.size
        body_length = fields[-1]
        end = at + size
        if body_length < 0 or body_at + body_length + TAIL_BYTES_V1 > end:
            raise ProtocolError(f"body of {body_length} bytes does not fit into a record of {size}")
        body = data[body_at : body_at + body_length]
        if check_crc and crc32(body) & CRC_MASK != fields[2]:
            raise ProtocolError("body does not match its CRC")
        topic_at = body_at + body_length
        if magic == MAGIC_V1:
            topic_length, topic_at = data[topic_at], topic_at + _TOPIC_LENGTH_BYTES_V1
        else:
            (topic_length,) = TOPIC_LENGTH_V2.unpack_from(data, topic_at)
            topic_at += _TOPIC_LENGTH_BYTES_V2
        properties_length_at = topic_at + topic_length
        (properties_length,) = _unpack_properties_length(data, properties_length_at)
        properties_at = properties_length_at + _PROPERTIES_LENGTH_BYTES
        if topic_length < 0 or properties_length < 0 or properties_at + properties_length != end:
            raise ProtocolError(f"topic and properties do not end where the record of {size} bytes does")
        topic = data[topic_at : topic_at + topic_length].decode()
    except (struct.error, UnicodeDecodeError, IndexError) as error:
        raise ProtocolError(f"record cannot be read: {error}") from None
    return _new(Record, fields[:-1] + (body, topic, data[properties_at:end]))  # noqa: RUF005
