"""Which status a client gets for which error, also of a request that cannot be read. Pure."""

from collections.abc import Sequence
from typing import TypeVar

from google.protobuf.message import DecodeError
from google.protobuf.message import Message as ProtoMessage

from skylark.mqcommon.errors import (
    BrokerError,
    InvalidArgument,
    NoNameServer,
    RequestTimeout,
    RouteNotFound,
    SendFailed,
    SkylarkError,
)
from skylark.mqproxy.wire import messaging_pb2 as wire
from skylark.remoting.protocol.codes import ResponseCode

OK = wire.Status(code=wire.OK, message="OK")

A = TypeVar("A", bound=ProtoMessage)

# The statuses of RocketMQ's proxy for a broker's codes. Other codes are INTERNAL_SERVER_ERROR.
_OF_BROKER: dict[int, wire.Code] = {
    ResponseCode.SYSTEM_BUSY: wire.TOO_MANY_REQUESTS,
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: wire.NOT_IMPLEMENTED,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: wire.CONSUMER_GROUP_NOT_FOUND,
    ResponseCode.TOPIC_NOT_EXIST: wire.TOPIC_NOT_FOUND,
    ResponseCode.PULL_OFFSET_MOVED: wire.ILLEGAL_OFFSET,
    ResponseCode.NO_PERMISSION: wire.FORBIDDEN,
    ResponseCode.SUBSCRIPTION_PARSE_FAILED: wire.ILLEGAL_FILTER_EXPRESSION,
}


class Refused(Exception):
    """The proxy refuses a call; the client gets ``code`` and the text."""

    def __init__(self, code: wire.Code, text: str) -> None:
        super().__init__(code, text)
        self.code = code
        self.text = text


def parsed(kind: type[A], data: bytes) -> A:
    """The request of a call as an object of protobuf. Refused when the request cannot be read."""
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise Refused(wire.BAD_REQUEST, f"the request cannot be read: {error}") from None


def status_of(error: Refused | SkylarkError) -> wire.Status:
    """The status for ``error``, with its text."""
    if isinstance(error, Refused):
        return wire.Status(code=error.code, message=error.text)
    cause = error.__cause__
    if isinstance(error, SendFailed) and isinstance(cause, SkylarkError):
        return wire.Status(code=_code_of(cause), message=str(error))
    return wire.Status(code=_code_of(error), message=str(error))


def common_status(statuses: Sequence[wire.Status]) -> wire.Status:
    """The status of a call with several results: the code that all of them share, or MULTIPLE_RESULTS."""
    if len(statuses) > 1 and len({status.code for status in statuses}) > 1:
        return wire.Status(code=wire.MULTIPLE_RESULTS, message="MULTIPLE_RESULTS")
    return statuses[0]


def _code_of(error: SkylarkError) -> wire.Code:
    if isinstance(error, BrokerError):
        return _OF_BROKER.get(error.code, wire.INTERNAL_SERVER_ERROR)
    # A route that is missing only while servers start is no reason for a client to give up.
    if isinstance(error, RouteNotFound) and not error.is_passing:
        return wire.TOPIC_NOT_FOUND
    if isinstance(error, (RequestTimeout, NoNameServer)):
        return wire.PROXY_TIMEOUT
    if isinstance(error, InvalidArgument):
        return wire.BAD_REQUEST
    return wire.INTERNAL_SERVER_ERROR
