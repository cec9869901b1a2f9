"""What a connection tells its caller, in the order in which the peer did it."""

from collections.abc import Mapping
from typing import NamedTuple


class RequestReceived(NamedTuple):
    """A new stream.

    ``headers``: values by lower-case names, pseudo headers with their colon; values of a repeated name are joined by
    ",". Requests whose header blocks are equal share one mapping. ``is_whole``: no data follows. ``size_bytes``: what
    the headers take, as HTTP/2 counts them.
    """

    stream_id: int
    headers: Mapping[str, str]
    is_whole: bool
    size_bytes: int


class DataReceived(NamedTuple):
    """A part of a request's body. ``is_last``: the client has ended its side of the stream."""

    stream_id: int
    data: bytes
    is_last: bool


class StreamReset(NamedTuple):
    """A stream ended before its answer: the peer reset it, or it was reset because the peer broke a rule.

    ``code``: one of `ErrorCode`, or another number that the peer chose.
    """

    stream_id: int
    code: int


class WindowOpened(NamedTuple):
    """All queued data of a stream has gone out, and so have the trailers if they were queued."""

    stream_id: int


class PingAnswered(NamedTuple):
    """The peer answered a PING. ``is_leaving``: the one of `go_away`, so the peer has read its GOAWAY, too."""

    is_leaving: bool


class PingReceived(NamedTuple):
    """The peer sent a PING, which is answered already."""


Event = RequestReceived | DataReceived | StreamReset | WindowOpened | PingAnswered | PingReceived
