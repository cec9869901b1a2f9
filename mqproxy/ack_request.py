"""The request of an AckMessage, of which only what its carrying out needs is read. Pure.

Clients mostly acknowledge the messages of one receive together, whose ids and receipt handles have one size each. Such
entries are cut out of the request, without an object of protobuf for each.
"""

from typing import Final, NamedTuple

from skylark.mqproxy.statuses import parsed
from skylark.mqproxy.wire import messaging_pb2 as wire
from skylark.mqproxy.wire.fields import encoded, tag, text

_request = wire.AckMessageRequest.DESCRIPTOR.fields_by_name
_GROUP, _TOPIC, _ENTRIES = (ord(tag(_request[name].number)) for name in ("group", "topic", "entries"))
_entry = wire.AckMessageEntry.DESCRIPTOR.fields_by_name
_MESSAGE_ID, _RECEIPT_HANDLE = (ord(tag(_entry[name].number)) for name in ("message_id", "receipt_handle"))
# The longest field whose size takes one byte.
_SHORT: Final = 127


class _Entries(NamedTuple):
    """``at``: where the entries begin in the request. ``fields`` and ``handles``: as of `AckRequest`."""

    at: int
    fields: list[bytes]
    handles: list[str]


class AckRequest:
    """The request ``data``. Refused when it cannot be read.

    ``handles``: the receipt handle of each entry. ``fields``: the encoded id and receipt handle of each entry.
    """

    __slots__ = ("_data", "fields", "group", "handles", "topic")

    def __init__(self, data: bytes) -> None:
        self._data = data
        alike = _alike(data)
        if alike is not None:
            at, self.fields, self.handles = alike
            names = parsed(wire.AckMessageRequest, data[:at])
        else:
            names = parsed(wire.AckMessageRequest, data)
            self.handles = [entry.receipt_handle for entry in names.entries]
            self.fields = [_fields(entry.message_id, entry.receipt_handle) for entry in names.entries]
        self.topic, self.group = names.topic, names.group

    def whole(self) -> wire.AckMessageRequest:
        """The request as an object of protobuf."""
        return parsed(wire.AckMessageRequest, self._data)


def _fields(message_id: str, handle: str) -> bytes:
    return encoded(f"{chr(_MESSAGE_ID)}{text(message_id)}{chr(_RECEIPT_HANDLE)}{text(handle)}")


def _alike(data: bytes) -> _Entries | None:
    """The entries; None unless they are the last fields, short, in ASCII, and have ids of one size, and handles too."""
    at = 0
    try:
        while data[at] in (_GROUP, _TOPIC):
            value_at, size = _field(data, at, data[at])
            at = value_at + size
        entry_at, size = _field(data, at, _ENTRIES)
        id_at, id_bytes = _field(data, entry_at, _MESSAGE_ID)
        between_at = id_at + id_bytes
        handle_at, handle_bytes = _field(data, between_at, _RECEIPT_HANDLE)
    except LookupError:
        return None
    row_bytes, end = entry_at + size - at, len(data)
    count, rest = divmod(end - at, row_bytes)
    if rest or handle_at + handle_bytes != at + row_bytes:
        return None
    # Each entry must have the tags and the sizes of the first entry.
    for place in (*range(at, id_at), *range(between_at, handle_at)):
        if data[place::row_bytes] != data[place : place + 1] * count:
            return None
    characters = data.decode("latin-1")
    if not characters.isascii():
        return None
    starts = range(entry_at, end, row_bytes)
    handle_place = handle_at - entry_at
    handles = [characters[start + handle_place : start + size] for start in starts]
    return _Entries(at, [data[start : start + size] for start in starts], handles)


def _field(data: bytes, at: int, wanted: int) -> tuple[int, int]:
    """Where the value of the field at ``at`` begins, and its size. LookupError unless it is short, with this tag."""
    if data[at] != wanted or data[at + 1] > _SHORT:
        raise LookupError("another field, or a longer one")
    return at + 2, data[at + 1]
