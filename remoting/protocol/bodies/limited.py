"""Bodies of requests, checked against limits, because decoding them blocks the event loop.

The limit of bytes bounds the parser's work; the limit of entries (members of maps and lists) the work on its result.
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
    """The limits of a body; ``relaxed_bytes`` is that of JSON that is not standard, which Python code reads."""

    max_bytes: int = 64 * 1024
    max_entries: int | None = 5_000
    relaxed_bytes: int = 16 * 1024


#: The limits of most requests: at most some 20 ms to decode.
SMALL: Final = BodyLimits()


def decode_limited(cls: type[B], data: bytes, codec: int, limits: BodyLimits = SMALL) -> B:
    """As `decode_body`. Raises ProtocolError when the body cannot be read or is over a limit."""
    if len(data) > limits.max_bytes:
        raise ProtocolError(f"it has {len(data)} bytes, such a body has at most {limits.max_bytes}")
    found = strict_cbor.loads(data) if codec == CBOR else loads(data, relaxed_bytes=limits.relaxed_bytes)
    if limits.max_entries is not None and not _has_at_most(found, limits.max_entries):
        raise ProtocolError(f"it has more than {limits.max_entries} entries")
    return cls.from_wire(found)


def _has_at_most(value: Any, most: int) -> bool:
    """Whether all maps and lists in ``value`` together have at most ``most`` entries; stops counting beyond that."""
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
