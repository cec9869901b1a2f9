"""The message that is stored when a consumer gives one back. Pure.

It keeps body, keys, tags and user properties, so consumers filter it as before. RETRY_TOPIC names the topic that it was
sent to, ORIGIN_MESSAGE_ID the message that was consumed first; both stay the same at each further try.
Neighbour: send_back.py.
"""

from broker.writing.writer import Incoming
from mqcommon.message.flags import TRANSACTION_MASK
from mqcommon.message.ids import offset_msg_id
from mqcommon.message.properties import find_property, replace_properties
from mqcommon.message.record import Record

_DELAY, _RETRY_TOPIC, _ORIGIN_ID = b"DELAY", b"RETRY_TOPIC", b"ORIGIN_MESSAGE_ID"
_DLQ_TOPIC, _DLQ_ID = b"DLQ_ORIGIN_TOPIC", b"DLQ_ORIGIN_MESSAGE_ID"
_UNIQUE_KEY = b"UNIQ_KEY"


def given_back(record: Record, topic: str, queue_id: int, level: int | None) -> Incoming:
    """``record`` for the retry topic, to be delivered after ``level``; with None for the dead letter topic."""
    properties = record.properties
    origin = find_property(properties, _RETRY_TOPIC) or record.topic.encode()
    first_id = find_property(properties, _ORIGIN_ID)
    if not first_id:
        first_id = offset_msg_id(record.store_host, record.physical_offset).encode()
    values: dict[bytes, bytes | None] = {_RETRY_TOPIC: origin, _ORIGIN_ID: first_id}
    if level is None:
        values |= {_DELAY: None, _DLQ_TOPIC: origin, _DLQ_ID: first_id}
    else:
        values[_DELAY] = b"%d" % level
    return Incoming(
        topic, queue_id, record.body, replace_properties(properties, values), record.flag,
        record.sys_flag & ~TRANSACTION_MASK, record.born_timestamp, record.born_host, record.reconsume_times + 1,
    )  # fmt: skip


def named(record: Record) -> str:
    """The message id that clients log, and the topic that the message was sent to."""
    key = find_property(record.properties, _UNIQUE_KEY)
    message_id = key.decode(errors="replace") if key else offset_msg_id(record.store_host, record.physical_offset)
    origin = find_property(record.properties, _RETRY_TOPIC)
    return f"{message_id} of {origin.decode(errors='replace') if origin else record.topic}"
