"""What most handlers do with bodies and with changes that must reach the disk."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from mqcommon.errors import ProtocolError, RequestRefused, StoreError
from remoting.protocol.bodies import Body, WireBody, dialect_for, encode_body
from remoting.protocol.bodies.limited import SMALL, BodyLimits, decode_limited
from remoting.protocol.codes import ResponseCode
from remoting.protocol.command import Command

B = TypeVar("B", bound=Body)

#: Returns when all changes so far survive power loss; raises StoreError when that cannot be.
Durable = Callable[[], Awaitable[None]]


def read_body(cls: type[B], request: Command, limits: BodyLimits = SMALL) -> B:
    """The body of ``request``; refused when it is none, or over its limits."""
    try:
        return decode_limited(cls, request.body, request.codec, limits)
    except ProtocolError as error:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"the body cannot be read: {error}") from None


def answer_with(request: Command, body: WireBody) -> Command:
    """A successful answer with ``body``, as the peer reads it."""
    return request.respond(body=encode_body(body, dialect_for(request)))


@contextmanager
def refused_when_not_stored() -> Iterator[None]:
    """A change that could not be written is refused with the reason, and is no bug to be logged with a traceback."""
    try:
        yield
    except StoreError as error:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"not changed: {error}") from error
