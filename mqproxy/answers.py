"""Answers of the calls that come most often, encoded without a message object. Pure.

The answer to a ReceiveMessage is a stream of messages: a status, the messages of stored.py, and the time at which the
proxy sent them. The status comes first, as from RocketMQ's proxy.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from skylark.mqproxy.statuses import OK
from skylark.mqproxy.wire import messaging_pb2 as wire
from skylark.mqproxy.wire.fields import encoded, sized, tag, text, time_of, varint

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

_OK: Final = sized(OK.SerializeToString().decode("latin-1"))
_SEND_IS_OK: Final = tag(_send["status"].number) + _OK
_SENT_IS_OK: Final = tag(_sent["status"].number) + _OK
_ENTRY_IS_OK: Final = encoded(tag(_entry["status"].number) + _OK)
_ALL_ARE_OK: Final = encoded(tag(_ack["status"].number) + _OK)


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


def acknowledged(entries: Sequence[bytes]) -> bytes:
    """The answer to an AckMessage all of whose messages were acknowledged: the fields of its entries (`AckRequest`)."""
    befores = [*map(_before_entry, map(len, entries))]
    if befores and befores.count(befores[0]) == len(befores):
        return b"".join((_ALL_ARE_OK, befores[0], (_ENTRY_IS_OK + befores[0]).join(entries), _ENTRY_IS_OK))
    parts = [_ALL_ARE_OK]
    for before, fields in zip(befores, entries, strict=True):
        parts += (before, fields, _ENTRY_IS_OK)
    return b"".join(parts)


@lru_cache(maxsize=1_024)
def _before_entry(fields_bytes: int) -> bytes:
    """What is before the fields of an acknowledged message, to which its status is added."""
    return encoded(_ENTRY + varint(fields_bytes + len(_ENTRY_IS_OK)))


_RECEIVED: Final = wire.ReceiveMessageResponse(status=OK).SerializeToString()
