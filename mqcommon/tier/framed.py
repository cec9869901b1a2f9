"""The frame of small objects: bytes that are damaged, or of another kind, are never taken for an object (pure).

    magic 4 | version 2 | zeros 2 | bytes of the body 4 | CRC-32 of all that is before it and of the body 4 | body

Big-endian. The body is CBOR, compressed by zlib.
"""

import struct
import zlib
from typing import Any, Final

import cbor2

from skylark.mqcommon.crc import large_crc32
from skylark.mqcommon.tier.bucket import DamagedObject, NewerFormat

_HEAD = struct.Struct(">4sHHI")
_CRC = struct.Struct(">I")
_BODY_AT = _HEAD.size + _CRC.size
_LEVEL: Final = 1
#: A body of more bytes is refused.
MAX_BODY_BYTES: Final = 256 * 1024 * 1024


def framed(magic: bytes, version: int, value: object) -> bytes:
    """``value``, which CBOR can hold, as the bytes of an object of the kind ``magic``."""
    body = zlib.compress(cbor2.dumps(value), _LEVEL)
    head = _HEAD.pack(magic, version, 0, len(body))
    return head + _CRC.pack(large_crc32(body, large_crc32(head))) + body


def unframed(magic: bytes, version: int, data: bytes, what: str) -> Any:
    """The value in ``data``. Raises DamagedObject; ``what`` names the object in the text."""
    if len(data) < _BODY_AT:
        raise DamagedObject(f"{what} has {len(data)} bytes only")
    found_magic, found_version, zeros, size = _HEAD.unpack_from(data)
    if found_magic != magic:
        raise DamagedObject(f"{what} does not begin with {magic!r}, but with {found_magic!r}")
    (crc,) = _CRC.unpack_from(data, _HEAD.size)
    body = data[_BODY_AT:]
    if zeros or len(body) != size or large_crc32(body, large_crc32(data[: _HEAD.size])) != crc:
        raise DamagedObject(f"{what} is damaged: its {len(data)} bytes do not match their CRC")
    if found_version > version:
        raise NewerFormat(f"{what} has format {found_version}: use a newer Skylark, which reads it")
    try:
        unpack = zlib.decompressobj()
        text = unpack.decompress(body, MAX_BODY_BYTES)
        if not unpack.eof or unpack.unused_data:
            raise DamagedObject(f"{what} is damaged: its body does not end where it should")
        return cbor2.loads(text)
    except (zlib.error, cbor2.CBORDecodeError, ValueError, RecursionError) as error:
        raise DamagedObject(f"{what} is damaged: {error}") from None
