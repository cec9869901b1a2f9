"""Bodies as bytes: the two dialects of JSON, and CBOR.

FASTJSON  {0:"a"}                  number keys bare; what Java before 4.9.4 reads and most brokers write
STANDARD  {"0":"a"}                number keys quoted; for clients that say so or are 4.9.4 and later
both      {{"brokerName":"b",..}:1}  object keys have this form only
CBOR      number keys as they are, object keys as arrays; between Skylark and Skylark

orjson reads and writes standard JSON; this module reads and writes the rest.
"""

import contextlib
import enum
import re
from typing import Any, Final, TypeVar

import cbor2
import orjson

from skylark.mqcommon.errors import ProtocolError
from skylark.mqcommon.message.queue import MessageQueue
from skylark.remoting.protocol import command, strict_cbor
from skylark.remoting.protocol.body import Body, WireBody, read_queue, write_queue
from skylark.remoting.protocol.command import CBOR, JSON
from skylark.remoting.protocol.scalars import read_flag

_MAX_DEPTH: Final = 64

_BLANKS: Final = re.compile(r"[ \t\r\n]*")
_ATOM: Final = re.compile(
    r'"[^"\\\x00-\x1f]*(?:\\.[^"\\\x00-\x1f]*)*"'
    r"|-?(?:0|[1-9][0-9]{0,18})(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,3})?(?![0-9])"
    r"|true|false|null"
)
#: An object or array without nested ones: mostly standard JSON, which one call of orjson reads.
_FLAT: Final = re.compile(r'\{(?:"[^"\\]*+(?:\\.[^"\\]*+)*+"[^{}\[\]"]*+)*+\}|\[[^{}\[\]"]*+\]')


def parse_relaxed(text: str) -> Any:
    """The one value in ``text``."""
    value, at = _value(text, _skip(text, 0), 0)
    if at != len(text):
        raise _error("more after the end", at)
    return value


def _value(text: str, at: int, depth: int) -> tuple[Any, int]:
    """The value at ``at``, and where the next token is."""
    if depth > _MAX_DEPTH:
        raise ProtocolError(f"body nests deeper than {_MAX_DEPTH}")
    start = text[at : at + 1]
    if start in ("{", "["):
        flat = _FLAT.match(text, at)
        if flat is not None:
            with contextlib.suppress(orjson.JSONDecodeError):
                return orjson.loads(flat[0]), _skip(text, flat.end())
    if start == "{":
        return _object(text, at, depth)
    if start == "[":
        return _array(text, at, depth)
    atom = _ATOM.match(text, at)
    if atom is None:
        raise _error("no value", at)
    try:
        return orjson.loads(atom[0]), _skip(text, atom.end())
    except orjson.JSONDecodeError:  # a wrong escape
        raise _error("no value", at) from None


def _object(text: str, at: int, depth: int) -> tuple[dict[Any, Any], int]:
    found: dict[Any, Any] = {}
    at = _skip(text, at + 1)
    if text[at : at + 1] == "}":
        return found, _skip(text, at + 1)
    while True:
        key_at = at
        key, at = _value(text, at, depth + 1)
        if type(key) is dict:
            try:
                key = read_queue(key)
            except ValueError as error:
                raise _error(f"a key is {error}", key_at) from None
        elif type(key) is not str and type(key) is not int:
            raise _error("a key is neither text nor an integer nor an object", key_at)
        if text[at : at + 1] != ":":
            raise _error("no colon after a key", at)
        found[key], at = _value(text, _skip(text, at + 1), depth + 1)
        at, more = _next(text, at, "}")
        if not more:
            return found, at


def _array(text: str, at: int, depth: int) -> tuple[list[Any], int]:
    found: list[Any] = []
    at = _skip(text, at + 1)
    if text[at : at + 1] == "]":
        return found, _skip(text, at + 1)
    while True:
        value, at = _value(text, at, depth + 1)
        found.append(value)
        at, more = _next(text, at, "]")
        if not more:
            return found, at


def _next(text: str, at: int, closing: str) -> tuple[int, bool]:
    """Past the comma or the closing bracket at ``at``, and whether it was a comma."""
    char = text[at : at + 1]
    if char != "," and char != closing:
        raise _error(f"neither comma nor {closing}", at)
    return _skip(text, at + 1), char == ","


def _skip(text: str, at: int) -> int:
    blanks = _BLANKS.match(text, at)
    assert blanks is not None  # it also matches no blanks at all
    return blanks.end()


def _error(reason: str, at: int) -> ProtocolError:
    return ProtocolError(f"body is not JSON: {reason} at character {at}")


#: JSON that is not standard is read by Python code on the event loop. More than 10,000 queues fit into this size.
MAX_RELAXED_BYTES: Final = 2 * 1024 * 1024

#: V4_9_4: from here clients read quoted number keys.
_STANDARD_SINCE: Final = 401


class Dialect(enum.Enum):
    """The forms of bodies that peers want."""

    FASTJSON = enum.auto()
    STANDARD = enum.auto()
    CBOR = enum.auto()


def dialect_for(request: command.Command) -> Dialect:
    """The dialect to answer ``request`` in."""
    if request.codec == command.CBOR:
        return Dialect.CBOR
    if request.version >= _STANDARD_SINCE:
        return Dialect.STANDARD
    if request.ext and read_flag(request.ext.get("acceptStandardJsonOnly")):
        return Dialect.STANDARD
    return Dialect.FASTJSON


def dumps(obj: Any, dialect: Dialect = Dialect.STANDARD) -> bytes:
    """Plain values as bytes; keys of maps may be text, int or MessageQueue."""
    if dialect is Dialect.CBOR:
        return cbor2.dumps(obj)
    return _json(obj, orjson.OPT_NON_STR_KEYS if dialect is Dialect.STANDARD else 0)


def loads(data: bytes, *, relaxed_bytes: int = MAX_RELAXED_BYTES) -> Any:
    """Plain values from JSON of either dialect. Bare number keys become int, quoted ones stay text.

    ``relaxed_bytes``: how long a text that is not standard JSON may be.
    """
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        if len(data) > relaxed_bytes:
            raise ProtocolError(f"body is not JSON, or is too long for nonstandard JSON: {len(data)} bytes") from None
    try:
        text = str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise ProtocolError(f"body is not UTF-8: {error.reason} at byte {error.start}") from None
    return parse_relaxed(text)


def _json(value: Any, option: int) -> bytes:
    try:
        return orjson.dumps(value, option=option)
    except orjson.JSONEncodeError:
        if type(value) is dict:
            pairs = (_key(key, option) + b":" + _json(each, option) for key, each in value.items())
            return b"{" + b",".join(pairs) + b"}"
        if type(value) is list:
            return b"[" + b",".join(_json(each, option) for each in value) + b"]"
        raise


def _key(key: Any, option: int) -> bytes:
    if isinstance(key, MessageQueue):
        return orjson.dumps(write_queue(key))
    text = orjson.dumps(key)
    return b'"' + text + b'"' if option and type(key) is int else text


__all__ = ["Body", "Dialect", "WireBody", "decode_body", "dialect_for", "dumps", "encode_body", "loads"]

_B = TypeVar("_B", bound=Body)


def encode_body(body: WireBody, dialect: Dialect = Dialect.STANDARD) -> bytes:
    """``body`` in the peer's dialect."""
    return dumps(body.to_wire(), dialect)


def decode_body(cls: type[_B], data: bytes, codec: int = JSON, relaxed_bytes: int = MAX_RELAXED_BYTES) -> _B:
    """The body of a command whose header type is ``codec``. Raises ProtocolError when it cannot be read."""
    return cls.from_wire(strict_cbor.loads(data) if codec == CBOR else loads(data, relaxed_bytes=relaxed_bytes))
