"""Stored messages that are alike, as columns. Pure.

What a producer sends one after the other mostly differs in unique keys, bodies, places and times only. One struct reads
all such records, without an object for each.
"""

from functools import lru_cache
from struct import Struct
from typing import Final, NamedTuple
from zlib import crc32

from skylark.mqcommon.errors import ProtocolError
from skylark.mqcommon.message.flags import COMPRESSED, HOSTS_V6, WRAPPED
from skylark.mqcommon.message.layout import CRC_MASK, HEAD_V4, Raw
from skylark.mqcommon.message.properties import UNIQ_KEY, property_place
from skylark.mqcommon.message.record import Record, decode_record
from skylark.mqproxy.wire.fields import FIRST_MS, LAST_MS

_KEY_NAME: Final = UNIQ_KEY.encode()
_UNUSUAL: Final = COMPRESSED | HOSTS_V6 | WRAPPED
# The columns before the body. Columns of raw bytes are the same in records that are alike.
_HEAD: Final = HEAD_V4.format(
    Raw("size", "magic"),
    "body_crc",
    Raw("queue_id", "flag"),
    "queue_offset",
    "physical_offset",
    Raw("sys_flag"),
    "born_timestamp",
    "born_host",
    "store_timestamp",
    Raw("store_host", "body_length"),
)


class Columns(NamedTuple):
    """The fields in which messages differ that are alike; ``first`` is the first of their records."""

    first: Record
    keys: tuple[bytes, ...]
    bodies: tuple[bytes, ...]
    queue_offsets: tuple[int, ...]
    physical_offsets: tuple[int, ...]
    born_ms: tuple[int, ...]
    stored_ms: tuple[int, ...]


def columns_of(data: bytes) -> Columns | None:
    """The records of ``data``; None unless they are at least two, and alike, whole and sound.

    Also None for records that are compressed, or inner batches, or have a host with IPv6, or a time that protobuf does
    not have.
    """
    try:
        first = decode_record(data)
    except ProtocolError:
        return None
    count, rest = divmod(len(data), first.size)
    if rest or count < 2 or first.sys_flag & _UNUSUAL:
        return None
    _, key_at, key_end = property_place(first.properties, _KEY_NAME)
    body_bytes, key_bytes, after_bytes = len(first.body), key_end - key_at, len(first.properties) - key_end
    before_bytes = first.size - HEAD_V4.size - body_bytes - key_bytes - after_bytes
    rows = _struct(body_bytes, before_bytes, key_bytes, after_bytes).iter_unpack(data)
    sizes, crcs, queues, offsets, places, flags, born, born_hosts, stored, rests, bodies, befores, keys, afters = zip(
        *rows, strict=True
    )
    for column in (sizes, queues, flags, born_hosts, rests, befores, afters):
        if column.count(column[0]) != count:
            return None
    # With the end of a property in the key's place a record has other properties.
    if b"\x02" in b"".join(keys) or not FIRST_MS <= min(*born, *stored) <= max(*born, *stored) <= LAST_MS:
        return None
    if [crc32(body) & CRC_MASK for body in bodies] != [*crcs]:
        return None
    return Columns(first, keys, bodies, offsets, places, born, stored)


@lru_cache(maxsize=256)
def _struct(body_bytes: int, before_bytes: int, key_bytes: int, after_bytes: int) -> Struct:
    return Struct(f"{_HEAD}{body_bytes}s{before_bytes}s{key_bytes}s{after_bytes}s")
