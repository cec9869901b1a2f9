"""gRPC's status codes, the error that carries one, and their form in trailers."""

from enum import IntEnum
from typing import Final
from urllib.parse import quote

# A text is cut to this size, so that clients, which limit trailers to 8 KiB, take it when each byte becomes three.
MAX_TEXT_BYTES: Final = 1_024
# The printable ASCII characters but the percent sign.
_PLAIN: Final = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")


class StatusCode(IntEnum):
    """How a call has ended."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class GrpcError(Exception):
    """Raised in a handler to end its call with ``status``; the client sees ``text``, too."""

    def __init__(self, status: StatusCode, text: str) -> None:
        super().__init__(f"{status.name}: {text}")
        self.status = status
        self.text = text


def message_of(text: str) -> str:
    """``text`` as the value of grpc-message: UTF-8, percent-encoded, cut to MAX_TEXT_BYTES."""
    cut = text.encode(errors="replace")[:MAX_TEXT_BYTES].decode(errors="ignore")
    return quote(cut, safe=_PLAIN)
