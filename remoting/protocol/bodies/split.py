"""Splits large JSON objects into pieces, so that 16 MiB are never decoded at once.

A JSON parser cannot be interrupted, and in a thread it would block the event loop all the same, as it holds the GIL.
This module looks at brackets and strings only; a real parser checks the pieces and the rest.
"""

import re
from collections.abc import Collection, Generator, Iterator
from typing import Final, NamedTuple

from mqcommon.errors import ProtocolError

#: A piece ends with the member that brings it to this size; decoding it takes some milliseconds.
PIECE_BYTES: Final = 64 * 1024
#: The limit of one member, and of the bytes between two brackets.
MAX_MEMBER_BYTES: Final = 512 * 1024
#: How many brackets are checked in one step: some milliseconds.
STEP_BRACKETS: Final = 4_000

_TO_BRACKET: Final = re.compile(rb'[^"{}\[\]]*+(?:"(?:[^"\\]++|\\.)*+"[^"{}\[\]]*+)*+([{}\[\]])', re.DOTALL)
_OPENING: Final = (b"{", b"[")


class Piece(NamedTuple):
    """Some members of the object ``name``, as a JSON object."""

    name: str
    data: bytes


def split_objects(data: bytes, parent: str, names: Collection[str]) -> Generator[Piece | None, None, bytes]:
    """Take the objects ``names`` of the object ``parent`` out of the JSON object ``data``.

    Yields pieces of them, and None where a step ends; returns ``data`` with empty objects in their places.
    Raises ProtocolError when brackets do not match, or a member is too long.
    """
    rest: list[bytes] = []
    kept = 0  # all bytes before it are in ``rest`` or in a piece
    path: list[str] = []
    inside: str | None = None
    for number, (bracket, before, end) in enumerate(_brackets(data), 1):
        if bracket in _OPENING:
            path.append(_key(data[before : end - 1]) if len(path) < 3 else "")
            if inside is None and bracket == b"{" and len(path) == 3 and path[1] == parent and path[2] in names:
                inside = path[2]
                rest.append(data[kept:end])
                kept = end
        else:
            if not path:
                raise ProtocolError(f"body is not JSON: a bracket too many at byte {end - 1}")
            path.pop()
            if inside is not None and len(path) == 2:
                yield Piece(inside, _object(data[kept : end - 1]))
                inside, kept = None, end - 1
            elif inside is not None and len(path) == 3 and end - kept >= PIECE_BYTES:
                yield Piece(inside, _object(data[kept:end]))
                kept = end
        if inside is not None and end - kept > PIECE_BYTES + MAX_MEMBER_BYTES:
            raise ProtocolError(f"a member of {inside} has more than {MAX_MEMBER_BYTES} bytes")
        if number % STEP_BRACKETS == 0:
            yield None
    if path:
        raise ProtocolError("body is not JSON: a bracket is not closed")
    rest.append(data[kept:])
    return b"".join(rest)


def _brackets(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Each bracket outside of strings, where the one before it ended, and where it ends."""
    at = 0
    while found := _TO_BRACKET.match(data, at, at + MAX_MEMBER_BYTES):
        yield found[1], at, found.end()
        at = found.end()
    if len(data) - at > MAX_MEMBER_BYTES:
        raise ProtocolError(f"body is not JSON, or has more than {MAX_MEMBER_BYTES} bytes between two brackets")


def _key(text: bytes) -> str:
    """The key whose value begins after ``text``; empty when there is none."""
    before, colon, after = text.rpartition(b":")
    name = before.rstrip()
    if not colon or after.strip() or not name.endswith(b'"'):
        return ""
    head, _, key = name[:-1].rpartition(b'"')
    # A quote after a backslash is inside the key, and no key that is looked for has one.
    return "" if head.endswith(b"\\") else str(key, "utf-8", "replace")


def _object(members: bytes) -> bytes:
    return b"{" + members.strip().removeprefix(b",") + b"}"
