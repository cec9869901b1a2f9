"""Header type 1, ROCKETMQ: the binary header of Java clients with rocketmq.serialize.type=ROCKETMQ.

 code  language  version  opaque  flag   remark           ext
 short byte      short    int     int    int n | n bytes  int n | n bytes of (short k | key | int v | value)*

Text is UTF-8; a length of 0 means null. Codes above 32767 wrap here, so such requests travel as JSON.
"""

from struct import Struct, error
from typing import Final

from skylark.mqcommon.errors import ProtocolError
from skylark.remoting.protocol.command import (
    LANGUAGE_ORDINALS,
    OTHER_ORDINAL,
    ROCKETMQ,
    Command,
    language_name,
    text_ext,
)

_HEAD: Final = Struct(">hBhiii")  # up to and including the length of the remark
_HEAD_OUT: Final = Struct(">HBHIII")
_LENGTH: Final = Struct(">i")
_KEY_LENGTH: Final = Struct(">h")
_MAX_KEY: Final = 0x7FFF
#: Fields are read one by one on the event loop. No request or answer has a hundred of them.
MAX_EXT_FIELDS: Final = 1_000


def encode_header(command: Command) -> bytes:
    """The header of ``command``; None among the ext values means that the field is left out."""
    remark = command.remark.encode() if command.remark else b""
    pairs: list[bytes] = []
    for name, value in text_ext(command.ext).items() if command.ext else ():
        key = name.encode()
        text = value.encode()
        if len(key) > _MAX_KEY:
            raise ValueError(f"ext field name of {len(key)} bytes is longer than {_MAX_KEY}")
        pairs += (_KEY_LENGTH.pack(len(key)), key, _LENGTH.pack(len(text)), text)
    ext = b"".join(pairs)
    head = _HEAD_OUT.pack(
        command.code & 0xFFFF,
        LANGUAGE_ORDINALS.get(command.language, OTHER_ORDINAL),
        command.version & 0xFFFF,
        command.opaque & 0xFFFF_FFFF,
        command.flag & 0xFFFF_FFFF,
        len(remark),
    )
    return b"".join((head, remark, _LENGTH.pack(len(ext)), ext))


def decode_header(data: bytes) -> Command:
    """The command of a header, its body still empty. Raises ProtocolError when the header cannot be read."""
    try:
        code, language, version, opaque, flag, length = _HEAD.unpack_from(data, 0)
        at = _HEAD.size
        _check(length, len(data) - at)
        remark = str(data[at : at + length], "utf-8") if length else None
        at += length
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        _check(length, len(data) - at)
        ext = _decode_ext(data, at, at + length) if length else None
    except (error, UnicodeDecodeError) as cause:
        raise ProtocolError(f"binary header is damaged: {cause}") from None
    return Command(code, ext, b"", flag, opaque, remark, ROCKETMQ, language_name(language), version)


def _decode_ext(data: bytes, at: int, end: int) -> dict[str, str]:
    ext: dict[str, str] = {}
    while at < end:
        if len(ext) == MAX_EXT_FIELDS:
            raise ProtocolError(f"binary header has more than {MAX_EXT_FIELDS} ext fields")
        (length,) = _KEY_LENGTH.unpack_from(data, at)
        at += 2
        _check(length, end - at)
        name = str(data[at : at + length], "utf-8")
        at += length
        (length,) = _LENGTH.unpack_from(data, at)
        at += 4
        _check(length, end - at)
        ext[name] = str(data[at : at + length], "utf-8")
        at += length
    return ext


def _check(length: int, left: int) -> None:
    if not 0 <= length <= left:
        raise ProtocolError(f"binary header is damaged: a length of {length}, with {left} bytes left")
