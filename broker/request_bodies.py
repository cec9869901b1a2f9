"""What most handlers do with bodies and with changes that must reach the disk."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from mqcommon.errors import ProtocolError, RequestRefused, StoreError
from remoting.net.answers import answer_with
from remoting.protocol.bodies import Body
from remoting.protocol.bodies.limited import SMALL, BodyLimits, decode_limited
from remoting.protocol.codes import ResponseCode
from remoting.protocol.command import Command

__all__ = ["Durable", "answer_with", "read_body", "refused_when_not_stored"]

B = TypeVar("B", bound=Body)

#: Returns when all changes so far survive power loss; raises StoreError when that cannot be.
Durable = Callable[[], Awaitable[None]]


def read_body(cls: type[B], request: Command, limits: BodyLimits = SMALL) -> B:
    """The body of ``request``; refused when it is none, or over its limits."""
    try:
        return decode_limited(cls, request.body, request.codec, limits)
    except ProtocolError as error:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"the body cannot be read: {error}") from None


@contextmanager
def refused_when_not_stored() -> Iterator[None]:
    """A change that could not be written is refused with the reason, and is no bug to be logged with a traceback."""
    try:
        yield
    except StoreError as error:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"not changed: {error}") from error
