"""Header type 0x43, CBOR: between Skylark and Skylark, once both have agreed to it.

[code, language ordinal, version, opaque, flag, remark | null, ext map | null]

Ext values keep their types: integers, booleans and text. Bodies that are JSON elsewhere are CBOR here.
The five numbers are written in fixed widths with one struct, which is valid CBOR and takes half the time. Any width is
read.
"""

from struct import Struct, error
from typing import Final

from skylark.mqcommon.errors import ProtocolError
from skylark.remoting.protocol import strict_cbor
from skylark.remoting.protocol.command import (
    CBOR,
    LANGUAGE_ORDINALS,
    OTHER_ORDINAL,
    Command,
    language_name,
)

_MEMBERS: Final = 7
_ARRAY_OF_SEVEN: Final = 0x87
_UINT8: Final = 0x18
_UINT16: Final = 0x19
_UINT32: Final = 0x1A
_NULL: Final = b"\xf6"
_HEAD: Final = Struct(">B BI BB BH BI BB")  # each number after the byte that tells its width
_HEADER_DEPTH: Final = 2  # the array and the ext map; ext values are plain


def encode_header(command: Command) -> bytes:
    """The header of ``command``; None among the ext values means that the field is left out."""
    ext = command.ext
    if ext is not None and None in ext.values():
        ext = {name: value for name, value in ext.items() if value is not None}
    dumps = strict_cbor.dumps
    language = LANGUAGE_ORDINALS.get(command.language, OTHER_ORDINAL)
    try:
        head = _HEAD.pack(
            _ARRAY_OF_SEVEN,
            _UINT32,
            command.code,
            _UINT8,
            language,
            _UINT16,
            command.version,
            _UINT32,
            command.opaque,
            _UINT8,
            command.flag,
        )
    except error:  # a negative number, or a large one
        numbers = (command.code, language, command.version, command.opaque, command.flag)
        head = bytes((_ARRAY_OF_SEVEN,)) + b"".join(map(dumps, numbers))
    remark = _NULL if command.remark is None else dumps(command.remark)
    return b"".join((head, remark, _NULL if ext is None else dumps(ext)))


def decode_header(data: bytes) -> Command:
    """The command of a header, its body still empty. Raises ProtocolError when the header cannot be read."""
    head = strict_cbor.loads(data, text_keys=True, max_depth=_HEADER_DEPTH)
    if type(head) is not list or len(head) != _MEMBERS:
        raise ProtocolError("CBOR header is not an array of seven")
    code, language, version, opaque, flag, remark, ext = head
    if not (type(code) is type(language) is type(version) is type(opaque) is type(flag) is int):
        raise ProtocolError("a number of the CBOR header is not an integer")
    if (ext is not None and type(ext) is not dict) or (remark is not None and type(remark) is not str):
        raise ProtocolError("ext or remark of the CBOR header is of a wrong type")
    return Command(code, ext, b"", flag, opaque, remark, CBOR, language_name(language), version)
