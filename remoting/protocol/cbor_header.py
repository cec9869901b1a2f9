"""Header type 0x43, CBOR: between Skylark and Skylark, once both have agreed to it.

[code, language ordinal, version, opaque, flag, remark | null, ext map | null]

Ext values keep their types: integers, booleans and text. Bodies that are JSON elsewhere are CBOR here.
"""

from typing import Final

from common.errors import ProtocolError
from remoting.protocol import strict_cbor
from remoting.protocol.command import (
    CBOR,
    LANGUAGE_ORDINALS,
    OTHER_ORDINAL,
    Command,
    language_name,
)

_MEMBERS: Final = 7
_HEADER_DEPTH: Final = 2  # the array and the ext map; ext values are plain


def encode_header(command: Command) -> bytes:
    """The header of ``command``; None among the ext values means that the field is left out."""
    ext = command.ext
    if ext is not None and None in ext.values():
        ext = {name: value for name, value in ext.items() if value is not None}
    return strict_cbor.dumps(
        (
            command.code,
            LANGUAGE_ORDINALS.get(command.language, OTHER_ORDINAL),
            command.version,
            command.opaque,
            command.flag,
            command.remark,
            ext,
        )
    )


def decode_header(data: bytes) -> Command:
    """The command of a header, its body still empty."""
    head = strict_cbor.loads(data, text_keys=True, max_depth=_HEADER_DEPTH)
    if type(head) is not list or len(head) != _MEMBERS:
        raise ProtocolError("CBOR header is not an array of seven")
    code, language, version, opaque, flag, remark, ext = head
    if not (type(code) is type(language) is type(version) is type(opaque) is type(flag) is int):
        raise ProtocolError("a number of the CBOR header is no integer")
    if (ext is not None and type(ext) is not dict) or (remark is not None and type(remark) is not str):
        raise ProtocolError("ext or remark of the CBOR header is of a wrong type")
    return Command(code, ext, b"", flag, opaque, remark, CBOR, language_name(language), version)
