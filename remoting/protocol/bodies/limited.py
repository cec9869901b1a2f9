"""Bodies of requests, whose decoding keeps the event loop: what a server takes is bounded before it is decoded.

Bytes bound what the parser does, entries (members of maps and lists) what is made of its result afterwards.
"""

from dataclasses import dataclass
from typing import Any, Final, TypeVar

from mqcommon.errors import ProtocolError
from remoting.protocol import strict_cbor
from remoting.protocol.bodies.body import Body
from remoting.protocol.bodies.dialect import loads
from remoting.protocol.command import CBOR

B = TypeVar("B", bound=Body)


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """What a body may have; with ``relaxed_bytes`` what is not standard JSON, which code of ours reads."""

    max_bytes: int = 64 * 1024
    max_entries: int | None = 5_000
    relaxed_bytes: int = 16 * 1024


#: Of most requests: some 20 ms to decode at the most.
SMALL: Final = BodyLimits()


def decode_limited(cls: type[B], data: bytes, codec: int, limits: BodyLimits = SMALL) -> B:
    """As `decode_body`. ProtocolError when the body is none, or over a limit."""
    if len(data) > limits.max_bytes:
        raise ProtocolError(f"it has {len(data)} bytes, such a body has at most {limits.max_bytes}")
    found = strict_cbor.loads(data) if codec == CBOR else loads(data, relaxed_bytes=limits.relaxed_bytes)
    if limits.max_entries is not None and not _has_at_most(found, limits.max_entries):
        raise ProtocolError(f"it has more than {limits.max_entries} entries")
    return cls.from_wire(found)


def _has_at_most(value: Any, most: int) -> bool:
    """Whether the maps and lists in ``value`` have at most so many entries together; looks at no more than these."""
    left = most
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            inner: Any = one.values()
        elif isinstance(one, list | tuple):
            inner = one
        else:
            continue
        left -= len(inner)
        if left < 0:
            return False
        waiting.extend(inner)
    return True
