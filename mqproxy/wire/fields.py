"""Fields of protobuf's messages, for answers that are encoded without a message object. Pure.

+----------------------------+---------+--------------------------------------+
| number << 3 | kind: varint | length  | ``length`` bytes: a text, a message  |
+----------------------------+---------+--------------------------------------+

The first part is the tag; a field whose value is a varint has no length. Fields are put together as text in which
each character is one byte (Latin-1), since Python formats text faster than bytes: `encoded` makes bytes of it.
"""

from functools import lru_cache
from typing import Final

#: The first and the last time that protobuf has, in ms since 1970: of the years 1 to 9999.
FIRST_MS: Final = -62_135_596_800_000
LAST_MS: Final = 253_402_300_799_999
_LATIN_1: Final = "latin-1"
# The varints of the smallest numbers.
_SMALL: Final = tuple(map(chr, range(128)))
# The parts of longer varints, but the last.
_PARTS: Final = tuple(map(chr, range(128, 256)))
_VARINT, _SIZED = 0, 2


def encoded(fields: str) -> bytes:
    """The bytes of fields."""
    return fields.encode(_LATIN_1)


def tag(number: int, *, is_varint: bool = False) -> str:
    """The tag of field ``number``, whose value has a length unless it ``is_varint``."""
    return varint(number << 3 | (_VARINT if is_varint else _SIZED))


def varint(number: int) -> str:
    """A number of 64 bits, with or without a sign."""
    if 0 <= number < 128:
        return _SMALL[number]
    if number < 0:
        number += 1 << 64
    # Offsets and times that follow one another differ in their lowest digits only.
    return _PARTS[number & 127] + cached_varint(number >> 7)


#: As `varint`, for numbers that come again and again, as sizes do.
cached_varint: Final = lru_cache(maxsize=1_024)(varint)


def in_latin_1(value: str) -> str:
    """A text of which each character is a byte of ``value``. Raises ValueError when it cannot be written in UTF-8."""
    return value if value.isascii() else value.encode().decode(_LATIN_1)


def text(value: str) -> str:
    """The value of a text field, with its length. Raises ValueError when it cannot be written in UTF-8."""
    value = in_latin_1(value)
    size = len(value)
    return (_SMALL[size] if size < 128 else cached_varint(size)) + value


def sized(fields: str) -> str:
    """The value of a field that holds a message with these fields, with its length."""
    return cached_varint(len(fields)) + fields


@lru_cache(maxsize=4_096)
def time_of(ms: int) -> str | None:
    """The value of a Timestamp field, for a time in ms since 1970; None when protobuf has no such time."""
    return _seconds(ms) if FIRST_MS <= ms <= LAST_MS else None


@lru_cache(maxsize=256)
def duration_of(ms: int) -> str:
    """The value of a Duration field that is not negative."""
    return _seconds(ms)


def _seconds(ms: int) -> str:
    seconds, rest_ms = divmod(ms, 1_000)
    return sized(f"\x08{varint(seconds)}\x10{varint(rest_ms * 1_000_000)}")
