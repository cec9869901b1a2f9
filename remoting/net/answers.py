"""Answers with a body. A body that is too large for a frame is cut, with a remark that says so, or refused."""

from typing import Any, TypeVar

from skylark.mqcommon.errors import FrameTooLarge, RequestRefused
from skylark.remoting.net.steps import Steps, finish
from skylark.remoting.protocol.body import Body
from skylark.remoting.protocol.bounded_body import encode_within
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.dialect import dialect_for
from skylark.remoting.protocol.frame import MAX_FRAME_BYTES
from skylark.remoting.protocol.request import Request

B = TypeVar("B", bound=Body)

# Space that is kept for the header of an answer with a body.
HEADER_BYTES = 4_096


def answer_with(
    what: Request[Any, Any, Any, B], request: Command, body: B, max_frame_bytes: int = MAX_FRAME_BYTES
) -> Command:
    """A successful answer with ``body`` in the peer's dialect, made at once. For bodies with few entries."""
    return finish(answer_steps(what, request, body, max_frame_bytes))


def answer_steps(
    what: Request[Any, Any, Any, B],
    request: Command,
    body: B,
    max_frame_bytes: int = MAX_FRAME_BYTES,
    *,
    remedy: str = "",
) -> Steps[Command]:
    """A successful answer with ``body`` in the peer's dialect, made in steps. ``what`` describes the request.

    A list too long for a frame is cut, and the remark says so: to a person a part is better than nothing. Pass
    ``remedy`` when a cut body is useless: the request is then refused, and the remark says what to do.
    """
    hint = f"; {remedy}" if remedy else ""
    try:
        made = yield from encode_within(body, dialect_for(request), max_frame_bytes - HEADER_BYTES)
    except FrameTooLarge as error:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"the answer is too large: {error}{hint}") from None
    if made.left_out and remedy:
        fit = f"only {made.total - made.left_out} of {made.total} entries fit into a frame of {max_frame_bytes} bytes"
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"{fit}{hint}")
    remark = f"{made.left_out} of {made.total} entries are left out: they do not fit into a frame"
    return request.respond(remark=remark if made.left_out else None, body=made.data)
