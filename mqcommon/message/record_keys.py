"""The keys by which a record is found: its unique key, and the words of KEYS. Pure.

Neighbours: broker/store/index/ (RocketMQ's index), mqcommon/tier/ (the keys of segments).
"""

from contextlib import suppress

from skylark.mqcommon.errors import ProtocolError
from skylark.mqcommon.message.batch import decode_batch
from skylark.mqcommon.message.compression import decompressed
from skylark.mqcommon.message.flags import COMPRESSED, WRAPPED
from skylark.mqcommon.message.inner import MAX_INNER
from skylark.mqcommon.message.properties import find_property
from skylark.mqcommon.message.record import Record


def record_keys(record: Record) -> list[bytes]:
    """The keys of a record, each once. An inner batch has its own keys and the keys of its messages."""
    keys = index_keys(record.properties)
    if record.sys_flag & WRAPPED != WRAPPED:
        return keys
    # A batch that cannot be taken apart is found by its own key only.
    with suppress(ProtocolError):
        body = decompressed(record.body, record.sys_flag) if record.sys_flag & COMPRESSED else record.body
        rows, _ = decode_batch(body, 0, MAX_INNER)
        for _, _, properties in rows:
            keys += index_keys(properties)
    return list(dict.fromkeys(keys))


def index_keys(properties: bytes) -> list[bytes]:
    """The unique key and the words of KEYS in encoded properties."""
    keys: list[bytes] = []
    for name, many in ((b"UNIQ_KEY", False), (b"KEYS", True)):
        value = find_property(properties, name)
        if value:
            keys += value.split() if many else [value]
    return keys
