"""Header blocks (RFC 7541): those of clients decoded, those of answers prepared.

A client's block refers to the dynamic table of its connection, so each block must be decoded, in order, also the block
of a request that is refused. Blocks of answers refer to the static table only: one prepared block serves all
connections.
"""

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from hpack import Decoder, HPACKError, OversizedHeaderListError

from skylark.mqcommon.bounded_cache import BoundedCache
from skylark.remoting.http2.errors import ErrorCode, Http2Error

# Blocks that a connection remembers.
CACHE_BYTES = 32 * 1024

_REQUIRED = (":method", ":scheme", ":path")
_PSEUDO = (*_REQUIRED, ":authority")
# Headers of HTTP/1.1 that describe a connection: a message that has them is malformed (RFC 9113, 8.2.2).
_OF_CONNECTION = ("connection", "proxy-connection", "keep-alive", "transfer-encoding", "upgrade")
_is_name = re.compile(r"[!#$%&'*+\-.^_`|~0-9a-z]+").fullmatch
_is_value = re.compile(r"[^\0\r\n]*").fullmatch


class Headers(NamedTuple):
    """A decoded block, and why it cannot be the headers of a request, or its trailers: "" when it can."""

    values: Mapping[str, str]
    request_fault: str
    trailers_fault: str


class HeaderDecoder:
    """The decoder of one connection's blocks.

    A block that was decoded before, at the same state of the dynamic table, is not decoded again.
    """

    __slots__ = ("_decoder", "_known")

    def __init__(self, max_table_bytes: int, max_list_bytes: int) -> None:
        self._decoder = Decoder(max_header_list_size=max_list_bytes)
        self._decoder.max_allowed_table_size = max_table_bytes
        # Blocks that do not change the dynamic table, decoded at its present state.
        self._known: BoundedCache[bytes, Headers] = BoundedCache(CACHE_BYTES)

    def limit_table(self, max_table_bytes: int) -> None:
        """From the next block on, the client may make the dynamic table this large."""
        self._decoder.max_allowed_table_size = max_table_bytes

    def decode(self, block: bytes) -> Headers:
        """The headers of a block. Raises Http2Error when it cannot be decoded: later blocks cannot either."""
        known = self._known.get(block)
        if known is not None:
            return known
        table = self._decoder.header_table
        before = (table.maxsize, tuple(table.dynamic_entries))
        try:
            fields = self._decoder.decode(block, raw=True)
        except OversizedHeaderListError as error:
            raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, str(error)) from None
        except HPACKError as error:
            raise Http2Error(ErrorCode.COMPRESSION_ERROR, f"a header block cannot be decoded: {error}") from None
        headers = _headers((name.decode("latin-1"), value.decode("latin-1")) for name, value in fields)
        if (table.maxsize, tuple(table.dynamic_entries)) != before:
            self._known = BoundedCache(CACHE_BYTES)
        else:
            self._known.put(block, headers, 2 * len(block))
        return headers


def _headers(fields: Iterable[tuple[str, str]]) -> Headers:
    values: dict[str, str] = {}
    fault = ""
    has_regular = False
    for name, value in fields:
        if name.startswith(":"):
            if name not in _PSEUDO or name in values or has_regular:
                fault = fault or f"the pseudo header {name!r} is unknown, repeated or late"
        else:
            has_regular = True
            if not _is_name(name) or name in _OF_CONNECTION or (name == "te" and value != "trailers"):
                fault = fault or f"a header {name!r} is not allowed"
        if not _is_value(value) or value.strip(" \t") != value:
            fault = fault or f"the value of {name!r} has characters that are not allowed"
        values[name] = f"{values[name]},{value}" if name in values else value
    missing = [name for name in _REQUIRED if not values.get(name)]
    request_fault = fault or (f"{missing[0]} is missing" if missing else "")
    trailers_fault = fault or next((f"trailers have {name}" for name in _PSEUDO if name in values), "")
    return Headers(values, request_fault, trailers_fault)


def block(headers: Iterable[tuple[str, str]]) -> bytes:
    """A block of answers, which any connection may send: names in lower case, values in latin-1."""
    return b"".join(_literal(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers)


def _literal(name: bytes, value: bytes) -> bytes:
    """A field that is not added to the dynamic table (RFC 7541, 6.2.2)."""
    return b"\0" + _string(name) + _string(value)


def _string(text: bytes) -> bytes:
    """Text that is not compressed."""
    return _integer(len(text), 0x7F) + text


def _integer(number: int, most: int) -> bytes:
    """An integer (RFC 7541, 5.1) whose first byte has room up to ``most``."""
    if number < most:
        return bytes((number,))
    rest = bytearray((most,))
    number -= most
    while number >= 128:
        rest.append(number & 127 | 128)
        number >>= 7
    rest.append(number)
    return bytes(rest)
