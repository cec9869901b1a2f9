"""A reader of fastjson's JSON, whose keys may be numbers or objects, unlike those of standard JSON.

{0:"a"} gives {0: "a"}; {{"brokerName":"b","queueId":0,"topic":"t"}:1} gives {MessageQueue("t","b",0): 1}.
Used only for texts that a standard parser has refused. Depth is bounded; any other text raises ProtocolError.
"""

import contextlib
import re
from typing import Any, Final

import orjson

from mqcommon.errors import ProtocolError
from remoting.protocol.bodies.kinds import read_queue

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
