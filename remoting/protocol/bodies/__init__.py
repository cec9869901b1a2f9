"""Typed bodies of requests and answers.

One dataclass a body, grouped by family; each has ``to_wire()``, plain dicts and lists in fastjson's member
order, and ``from_wire(obj)``. dialect.py turns those into bytes and back, body.py and kinds.py are what
the dataclasses are declared with. Use::

    body = encode_body(route, dialect_for(request))
    route = decode_body(TopicRouteData, answer.body, answer.codec)

requests/ says which body belongs to which request. Bodies of messages are in mqcommon/message; bodies that are
properties text (25, 26, 318, 319) need no class.
"""

from typing import TypeVar

from remoting.protocol import strict_cbor
from remoting.protocol.bodies.body import Body
from remoting.protocol.bodies.dialect import MAX_RELAXED_BYTES, Dialect, dialect_for, dumps, loads
from remoting.protocol.bodies.kinds import WireBody
from remoting.protocol.command import CBOR, JSON

__all__ = ["Body", "Dialect", "WireBody", "decode_body", "dialect_for", "dumps", "encode_body", "loads"]

_B = TypeVar("_B", bound=Body)


def encode_body(body: WireBody, dialect: Dialect = Dialect.STANDARD) -> bytes:
    """``body`` in the peer's dialect."""
    return dumps(body.to_wire(), dialect)


def decode_body(cls: type[_B], data: bytes, codec: int = JSON, relaxed_bytes: int = MAX_RELAXED_BYTES) -> _B:
    """The body of a command whose header type is ``codec``. Raises ProtocolError when it cannot be read."""
    return cls.from_wire(strict_cbor.loads(data) if codec == CBOR else loads(data, relaxed_bytes=relaxed_bytes))
