"""What most handlers do with bodies and with changes that must reach the disk."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

from mqcommon.errors import ProtocolError, RequestRefused, StoreError
from remoting.net.steps import Steps
from remoting.protocol.bodies import Body, WireBody, dialect_for, encode_body
from remoting.protocol.bodies.limited import SMALL, BodyLimits, decode_limited
from remoting.protocol.bodies.sliced import encode_steps
from remoting.protocol.codes import ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.frame import MAX_FRAME_BYTES

B = TypeVar("B", bound=Body)

#: The largest body of an answer: what a frame holds, less its header.
MAX_ANSWER_BYTES: Final = MAX_FRAME_BYTES - 64 * 1024

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


def answer_steps(request: Command, body: Body, *, may_cut: bool = False) -> Steps[Command]:
    """As `answer_with`, for what may be large, in steps.

    What is longer than a frame is refused, or with ``may_cut`` cut, and the remark says so: for lists that people read.
    """
    encoded = yield from encode_steps(body, dialect_for(request), MAX_ANSWER_BYTES)
    remark = None
    if encoded.left_out:
        remark = f"{encoded.left_out} entries are left out: an answer has at most {MAX_ANSWER_BYTES} bytes"
        if not may_cut:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"{remark}; ask for a part of them")
    return request.respond(remark=remark, body=encoded.data)


@contextmanager
def refused_when_not_stored() -> Iterator[None]:
    """A change that could not be written is refused with the reason, and is no bug to be logged with a traceback."""
    try:
        yield
    except StoreError as error:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"not changed: {error}") from error
