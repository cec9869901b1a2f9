"""A large body as bytes, made in slices, so that whoever makes it can do other things in between.

The bytes are those of `encode_body`. Only maps and lists that are members of the body itself are sliced. They are
copied (not what is in them) when their turn comes, so they may change meanwhile.
"""

from collections.abc import Generator
from itertools import chain, islice
from typing import Any, Final, NamedTuple

import cbor2

from remoting.protocol.bodies.body import Body, members
from remoting.protocol.bodies.dialect import Dialect, dumps
from remoting.protocol.bodies.kinds import Kind

#: Entries in a slice: a millisecond or two.
SLICE: Final = 500

_CBOR_ARRAY: Final = 0x80
_CBOR_MAP: Final = 0xA0


class Encoded(NamedTuple):
    """The bytes, and how many entries of maps and lists were left out of them."""

    data: bytes
    left_out: int


def encode_steps(body: Body, dialect: Dialect, max_bytes: int) -> Generator[None, None, Encoded]:
    """The body as a peer of this dialect reads it, at most about ``max_bytes``; yields after each slice."""
    pairs: list[list[bytes]] = []
    left_out, room = 0, max_bytes
    for each in members(type(body)):
        value = getattr(body, each.attribute)
        if value is None:
            continue
        if type(value) in (dict, list) and len(value) > SLICE:
            pieces, missing = yield from _sliced(value, each.kind, dialect, room)
            left_out += missing
        else:
            write = each.kind.write
            pieces = [dumps(value if write is None else write(value), dialect)]
        room -= sum(map(len, pieces))
        pairs.append([dumps(each.wire, dialect), b"" if dialect is Dialect.CBOR else b":", *pieces])
    if dialect is Dialect.CBOR:
        parts = [_cbor_head(_CBOR_MAP, len(pairs)), *chain.from_iterable(pairs)]
    else:
        parts = [b"{", *chain.from_iterable((b",", *pair) for pair in pairs), b"}"]
        if pairs:
            del parts[1]  # the first comma
    return Encoded(b"".join(parts), left_out)


def _sliced(
    value: dict[Any, Any] | list[Any], kind: Kind, dialect: Dialect, room: int
) -> Generator[None, None, tuple[list[bytes], int]]:
    is_map = type(value) is dict
    all_entries: list[Any] = list(value.items()) if isinstance(value, dict) else list(value)
    left = iter(all_entries)
    count = 0
    pieces: list[bytes] = []
    while entries := list(islice(left, SLICE)):
        part: Any = dict(entries) if is_map else entries
        data = dumps(part if kind.write is None else kind.write(part), dialect)
        head = len(_cbor_head(0, len(entries))) if dialect is Dialect.CBOR else 1
        data = data[head:] if dialect is Dialect.CBOR else data[head:-1]
        room -= len(data)
        if room < 0:
            break
        pieces.append(data)
        count += len(entries)
        yield
    if dialect is Dialect.CBOR:
        head_byte = _CBOR_MAP if is_map else _CBOR_ARRAY
        return [_cbor_head(head_byte, count), *pieces], len(all_entries) - count
    opening, closing = (b"{", b"}") if is_map else (b"[", b"]")
    return [opening, b",".join(pieces), closing], len(all_entries) - count


def _cbor_head(major: int, count: int) -> bytes:
    """What stands before ``count`` entries."""
    number = cbor2.dumps(count)
    return bytes([number[0] | major]) + number[1:]
