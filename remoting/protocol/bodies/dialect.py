"""Bodies as bytes: the two dialects of JSON, and CBOR.

FASTJSON  {0:"a"}                  number keys bare; what Java before 4.9.4 reads and most brokers write
STANDARD  {"0":"a"}                number keys quoted; for clients that say so or are 4.9.4 and later
both      {{"brokerName":"b",..}:1}  object keys have this form only
CBOR      number keys as they are, object keys as arrays; between Skylark and Skylark

orjson reads and writes standard JSON; the rest is done by relaxed.py and this module.
"""

import enum
from typing import Any, Final

import cbor2
import orjson

from mqcommon.errors import ProtocolError
from mqcommon.message.queue import MessageQueue
from remoting.protocol import command
from remoting.protocol.bodies.kinds import write_queue
from remoting.protocol.bodies.relaxed import parse_relaxed
from remoting.protocol.scalars import read_flag

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
