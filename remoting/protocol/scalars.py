"""Lenient reading of single values in ext fields and bodies, as different clients send them.

Integers as numbers or text, booleans as true, "true", 1 or "1", text as anything that has a text form.
Every reader raises ValueError with a reason when there is no such value.
"""

import re
from collections.abc import Callable
from math import isfinite
from typing import Any, Final

from skylark.remoting.protocol.command import ext_text

_INTEGER: Final = re.compile(r"-?[0-9]{1,19}")


def _integer_reader(bits: int) -> Callable[[Any], int]:
    high = 1 << (bits - 1)

    def read(value: Any) -> int:
        if type(value) is int:
            number = value
        elif type(value) is str and _INTEGER.fullmatch(value):
            number = int(value)
        else:
            raise ValueError("not an integer")
        if not -high <= number < high:
            raise ValueError(f"longer than {bits} bits")
        return number

    return read


read_int: Final = _integer_reader(32)
read_long: Final = _integer_reader(64)


def read_text(value: Any) -> str:
    """Text; numbers and booleans as Java writes them."""
    if type(value) is str:
        return value
    if isinstance(value, int | float):
        return ext_text(value)
    raise ValueError("not text")


def read_flag(value: Any) -> bool:
    """A boolean; any other value is false, as in Java's Boolean.parseBoolean."""
    if type(value) is str:
        return value == "1" or value.lower() == "true"
    return value is True or value == 1


def read_real(value: Any) -> float:
    """A floating-point number that JSON can hold: neither infinite nor NaN."""
    if type(value) is float or type(value) is int or type(value) is str:
        try:
            number = float(value)
        except (ValueError, OverflowError):
            raise ValueError("not a number") from None
        if isfinite(number):
            return number
    raise ValueError("not a number")


def camel_case(name: str) -> str:
    """The wire name of a Python attribute: read_queue_nums -> readQueueNums."""
    head, *tail = name.split("_")
    return head + "".join(word.capitalize() for word in tail)
