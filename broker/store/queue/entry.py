"""One entry in a file of a consume queue: for a message, or in a batch queue for a whole batch. Pure.

message: physicalOffset 8 | size 4 | tagsCode 8
batch:   physicalOffset 8 | size 4 | tagsCode 8 | storeTime 8 | queue offset of its first message 8 | messages 2
         | compactedOffset 4 (-1) | reserved 4
"""

import mmap
import struct
from collections.abc import Sequence

from skylark.mqcommon.errors import ProtocolError
from skylark.mqcommon.message.batch import OVERHEAD
from skylark.mqcommon.message.inner import MAX_INNER, inner_count
from skylark.mqcommon.message.properties import find_property
from skylark.mqcommon.message.record import Record

ENTRY = struct.Struct(">qiq")
ENTRY_BYTES = ENTRY.size
TAGS_CODE = struct.Struct(">q")
TAGS_CODE_AT = ENTRY_BYTES - TAGS_CODE.size
# The size in a blank entry. RocketMQ fills a file with them before the first message of a queue.
BLANK_SIZE = 0x7FFFFFFF

BATCH_ENTRY = struct.Struct(">qiqqqhii")
BATCH_ENTRY_BYTES = BATCH_ENTRY.size
NOT_COMPACTED = -1

#: The tags code of a batch whose messages have different tags. RocketMQ treats this code as not comparable.
MIXED_TAGS = -(1 << 31) - 1
_TAGS = b"TAGS"
_UNIQ_KEY = b"UNIQ_KEY\x01"
_SIZE = struct.Struct(">i")
# Of a message in a batch: where its body's length is, where the body begins, and the size of its properties' length.
_BODY_LENGTH_AT, _BODY_AT, _LENGTH_BYTES = 16, 20, 2


def messages_in(record: Record) -> int:
    """How many messages a record of a batch queue holds. A record without a number counts as one message."""
    try:
        return inner_count(record)
    except ProtocolError:
        return 1


def uniform_rows(data: bytes | mmap.mmap, start: int, end: int) -> int:
    """How many messages a batch has if they are of one size, with a unique key as their only property; 0 otherwise.

    The batch is ``data`` from ``start`` to ``end``. The bytes that must be the same in all messages are compared column
    by column: that costs some 50 ns a message.
    """
    length = end - start
    if length < OVERHEAD:
        return 0
    size, body_length = _SIZE.unpack_from(data, start)[0], _SIZE.unpack_from(data, start + _BODY_LENGTH_AT)[0]
    length_at = _BODY_AT + body_length
    key_at = length_at + _LENGTH_BYTES
    if body_length < 0 or key_at + len(_UNIQ_KEY) >= size or length % size:
        return 0
    first, count = data[start : start + size], length // size
    if count > MAX_INNER or int.from_bytes(first[length_at:key_at], "big") != size - key_at:
        return 0
    if not first.startswith(_UNIQ_KEY, key_at) or first.find(b"\x02", key_at) != size - 1:
        return 0
    columns = *range(4), *range(_BODY_LENGTH_AT, _BODY_AT), *range(length_at, key_at + len(_UNIQ_KEY)), size - 1
    return count if all([data[start + at : end : size].count(first[at]) == count for at in columns]) else 0


def shared_tag(rows: Sequence[tuple[int, bytes, bytes]]) -> bytes | None:
    """The tag that all (flag, body, properties) rows have; None if some have none, or another one."""
    tags = {find_property(properties, _TAGS) or b"" for _, _, properties in rows}
    return tags.pop() or None if len(tags) == 1 else None
