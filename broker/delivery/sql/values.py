"""Texts of properties as values that are compared, as Java reads them.

A text that is no such value raises ValueError: RocketMQ then drops the message, whatever the rest of the expression
says.
"""

import re
from math import isnan

from mqcommon.sql.nodes import INT, INT_MAX, LONG_MAX

_WHOLE = re.compile(rb"[+-]?[0-9]+")
_SPACES = bytes(range(33))
_DECIMAL = re.compile(rb"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fFdD]?")
_HEX = re.compile(rb"[+-]?0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?[0-9]{1,9}[fFdD]?")
_NAMED = re.compile(rb"[+-]?(?:NaN|Infinity)")
# Longer texts are no numbers, or have zeros that nobody writes.
_MOST = 400


def as_whole(text: bytes, kind: str) -> int:
    """The int or long."""
    if len(text) > _MOST or not _WHOLE.fullmatch(text):
        raise ValueError(text)
    value, most = int(text), INT_MAX if kind == INT else LONG_MAX
    if not -most - 1 <= value <= most:
        raise ValueError(text)
    return value


def as_double(text: bytes) -> float:
    """The double."""
    text = text.strip(_SPACES)
    if len(text) > _MOST:
        raise ValueError(text[:_MOST])
    if _DECIMAL.fullmatch(text):
        return float(text.rstrip(b"fFdD"))
    if _NAMED.fullmatch(text):
        return float(text)
    if _HEX.fullmatch(text):
        try:
            # Digits of an exponent are hexadecimal digits, too, so only the last letter is a suffix.
            return float.fromhex((text[:-1] if text[-1:] in b"fFdD" else text).decode())
        except OverflowError:
            return float("-inf" if text[:1] == b"-" else "inf")
    raise ValueError(text)


def order(left: float, right: float) -> int:
    """Less than, equal to or greater than 0, as Java orders doubles: NaN is the largest, -0.0 is below 0.0."""
    if left < right:
        return -1
    if left > right:
        return 1
    return (_rank(left) > _rank(right)) - (_rank(left) < _rank(right))


def _rank(value: float) -> int:
    if isnan(value):
        return 2
    return 0 if value == 0 and str(value).startswith("-") else 1


def as_truth(text: bytes) -> bool:
    """The boolean; everything but TRUE is false."""
    return text.lower() == b"true"


def impossible() -> bool:
    """For comparisons that RocketMQ cannot make with any values."""
    raise ValueError("such values cannot be compared")
