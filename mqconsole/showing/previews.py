"""The body of a message for people: as JSON, CBOR, text, or bytes. Pure; call it in a thread.

A body has no type, so the first form that fits is shown, and other forms can be chosen. A body is never markup: the
result is text, which the templates escape. Control characters, and characters that turn the direction of writing, are
shown as their numbers: a body must not be able to look like another body.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

import cbor2

from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.remoting.protocol.strict_cbor import loads_values

#: Longer bodies are cut for the page; they can be downloaded whole.
MOST_BYTES: Final = 64 * 1024
_KEPT: Final = "\n\t"
_JSON: Final = json.JSONEncoder(ensure_ascii=False, indent=2)
# A first byte that begins an array, a map or a tag: single numbers and strings in CBOR are too likely to be text.
_CBOR_FIRST: Final = range(0x80, 0xDC)
_MOST_DEPTH: Final = 40
#: JSON and CBOR whose indented text is longer are shown as text or bytes: few bytes of deep lists make many spaces.
_MOST_CHARACTERS: Final = 16 * MOST_BYTES


@lazy_dataclass(frozen=True, slots=True)
class Preview:
    """``form`` is json, cbor, text or hex; ``possible``: the forms that fit. ``is_cut``: only the start is shown."""

    form: str
    text: str
    possible: tuple[str, ...]
    is_cut: bool = False


def preview(body: bytes, form: str = "") -> Preview:
    """The body in the chosen form, or, if this form does not fit, in the first form that fits."""
    whole = body if len(body) <= MOST_BYTES else body[:MOST_BYTES]
    texts = {name: text for name, text in _forms(whole, is_cut=len(body) > MOST_BYTES)}
    chosen = form if form in texts else next(iter(texts))
    return Preview(chosen, texts[chosen], tuple(texts), len(body) > MOST_BYTES)


def _forms(body: bytes, *, is_cut: bool) -> Iterator[tuple[str, str]]:
    if not is_cut and (found := _json(body)) is not None:
        yield "json", found
    if not is_cut and (found := _cbor(body)) is not None:
        yield "cbor", found
    if (found := _text(body, is_cut=is_cut)) is not None:
        yield "text", found
    yield "hex", _hex(body)


def _json(body: bytes) -> str | None:
    if body.lstrip()[:1] not in (b"{", b"["):
        return None
    try:
        return _indented(_plain(json.loads(body)))
    except (ValueError, RecursionError):
        return None


def _cbor(body: bytes) -> str | None:
    if not body or body[0] not in _CBOR_FIRST:
        return None
    try:
        found = loads_values(body, max_depth=_MOST_DEPTH)
        if not isinstance(found, dict | list | cbor2.CBORTag):
            return None
        return _indented(_plain(found))
    except (cbor2.CBORError, ValueError, TypeError, RecursionError, OverflowError):
        return None


def _indented(value: Any) -> str | None:
    """``value`` as indented JSON; None when the text gets too long."""
    pieces, length = [], 0
    for piece in _JSON.iterencode(value):
        pieces.append(piece)
        length += len(piece)
        if length > _MOST_CHARACTERS:
            return None
    return printable("".join(pieces))


def _plain(value: Any, depth: int = 0) -> Any:
    """``value`` with the types of JSON only; bytes become h'..', as in CBOR's diagnostic notation."""
    if depth > _MOST_DEPTH:
        raise RecursionError
    if isinstance(value, Mapping):
        return {_key(name): _plain(one, depth + 1) for name, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(one, depth + 1) for one in value]
    if isinstance(value, bytes):
        return f"h'{value.hex()}'"
    if isinstance(value, cbor2.CBORTag):
        return {f"tag {value.tag}": _plain(value.value, depth + 1)}
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def _key(name: Any) -> str:
    return name if isinstance(name, str) else str(_plain(name))


def _text(body: bytes, *, is_cut: bool) -> str | None:
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        # The cut may have split a character.
        if not is_cut or error.start < len(body) - 4:
            return None
        text = body[: error.start].decode("utf-8")
    # Bytes that happen to be UTF-8 have many control characters, and are better read as numbers.
    strange = sum(not (char.isprintable() or char in _KEPT or char == "\r") for char in text)
    return printable(text) if strange * 10 <= len(text) else None


def printable(text: str) -> str:
    """``text`` with invisible characters as their numbers: ``\\u202e``."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in _KEPT else _escaped(char) for char in text)


def one_line(text: str) -> str:
    """As `printable`, with line breaks and tabs as numbers, too."""
    return text if text.isprintable() else "".join(char if char.isprintable() else _escaped(char) for char in text)


def _escaped(char: str) -> str:
    return f"\\u{ord(char):04x}" if ord(char) < 0x10000 else f"\\U{ord(char):08x}"


def _hex(body: bytes) -> str:
    """Lines of 16 bytes: offset, bytes in hexadecimal, and their ASCII characters."""
    lines = []
    for at in range(0, len(body), 16):
        part = body[at : at + 16]
        letters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"{at:08x}  {part[:8].hex(' '):<23}  {part[8:].hex(' '):<23}  {letters}")
    return "\n".join(lines)
