"""The body of a batch send: messages of one topic and queue, one after another.

totalSize 4 | magic 4 (0) | bodyCRC 4 (0) | flag 4 | bodyLength 4 | body | propertiesLength 2 | properties
"""

import struct
from collections.abc import Iterable, Sequence
from itertools import repeat

from skylark.mqcommon.errors import ProtocolError
from skylark.mqcommon.message.columns import MIN_RUN, alike

_HEAD = struct.Struct(">iiiii")
# totalSize, flag, bodyLength: the only fields that readers use.
_HEAD_READ = struct.Struct(">i8xii")
_LENGTH = struct.Struct(">h")
#: Where fields of a message begin, for readers of many messages at once (sdk/arrow/decode.py).
FLAG_AT, BODY_LENGTH_AT, BODY_AT = 12, 16, _HEAD.size
#: Bytes of a message besides its body and properties.
OVERHEAD = _HEAD.size + _LENGTH.size
# Each message costs some 10 us and, while the batch is processed, some 200 bytes of memory, however short it is.
MAX_MESSAGES = 30_000


def encode_batch(messages: Iterable[tuple[int, bytes, bytes]]) -> bytes:
    """The batch body of (flag, body, encoded properties) rows."""
    parts: list[bytes] = []
    pack_head = _HEAD.pack
    pack_length = _LENGTH.pack
    head = length = b""
    # What ``head`` and ``length`` were made for, to use them again: most messages of a batch have one size.
    of_flag = of_body = of_properties = -1
    for flag, body, properties in messages:
        body_length = len(body)
        properties_length = len(properties)
        if body_length != of_body or properties_length != of_properties or flag != of_flag:
            head = pack_head(OVERHEAD + body_length + properties_length, 0, 0, flag, body_length)
            length = pack_length(properties_length)
            of_flag, of_body, of_properties = flag, body_length, properties_length
        parts += head, body, length, properties
    return b"".join(parts)


def decode_batch(data: bytes, at: int = 0, most: int = MAX_MESSAGES) -> tuple[list[tuple[int, bytes, bytes]], int]:
    """(flag, body, encoded properties) of at most ``most`` messages from byte ``at`` on, and where the messages end.

    Raises ProtocolError when ``data`` is not a batch body.
    """
    found = one_shape(data, at, most)
    if found is not None:
        shape, end = found
        return list(shape.iter_unpack(data[at:end])), end
    rows: list[tuple[int, bytes, bytes]] = []
    add = rows.append
    unpack_head = _HEAD_READ.unpack_from
    unpack_length = _LENGTH.unpack_from
    end = len(data)
    try:
        for _ in repeat(None, most):
            if at == end:
                break
            size, flag, body_length = unpack_head(data, at)
            body_at = at + 20
            body_end = body_at + body_length
            (properties_length,) = unpack_length(data, body_end)
            at += size
            if body_length < 0 or properties_length < 0 or body_end + 2 + properties_length != at or at > end:
                raise ProtocolError(f"message {len(rows)} of the batch does not add up to its {size} bytes")
            add((flag, data[body_at:body_end], data[body_end + 2 : at]))
    except struct.error:
        raise ProtocolError(f"the batch ends within message {len(rows)}") from None
    return rows, at


def one_shape(data: bytes, at: int, most: int) -> tuple[struct.Struct, int] | None:
    """(what unpacks flag, body and properties of each message, where at most ``most`` messages from ``at`` on end).

    None unless all messages have the lengths of the first. A producer's messages often do, and are then read in a fifth
    of the time.
    """
    rest = len(data) - at
    if rest < MIN_RUN * OVERHEAD:
        return None
    size, _, body_length = _HEAD_READ.unpack_from(data, at)
    properties_length = size - OVERHEAD - body_length
    if min(size, body_length, properties_length) < 0 or size * MIN_RUN > rest or rest % size:
        return None
    body_end = BODY_AT + body_length
    if _LENGTH.unpack_from(data, at + body_end) != (properties_length,):
        return None
    count = min(rest // size, most)
    end = at + count * size
    whole = data[at:end]
    if alike(whole, size, count, (*range(4), *range(BODY_LENGTH_AT, BODY_AT), body_end, body_end + 1)) < count:
        return None
    shape = struct.Struct(f">{FLAG_AT}xi{BODY_AT - BODY_LENGTH_AT}x{body_length}s2x{properties_length}s")
    return shape, end


def encode_offsets(offsets: Sequence[int]) -> bytes:
    """The physical offsets of a stored batch, 8 bytes each: the answer's body to a Skylark client."""
    return struct.pack(f">{len(offsets)}q", *offsets)


def decode_offsets(data: bytes) -> tuple[int, ...]:
    """The physical offsets of a stored batch. Raises ProtocolError when ``data`` is not a multiple of 8 bytes."""
    try:
        return struct.unpack(f">{len(data) // 8}q", data)
    except struct.error:
        raise ProtocolError(f"{len(data)} bytes are not a list of offsets") from None
