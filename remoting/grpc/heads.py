"""Headers of requests, and the headers and trailers of answers. Pure.

Answers use header blocks that are made once: nearly all of them say the same.
"""

from collections.abc import Mapping
from typing import Final

from skylark.remoting.grpc.statuses import GrpcError, StatusCode, message_of
from skylark.remoting.http2.header_blocks import block

_TYPE: Final = ("content-type", "application/grpc")
_STATUS: Final = (":status", "200")
#: The headers of an answer whose messages are not compressed, or may be.
HEAD: Final = block([_STATUS, _TYPE])
GZIP_HEAD: Final = block([_STATUS, _TYPE, ("grpc-encoding", "gzip")])
#: The trailers of a call that ends well.
OK: Final = block([("grpc-status", "0")])
#: Whole answers to requests that are not gRPC's.
NOT_POST: Final = block([(":status", "405"), ("allow", "POST")])
UNSUPPORTED_MEDIA_TYPE: Final = block([(":status", "415")])

_MAX_TIMEOUT_DIGITS: Final = 8
_UNIT_S: Final[Mapping[str, float]] = {"H": 3600, "M": 60, "S": 1, "m": 1e-3, "u": 1e-6, "n": 1e-9}


def is_grpc(content_type: str) -> bool:
    """Whether a request with this content-type speaks gRPC; gRPC-Web, for one, does not."""
    return content_type == "application/grpc" or content_type.startswith(("application/grpc+", "application/grpc;"))


def timeout_s(text: str) -> float:
    """The value of grpc-timeout in seconds. Raises GrpcError when it is none."""
    digits, unit_s = text[:-1], _UNIT_S.get(text[-1:])
    if unit_s is None or len(digits) > _MAX_TIMEOUT_DIGITS or not (digits.isascii() and digits.isdigit()):
        raise GrpcError(StatusCode.INTERNAL, f"grpc-timeout {text[:20]!r} is not a number of 1 to 8 digits and a unit")
    return int(digits) * unit_s


def failure(status: StatusCode, text: str, *, is_whole: bool) -> bytes:
    """The trailers of a call that fails; ``is_whole``: no headers were sent, so they are the whole answer."""
    head = [_STATUS, _TYPE] if is_whole else []
    return block([*head, ("grpc-status", str(int(status))), ("grpc-message", message_of(text))])


def unknown_encoding(encoding: str, *, takes_gzip: bool) -> bytes:
    """The whole answer to a request whose messages have an encoding that is not accepted."""
    accepted = "identity,gzip" if takes_gzip else "identity"
    text = f"grpc-encoding {encoding[:20]} is not supported"
    return block(
        [
            _STATUS,
            _TYPE,
            ("grpc-accept-encoding", accepted),
            ("grpc-status", str(int(StatusCode.UNIMPLEMENTED))),
            ("grpc-message", message_of(text)),
        ]
    )
