"""One option: its declaration as a dataclass field, and the reading of its value from text.

Bounds and choices are checked here, so conf file, command line and update requests give the same errors.
A field ``listen_port`` is RocketMQ's key ``listenPort`` (another spelling: ``key=``), the flag ``--listen-port``, and
the environment variable ``SKYLARK_LISTEN_PORT``.
Neighbours: conf_file.py, command_line.py (flags and docs), environment.py.
"""

import dataclasses
import math
import re
import typing
from collections.abc import Hashable
from functools import cache
from typing import Any, TypeVar

from skylark.mqcommon.errors import ConfigError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass

T = TypeVar("T")
#: How the environment variables of options begin.
PREFIX = "SKYLARK_"
#: The unit of options whose value may be a size, as 64MB.
BYTES = "bytes"
Value = int | float | bool | str

# The most digits of a number: reading a number takes quadratic time in its digits.
_INTEGER = re.compile(r"[+-]?[0-9]{1,100}", re.ASCII)
# Units of sizes, which RocketMQ's conf files do not have: a kilobyte has 1,024 bytes.
_SIZE = re.compile(r"([0-9]{1,15}) ?([KMGT])(?:i?B)?", re.ASCII | re.IGNORECASE)
_SHIFTS = {"K": 10, "M": 20, "G": 30, "T": 40}
_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1


@lazy_dataclass(frozen=True, slots=True)
class Option:
    """One option, as its dataclass field declares it."""

    name: str
    key: str
    kind: type
    default: Value
    help: str
    unit: str | None
    choices: tuple[str, ...] | None
    minimum: float | None
    maximum: float | None
    env: str | None
    mutable: bool
    secret: bool

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """The environment variable that every option has; ``env`` is another one, which some have."""
        return PREFIX + self.name.upper()


def option(
    default: T,
    help: str,
    *,
    key: str | None = None,
    unit: str | None = None,
    choices: tuple[str, ...] | None = None,
    minimum: float | None = None,
    maximum: float | None = None,
    env: str | None = None,
    mutable: bool = False,
    secret: bool = False,
) -> T:
    """Declare a field of an options dataclass.

    A ``mutable`` option may change while the daemon runs. A ``secret`` option is in no repr, and masked where options
    are shown. ``env`` names a variable of RocketMQ's that sets the option, beside ``SKYLARK_<NAME>``.
    """
    metadata = {
        "key": key,
        "help": help,
        "unit": unit,
        "choices": choices,
        "minimum": minimum,
        "maximum": maximum,
        "env": env,
        "mutable": mutable,
        "secret": secret,
    }
    field: T = dataclasses.field(default=default, metadata=metadata, repr=not secret)
    return field


def options_of(cls: type[Any]) -> list[Option]:
    """The options of a dataclass, in the order in which they are declared."""
    return list(_options_of(typing.cast(Hashable, cls)))


# Without the cache a request for a daemon's options would take milliseconds.
@cache
def _options_of(cls: Any) -> list[Option]:
    kinds = typing.get_type_hints(cls)
    options = []
    for field in dataclasses.fields(cls):
        values = {**field.metadata, "key": field.metadata["key"] or camel_case(field.name)}
        default = typing.cast(Value, field.default)
        options.append(Option(name=field.name, kind=kinds[field.name], default=default, **values))
    return options


def camel_case(name: str) -> str:
    """``listen_port`` -> ``listenPort``."""
    head, *tail = name.split("_")
    return head + "".join(part[:1].upper() + part[1:] for part in tail)


def value_text(value: Value) -> str:
    """A value as a conf file has it."""
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


def parse_value(o: Option, text: str, source: str, line: int = 0) -> Value:
    """The value of ``text``. Raises a ConfigError that says where, what is wrong and what to give instead."""
    text = text.strip()
    name = place(source, line)
    # A flag and a variable name the option themselves.
    if source not in (o.flag, o.env) and not source.startswith(o.variable):
        name += f"{o.key}: "
    if o.kind is str:
        return _parse_text(o, text, name)
    if o.kind is bool:
        if text.lower() not in ("true", "false"):
            raise ConfigError(f"{name}{text!r} is not a boolean; give true or false")
        return text.lower() == "true"
    value: int | float | None
    if o.kind is int:
        value = int(text) if _INTEGER.fullmatch(text) else _size(text) if o.unit == BYTES else None
    else:
        value = _finite(text)
    if value is None:
        what = "an integer" if o.kind is int else "a number"
        what += ", nor a size as 64MB" if o.unit == BYTES else ""
        raise ConfigError(f"{name}{text!r} is not {what}; {_range(o)}")
    low, high = _limits(o)
    if not low <= value <= high:
        raise ConfigError(f"{name}{text} is too {'small' if value < low else 'large'}; {_range(o)}")
    return value


def _parse_text(o: Option, text: str, name: str) -> str:
    if o.choices is None:
        return text
    for choice in o.choices:
        if text.lower() == choice.lower():
            return choice
    raise ConfigError(f"{name}{text!r} is not a choice; give {' or '.join(o.choices)}")


def _size(text: str) -> int | None:
    """The bytes of a text like ``64MB``, ``64M`` or ``64MiB``."""
    found = _SIZE.fullmatch(text)
    return None if found is None else int(found[1]) << _SHIFTS[found[2].upper()]


def _finite(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _limits(o: Option) -> tuple[float, float]:
    # Java's tools read an option as a long, whatever its own bounds are.
    low = _INT64_MIN if o.kind is int else -math.inf
    high = _INT64_MAX if o.kind is int else math.inf
    return (low if o.minimum is None else o.minimum, high if o.maximum is None else o.maximum)


def _range(o: Option) -> str:
    if o.minimum is not None and o.maximum is not None:
        return f"give a number from {o.minimum} to {o.maximum}"
    if o.minimum is not None:
        return f"give a number from {o.minimum} up"
    if o.maximum is not None:
        return f"give a number up to {o.maximum}"
    return "give a number"


def place(source: str, line: int = 0) -> str:
    """The beginning of an error text: which file, which line."""
    if not source:
        return ""
    return f"{source}:{line}: " if line else f"{source}: "
