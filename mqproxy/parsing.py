"""Requests as objects of protobuf. Pure."""

from typing import TypeVar

from google.protobuf.message import DecodeError
from google.protobuf.message import Message as ProtoMessage

from skylark.mqproxy.statuses import Refused
from skylark.mqproxy.wire import messaging_pb2 as wire

A = TypeVar("A", bound=ProtoMessage)


def parsed(kind: type[A], data: bytes) -> A:
    """The request of a call. Refused when it cannot be read."""
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise Refused(wire.BAD_REQUEST, f"the request cannot be read: {error}") from None
