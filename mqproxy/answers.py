"""Answers of the calls that come most often, encoded without a message object. Pure.

The answer to a ReceiveMessage is a stream of messages: a status, the messages of stored.py, and the time at which the
proxy sent them. The status comes first, as from RocketMQ's proxy.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from skylark.mqproxy.statuses import OK
from skylark.mqproxy.wire import messaging_pb2 as wire
from skylark.mqproxy.wire.fields import encoded, in_latin_1, sized, tag, text, time_of, varint

_send = wire.SendMessageResponse.DESCRIPTOR.fields_by_name
_sent = wire.SendResultEntry.DESCRIPTOR.fields_by_name
_SENT_ENTRY: Final = tag(_send["entries"].number)
_SENT_ID: Final = tag(_sent["message_id"].number)
_SENT_TRANSACTION: Final = tag(_sent["transaction_id"].number)
_SENT_OFFSET: Final = tag(_sent["offset"].number, is_varint=True)
_SENT_RECALL_HANDLE: Final = tag(_sent["recall_handle"].number)

_receive = wire.ReceiveMessageResponse.DESCRIPTOR.fields_by_name
_DELIVERY_TIMESTAMP: Final = tag(_receive["delivery_timestamp"].number)

_ack = wire.AckMessageResponse.DESCRIPTOR.fields_by_name
_ENTRY: Final = tag(_ack["entries"].number)
_entry = wire.AckMessageResultEntry.DESCRIPTOR.fields_by_name
_MESSAGE_ID: Final = tag(_entry["message_id"].number)
_RECEIPT_HANDLE: Final = tag(_entry["receipt_handle"].number)

_OK: Final = sized(OK.SerializeToString().decode("latin-1"))
_SEND_IS_OK: Final = tag(_send["status"].number) + _OK
_SENT_IS_OK: Final = tag(_sent["status"].number) + _OK
_ENTRY_IS_OK: Final = tag(_entry["status"].number) + _OK
_ALL_ARE_OK: Final = tag(_ack["status"].number) + _OK


def sent_one(msg_id: str, offset: int, recall_handle: str) -> bytes:
    """The answer to a SendMessage of one message that is stored at ``offset`` of its queue, without a transaction."""
    id_ = text(msg_id)
    entry = f"{_SENT_IS_OK}{_SENT_ID}{id_}{_SENT_TRANSACTION}{id_}{_SENT_OFFSET}{varint(offset)}"
    if recall_handle:
        entry += _SENT_RECALL_HANDLE + text(recall_handle)
    return encoded(f"{_SEND_IS_OK}{_SENT_ENTRY}{sized(entry)}")


def receive_status(status: wire.Status) -> bytes:
    """The first part of the answer to a ReceiveMessage."""
    return _RECEIVED if status is OK else wire.ReceiveMessageResponse(status=status).SerializeToString()


def receive_end(now_ms: int) -> bytes:
    """The last part of the answer to a ReceiveMessage."""
    time = time_of(now_ms)
    return b"" if time is None else encoded(_DELIVERY_TIMESTAMP + time)


def acknowledged(ids: Sequence[str], handles: Sequence[str]) -> bytes:
    """The answer to an AckMessage all of whose messages were acknowledged: their ids and receipt handles."""
    made = _ALL_ARE_OK
    if not ("".join(ids).isascii() and "".join(handles).isascii()):
        ids, handles = [*map(in_latin_1, ids)], [*map(in_latin_1, handles)]
    for id_, handle in zip(ids, handles, strict=True):
        before_id, before_handle = _acknowledgement(len(id_), len(handle))
        made += f"{before_id}{id_}{before_handle}{handle}{_ENTRY_IS_OK}"
    return encoded(made)


@lru_cache(maxsize=1_024)
def _acknowledgement(id_chars: int, handle_chars: int) -> tuple[str, str]:
    """What is before the id of an acknowledged message, and before its receipt handle; both of these sizes."""
    before_id = f"{_MESSAGE_ID}{varint(id_chars)}"
    before_handle = f"{_RECEIPT_HANDLE}{varint(handle_chars)}"
    entry_bytes = len(before_id) + id_chars + len(before_handle) + handle_chars + len(_ENTRY_IS_OK)
    return f"{_ENTRY}{varint(entry_bytes)}{before_id}", before_handle


_RECEIVED: Final = wire.ReceiveMessageResponse(status=OK).SerializeToString()
