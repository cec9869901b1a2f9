"""Answers with a body: cut to what a frame can carry, and saying so, or refused whole."""

from mqcommon.errors import FrameTooLarge, RequestRefused
from remoting.protocol.bodies import Body, dialect_for
from remoting.protocol.bodies.cut import encode_within
from remoting.protocol.codes import ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.frame import MAX_FRAME_BYTES

# For the header of an answer with a body.
HEADER_BYTES = 4_096


def answer_with(request: Command, body: Body, max_frame_bytes: int = MAX_FRAME_BYTES) -> Command:
    """A successful answer with ``body``, as the peer reads it.

    A list too long for a frame is cut, and the remark says so: better a part for a human than nothing.
    """
    try:
        data, left_out, total = encode_within(body, dialect_for(request), max_frame_bytes - HEADER_BYTES)
    except FrameTooLarge as error:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"the answer is too large: {error}") from None
    remark = f"{left_out} of {total} entries are left out: they do not fit into a frame" if left_out else None
    return request.respond(remark=remark, body=data)


def answer_with_all(request: Command, body: Body, max_frame_bytes: int, remedy: str) -> Command:
    """The same for a body that is worthless when it is cut: refused with ``remedy`` when it does not fit."""
    limit = max_frame_bytes - HEADER_BYTES
    try:
        data, left_out, total = encode_within(body, dialect_for(request), limit)
    except FrameTooLarge as error:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"the answer is too large: {error}; {remedy}") from None
    if left_out:
        text = f"only {total - left_out} of {total} entries fit into a frame of {max_frame_bytes} bytes; {remedy}"
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, text)
    return request.respond(body=data)
