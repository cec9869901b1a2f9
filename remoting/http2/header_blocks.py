"""Header blocks (RFC 7541): decodes the blocks of clients, and prepares the blocks of answers.

A client's block refers to the dynamic table of its connection, so each block must be decoded, in order, also the block
of a request that is refused. Blocks of answers refer to the static table only: one prepared block serves all
connections.
Neighbour: huffman.py decodes compressed texts.
"""

import re
from collections.abc import Iterable, Mapping
from itertools import permutations
from typing import Final, NamedTuple

from skylark.remoting.http2 import huffman
from skylark.remoting.http2.errors import ErrorCode, Http2Error
from skylark.remoting.http2.frames import FIRST_TABLE_BYTES

# The first byte of a field tells its form (RFC 7541, 6); its other bits begin a number.
_INDEXED: Final = 0x80
_ADDED: Final = 0x40  # to the dynamic table
_TABLE_SIZE: Final = 0x20
_COMPRESSED: Final = 0x80  # of a text
_MAX_NUMBER_BITS: Final = 28  # a number that goes on after these is longer than any block

# What an entry of the dynamic table, or of a header list, takes besides its texts.
FIELD_BYTES: Final = 32
# What a connection remembers: names, and blocks as long as the dynamic table is as it was.
_MAX_NAMES = 128
_MAX_BLOCKS, _MAX_BLOCK_BYTES = 8, 1_024

_REQUIRED: Final = (":method", ":scheme", ":path")
_PSEUDO: Final = (*_REQUIRED, ":authority")
# All orders in which a block may begin.
_ORDERS: Final = frozenset(names for count in range(len(_PSEUDO) + 1) for names in permutations(_PSEUDO, count))
# Headers of HTTP/1.1 that describe a connection: a message that has them is malformed (RFC 9113, 8.2.2).
_OF_CONNECTION: Final = ("connection", "proxy-connection", "keep-alive", "transfer-encoding", "upgrade")
_is_name = re.compile(r"[!#$%&'*+\-.^_`|~0-9a-z]+").fullmatch
_is_value = re.compile(r"[^\0\r\n]*").fullmatch
# Makes a named tuple without a call of Python, which takes a third of the time.
_new = tuple.__new__


class Headers(NamedTuple):
    """A decoded block, and why it cannot be the headers of a request, or its trailers: "" when it can."""

    values: Mapping[str, str]
    request_fault: str
    trailers_fault: str
    #: Bytes of all fields as HTTP/2 counts them (RFC 9113, 6.5.2); 0 when they are more than allowed.
    size_bytes: int


#: The fault of a block whose headers take more bytes than allowed.
TOO_LARGE: Final = "the headers take more bytes than allowed"
_TOO_LARGE: Final = Headers({}, TOO_LARGE, TOO_LARGE, 0)

# A name, its value, why no message may have that name, or both ("" when one may), and the bytes that an entry of the
# table takes. Plain tuples are read faster.
_Field = tuple[str, str, str, str, int]


class HeaderDecoder:
    """The decoder of one connection's blocks.

    ``max_table_bytes``: how large the client may make the dynamic table. ``max_list_bytes``: of one block's headers.
    """

    __slots__ = ("_blocks", "_limit_bytes", "_max_list_bytes", "_max_table_bytes", "_names", "_table", "_table_bytes")

    def __init__(self, max_table_bytes: int, max_list_bytes: int) -> None:
        self._limit_bytes = max_table_bytes
        self._max_list_bytes = max_list_bytes
        self._table: list[_Field] = []  # the dynamic table, the newest entry last
        self._table_bytes = 0
        self._max_table_bytes = FIRST_TABLE_BYTES  # as the client has chosen
        self._names: dict[str, tuple[str, str]] = {}  # encoded name → name and its fault
        self._blocks: dict[bytes, Headers] = {}  # blocks that do not change the table, decoded with the present one

    def limit_table(self, max_table_bytes: int) -> None:
        """Change how large the table may be; the next block must make a larger table smaller."""
        self._limit_bytes = max_table_bytes
        self._blocks.clear()

    def decode(self, block: bytes) -> Headers:
        """The headers of a block. Raises Http2Error when it cannot be decoded: later blocks cannot either."""
        known = self._blocks.get(block)
        if known is not None:
            return known
        try:
            headers, changes_table = self._decode(block)
        except (LookupError, ValueError):
            # A number or text that goes on beyond the block, an unknown index, a text that is not well compressed.
            raise Http2Error(ErrorCode.COMPRESSION_ERROR, "a header block cannot be decoded") from None
        if changes_table:
            self._blocks.clear()
        elif len(block) <= _MAX_BLOCK_BYTES:
            if len(self._blocks) == _MAX_BLOCKS:
                self._blocks.clear()
            self._blocks[block] = headers
        return headers

    def _decode(self, block: bytes) -> tuple[Headers, bool]:
        """The headers, and whether the block changes the table."""
        values: dict[str, str] = {}
        names, table = self._names, self._table
        fault = ""
        characters = block.decode("latin-1")
        at, end, left_bytes = 0, len(block), self._max_list_bytes
        changes_table = False
        while at < end:
            first = block[at]
            at += 1
            if _TABLE_SIZE <= first < _ADDED:
                # A change counts like an empty field, so that a block cannot be full of them.
                left_bytes -= FIELD_BYTES
                if values or left_bytes < 0:
                    raise ValueError("the size of the table changes within a block, or too often")
                at = self._resize(block, at)
                changes_table = True
                continue
            most = 0x7F if first >= _INDEXED else 0x3F if first >= _ADDED else 0x0F
            index = first & most
            if index == most:
                index, at = _long_number(block, at, most)
            if index:
                name, value, name_fault, field_fault, size = table[61 - index] if index > 61 else _STATIC[index]
            elif first >= _INDEXED:
                raise ValueError("the index is 0")
            else:
                encoded = characters[at : at + 1 + (block[at] & 0x7F)]
                known = names.get(encoded)
                if known is None:
                    name, at = _text(block, at)
                    name_fault = self._name_fault(encoded, name)
                else:
                    at += len(encoded)
                    name, name_fault = known
            if first < _INDEXED:
                value_at, at = at + 1, at + 1 + block[at]
                if at < value_at + 0x7F and at <= end:
                    value = characters[value_at:at]
                else:
                    value, at = _text(block, value_at - 1)
                if name_fault or name == "te" or not value.isprintable() or value != value.strip():
                    field_fault = name_fault or _value_fault(name, value)
                else:
                    field_fault = ""
                size = FIELD_BYTES + len(name) + len(value)
                if first >= _ADDED:
                    self._add((name, value, name_fault, field_fault, size))
                    changes_table = True
            left_bytes -= size
            if left_bytes < 0:
                # The rest is read for the table's sake.
                continue
            if field_fault:
                fault = field_fault
            if name not in values:
                values[name] = value
            elif name in _PSEUDO:
                fault = "a pseudo header is repeated"
            else:
                values[name] += "," + value
        if self._max_table_bytes > self._limit_bytes:
            raise ValueError("the table is larger than allowed")
        if left_bytes < 0:
            return _TOO_LARGE, changes_table
        return _checked(values, fault, self._max_list_bytes - left_bytes), changes_table

    def _name_fault(self, encoded: str, name: str) -> str:
        """Why no message may have this name; remembers ``encoded`` if it is the whole name, with its length."""
        fault = "" if name in _PSEUDO or (_is_name(name) and name not in _OF_CONNECTION) else "a name is not allowed"
        if len(encoded) <= 0x7F and len(self._names) < _MAX_NAMES:
            self._names[encoded] = name, fault
        return fault

    # --- the dynamic table (RFC 7541, 4)

    def _add(self, field: _Field) -> None:
        self._table.append(field)
        self._table_bytes += field[-1]
        if self._table_bytes > self._max_table_bytes:
            self._evict()

    def _resize(self, block: bytes, at: int) -> int:
        """Read the table's new size; returns where the number ends. ``at`` is after its first byte."""
        size = block[at - 1] & 0x1F
        if size == 0x1F:
            size, at = _long_number(block, at, 0x1F)
        if size > self._limit_bytes:
            raise ValueError("the table is larger than allowed")
        self._max_table_bytes = size
        self._evict()
        return at

    def _evict(self) -> None:
        """Drop the oldest entries; an entry that is larger than the table empties the table."""
        while self._table_bytes > self._max_table_bytes:
            self._table_bytes -= self._table.pop(0)[-1]


def _long_number(block: bytes, at: int, number: int) -> tuple[int, int]:
    """A number (RFC 7541, 5.1) whose first byte has the highest value, ``number``; and where it ends."""
    for shift in range(0, _MAX_NUMBER_BITS + 1, 7):
        byte = block[at]
        at += 1
        number += (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
    raise ValueError("a number is longer than any block")


def _text(block: bytes, at: int) -> tuple[str, int]:
    """A text (RFC 7541, 5.2) in latin-1, and where it ends."""
    first = block[at]
    at += 1
    length = first & 0x7F
    if length == 0x7F:
        length, at = _long_number(block, at, 0x7F)
    end = at + length
    if end > len(block):
        raise ValueError("a text goes on beyond its block")
    return (huffman.decode(block[at:end]) if first >= _COMPRESSED else block[at:end].decode("latin-1")), end


def _value_fault(name: str, value: str) -> str:
    """Why no message may have this value (RFC 9113, 8.2)."""
    if name == "te" and value != "trailers":
        return "te is not 'trailers'"
    return "" if _is_value(value) and value == value.strip(" \t") else f"the value of {name} has bad characters"


def _checked(values: Mapping[str, str], fault: str, size_bytes: int) -> Headers:
    """Headers with the faults that they have as a whole (RFC 9113, 8.3)."""
    pseudo = [name for name in _PSEUDO if name in values]
    if tuple(values)[: len(pseudo)] not in _ORDERS:
        fault = fault or "pseudo headers follow other headers"
    is_request = values.get(":method") and values.get(":scheme") and values.get(":path")
    request_fault = fault or ("" if is_request else f"one of {', '.join(_REQUIRED)} is missing")
    trailers_fault = fault or ("trailers have pseudo headers" if pseudo else "")
    return _new(Headers, (values, request_fault, trailers_fault, size_bytes))


def block(headers: Iterable[tuple[str, str]]) -> bytes:
    """A block of answers, which any connection may send: names in lower case, values in latin-1."""
    return b"".join(b"\0" + _encoded(name) + _encoded(value) for name, value in headers)


def _encoded(text: str) -> bytes:
    """A text that is not compressed, after its length (RFC 7541, 5.1 and 5.2)."""
    length = len(text)
    if length < 0x7F:
        return bytes((length,)) + text.encode("latin-1")
    encoded = bytearray((0x7F,))
    length -= 0x7F
    while length >= 0x80:
        encoded.append(length & 0x7F | 0x80)
        length >>= 7
    encoded.append(length)
    return bytes(encoded) + text.encode("latin-1")


# The names and values of RFC 7541, appendix A, in their order.
_STATIC_TEXT: Final = """\
:authority= :method=GET :method=POST :path=/ :path=/index.html :scheme=http :scheme=https :status=200 :status=204
:status=206 :status=304 :status=400 :status=404 :status=500 accept-charset= accept-encoding=gzip,%deflate
accept-language= accept-ranges= accept= access-control-allow-origin= age= allow= authorization= cache-control=
content-disposition= content-encoding= content-language= content-length= content-location= content-range= content-type=
cookie= date= etag= expect= expires= from= host= if-match= if-modified-since= if-none-match= if-range=
if-unmodified-since= last-modified= link= location= max-forwards= proxy-authenticate= proxy-authorization= range=
referer= refresh= retry-after= server= set-cookie= strict-transport-security= transfer-encoding= user-agent= vary= via=
www-authenticate="""


def _static() -> Mapping[int, _Field]:
    fields = [field.partition("=") for field in _STATIC_TEXT.replace("\n", " ").split(" ")]
    named = [(name, value.replace("%", " ")) for name, _, value in fields]
    faults = ["a name is not allowed" if name == ":status" or name in _OF_CONNECTION else "" for name, _ in named]
    return {
        index: (name, value, fault, fault, FIELD_BYTES + len(name) + len(value))
        for index, ((name, value), fault) in enumerate(zip(named, faults, strict=True), 1)
    }


_STATIC: Final = _static()
