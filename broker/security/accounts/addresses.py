"""The addresses in white lists, in all forms of RocketMQ. Pure.

    10.1.2.3    192.168.*.*    192.168.1-20.*    192.168.0.{1,2}    10.1.2.3,10.1.2.4    *
    fd00::5     fd00::*        fd00::1-ff        fd00::{1,2}        fd00::1,fd00::2

Lists may have elements of any form. Every part of an address counts; RocketMQ ignores all parts after the first ``*``.
"""

import re
from collections.abc import Iterable
from ipaddress import IPv4Address
from typing import Final

from skylark.broker.security.access import Address, address_of
from skylark.mqcommon.bounded_cache import BoundedCache

#: The numbers that one part of an address may be: from, to.
Span = tuple[int, int]
#: What each part may be: 4 parts of an IPv4 address, or 8 of an IPv6 address.
Pattern = tuple[tuple[Span, ...], ...]

_ANYBODY: Final = ("*", "*.*.*.*", "*:*:*:*:*:*:*:*")
_FORMS: Final = "give 10.1.2.3, 10.1.*.*, 10.1.2.1-20 or 10.1.2.{1,2}, the same with IPv6, several with commas, or *"
# A comma that is not within braces.
_COMMA: Final = re.compile(r",(?![^{}]*\})")
_MAX_CACHED_BYTES: Final = 64 * 1024


class Addresses:
    """The addresses that some texts name. ValueError, which says what is valid, for a text that is no address."""

    def __init__(self, texts: Iterable[str]) -> None:
        self.texts = tuple(element for text in texts for element in split_list(text))
        self._patterns = [(text, None if text in _ANYBODY else _pattern(text)) for text in self.texts]
        self._known = BoundedCache[str, str](_MAX_CACHED_BYTES)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Addresses) and self.texts == other.texts

    def __hash__(self) -> int:
        return hash(self.texts)

    def __repr__(self) -> str:
        return f"Addresses({list(self.texts)})"

    def naming(self, host: str) -> str:
        """The text that names ``host``; empty when none does."""
        if not self._patterns:
            return ""
        found = self._known.get(host)
        if found is None:
            found = self._find(address_of(host))
            self._known.put(host, found, 2 * len(host))
        return found

    def _find(self, address: Address | None) -> str:
        parts = _parts(address) if address is not None else ()
        for text, pattern in self._patterns:
            if pattern is None or (len(pattern) == len(parts) and all(map(_is_in, parts, pattern))):
                return text
        return ""


def split_list(text: str) -> list[str]:
    """The elements of a list with commas; those within braces do not count."""
    return [element.strip() for element in _COMMA.split(text) if element.strip()]


def _is_in(part: int, spans: tuple[Span, ...]) -> bool:
    return any(low <= part <= high for low, high in spans)


def _parts(address: Address) -> tuple[int, ...]:
    if isinstance(address, IPv4Address):
        return tuple(address.packed)
    return tuple(high << 8 | low for high, low in zip(address.packed[::2], address.packed[1::2], strict=True))


def _pattern(text: str) -> Pattern:
    if (address := address_of(text)) is not None:
        return tuple(((part, part),) for part in _parts(address))
    try:
        if ":" in text:
            return tuple(_spans(part, 16, 0xFFFF) for part in _v6_parts(text))
        parts = text.split(".")
        if len(parts) != 4:
            raise ValueError
        return tuple(_spans(part, 10, 0xFF) for part in parts)
    except ValueError:
        raise ValueError(f"{text!r} is no address: {_FORMS}") from None


def _v6_parts(text: str) -> list[str]:
    left, gap, right = text.partition("::")
    head, tail = left.split(":") if left else [], right.split(":") if right else []
    missing = 8 - len(head) - len(tail)
    if missing < 1 if gap else missing:
        raise ValueError
    return [*head, *["0"] * missing, *tail]


def _spans(part: str, base: int, most: int) -> tuple[Span, ...]:
    if part == "*":
        return ((0, most),)
    if part.startswith("{") and part.endswith("}"):
        return tuple(_span(element.strip(), base, most) for element in part[1:-1].split(","))
    return (_span(part, base, most),)


def _span(text: str, base: int, most: int) -> Span:
    low, dash, high = text.partition("-")
    span = _number(low, base), _number(high if dash else low, base)
    if not span[0] <= span[1] <= most:
        raise ValueError
    return span


def _number(text: str, base: int) -> int:
    # int() would take blanks, signs and underscores, too.
    if not (text.isascii() and text.isalnum() and len(text) <= 4):
        raise ValueError
    return int(text, base)
