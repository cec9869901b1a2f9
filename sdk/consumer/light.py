"""Messages pulled from a light queue, as they are in that queue. Pure.

Brokers return the stored records, which name the queue of the topic that they were sent to. The offsets in the light
queues are in a property.
"""

from mqcommon.message.columns import record_starts
from mqcommon.message.layout import HEAD_V4
from mqcommon.message.light import OFFSETS, QUEUES
from mqcommon.message.properties import find_property
from mqcommon.message.record import Record, decode_record

_QUEUE_ID_AT = HEAD_V4.starts["queue_id"]
_QUEUE_OFFSET_AT = HEAD_V4.starts["queue_offset"]


def as_in_light_queue(data: bytes, topic: str) -> bytes:
    """The records with the number and the offsets of the light queue ``topic``; their topics stay."""
    placed = bytearray(data)
    for at in record_starts(data):
        record = decode_record(data, at, check_crc=False)
        offset = _offset_in(record, topic)
        if offset is not None:
            placed[at + _QUEUE_ID_AT : at + _QUEUE_ID_AT + 4] = bytes(4)
            placed[at + _QUEUE_OFFSET_AT : at + _QUEUE_OFFSET_AT + 8] = offset.to_bytes(8, "big")
    return bytes(placed)


def _offset_in(record: Record, topic: str) -> int | None:
    """None for a message that was sent to the light queue itself."""
    names = (find_property(record.properties, QUEUES) or b"").split(b",")
    offsets = (find_property(record.properties, OFFSETS) or b"").split(b",")
    wanted = topic.encode()
    if record.topic == topic or wanted not in names[: len(offsets)]:
        return None
    offset = offsets[names.index(wanted)]
    return int(offset) if offset.isdigit() and len(offset) < 19 else None
