"""Answers of receives and acknowledgements, which have many parts: encoded without a message object. Pure.

The answer to a ReceiveMessage is a stream of messages: a status, the messages of stored.py, and the time at which the
proxy sent them. The status comes first, as from RocketMQ's proxy.
"""

from collections.abc import Sequence
from typing import Final

from skylark.mqproxy.statuses import OK
from skylark.mqproxy.wire import messaging_pb2 as wire
from skylark.mqproxy.wire.fields import encoded, sized, tag, text, time_of

_receive = wire.ReceiveMessageResponse.DESCRIPTOR.fields_by_name
_DELIVERY_TIMESTAMP: Final = tag(_receive["delivery_timestamp"].number)

_ack = wire.AckMessageResponse.DESCRIPTOR.fields_by_name
_ENTRY: Final = tag(_ack["entries"].number)
_entry = wire.AckMessageResultEntry.DESCRIPTOR.fields_by_name
_MESSAGE_ID: Final = tag(_entry["message_id"].number)
_RECEIPT_HANDLE: Final = tag(_entry["receipt_handle"].number)
_OK: Final = sized(OK.SerializeToString().decode("latin-1"))
_ENTRY_IS_OK: Final = tag(_entry["status"].number) + _OK
_ALL_ARE_OK: Final = tag(_ack["status"].number) + _OK


def receive_status(status: wire.Status) -> bytes:
    """The first part of the answer to a ReceiveMessage."""
    return _RECEIVED if status is OK else wire.ReceiveMessageResponse(status=status).SerializeToString()


def sent_at(now_ms: int) -> bytes:
    """The last part of the answer to a ReceiveMessage."""
    time = time_of(now_ms)
    return b"" if time is None else encoded(_DELIVERY_TIMESTAMP + time)


def acknowledged(entries: Sequence[wire.AckMessageEntry]) -> bytes:
    """The answer to an AckMessage all of whose messages were acknowledged."""
    made = [_ALL_ARE_OK]
    for entry in entries:
        id_, handle = text(entry.message_id), text(entry.receipt_handle)
        made += (_ENTRY, sized(f"{_MESSAGE_ID}{id_}{_RECEIPT_HANDLE}{handle}{_ENTRY_IS_OK}"))
    return encoded("".join(made))


_RECEIVED: Final = wire.ReceiveMessageResponse(status=OK).SerializeToString()
