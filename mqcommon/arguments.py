"""Checks of arguments. Pure.

A wrong type raises TypeError, a wrong value InvalidArgument (a ValueError). The text names the argument and shows its
value, cut to one line. A bool does not count as a number, since it is never meant as one.
Neighbours: `Message` and `MessageQueue` check themselves with these; sdk/checked.py reads checks from annotations.
"""

from math import isfinite
from reprlib import Repr

from skylark.mqcommon.errors import InvalidArgument

INT_MIN, INT_MAX = -(2**31), 2**31 - 1
LONG_MAX = 2**63 - 1

_REPR = Repr()
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = 60


def shown(value: object) -> str:
    """The type and the beginning of ``value``, for an error's text."""
    kind = type(value).__name__
    if value is None:
        return "None"
    try:
        return f"{kind} {_REPR.repr(value[:40] if isinstance(value, bytes | bytearray) else value)}"
    except Exception:  # its own __repr__ failed
        return kind


def wrong_type(name: str, wanted: str, value: object, hint: str = "") -> TypeError:
    """The error to raise when argument ``name`` is not ``wanted``. ``hint``: the end of its text."""
    return TypeError(f"{name} must be {wanted}, not {shown(value)}{hint}")


def check_text(name: str, value: object) -> None:
    """TypeError unless ``value`` is a str; InvalidArgument when UTF-8 cannot hold it."""
    if not isinstance(value, str):
        # A name of several words is no expression of the caller's.
        as_in = "" if " " in name else f", as in {name}.decode()"
        hint = f": decode it{as_in}" if isinstance(value, bytes) else ""
        raise wrong_type(name, "a str", value, hint)
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise InvalidArgument(f"{name} must be text that UTF-8 can hold, not {shown(value)}: {error}") from None


def check_bytes(name: str, value: object) -> None:
    """TypeError unless ``value`` is bytes."""
    if not isinstance(value, bytes):
        raise wrong_type(name, "bytes", value, hint_for_bytes(name, value))


def hint_for_bytes(name: str, value: object) -> str:
    """What to write instead of ``value``, for an error text. ``name``: the argument's name; "value" in `send_value`."""
    if isinstance(value, str):
        return f": encode it, as in {name}.encode()"
    if isinstance(value, bytearray | memoryview):
        return f": copy it, as in bytes({name})"
    if value is None:
        return ': b"" is an empty value'
    if isinstance(value, int | float):
        return f": encode it, as in str({name}).encode()"
    hint = f": encode it, as in json.dumps({name}).encode()"
    return hint if name == "value" else f"{hint}, or use Producer(value=...) and send_value"


def as_bytes(name: str, value: object) -> bytes:
    """``value`` as bytes.

    A bytearray or a memoryview is copied, as its owner may change it later. TypeError for others.
    """
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    check_bytes(name, value)
    assert isinstance(value, bytes)
    return value


def check_flag(name: str, value: object) -> None:
    """TypeError unless ``value`` is True or False."""
    if not isinstance(value, bool):
        raise wrong_type(name, "True or False", value)


def as_long(value: int) -> int:
    """``value``, or the nearest number that fits into 64 bits."""
    return max(-LONG_MAX - 1, min(value, LONG_MAX))


def check_int(name: str, value: object, least: int = -LONG_MAX - 1, most: int = LONG_MAX) -> None:
    """TypeError unless ``value`` is an int; InvalidArgument unless it is from ``least`` to ``most``."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise wrong_type(name, "an int", value)
    if not least <= value <= most:
        raise InvalidArgument(f"{name} must be from {least} to {most}, not {shown(value)}")


def check_milliseconds(name: str, value: object) -> None:
    """TypeError unless ``value`` is a number; InvalidArgument unless it can be a timeout in milliseconds."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise wrong_type(name, "a number of milliseconds", value)
    if not isfinite(value) or not 0 < value <= INT_MAX:
        raise InvalidArgument(f"{name} must be more than 0 and at most {INT_MAX} ms, not {shown(value)}")
