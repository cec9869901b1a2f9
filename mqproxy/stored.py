"""Stored messages as clients of gRPC read them, encoded. Pure, but for MD5.

Clients read many messages in one call, so the bytes of a message are made at once, without an object of protobuf,
which would take about twice the time. What neighbours have in common is remembered: their hosts, and what is made of
their properties, which mostly differ in nothing but the unique key.
"""

import hashlib
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Final, NamedTuple

from skylark.mqcommon.addresses import format_address
from skylark.mqcommon.arguments import INT_MAX
from skylark.mqcommon.message.flags import COMPRESSED
from skylark.mqcommon.message.ids import decode_host, offset_msg_id
from skylark.mqcommon.message.message import MessageExt
from skylark.mqcommon.message.properties import (
    KEYS,
    PRIORITY,
    RESERVED,
    SHARDING_KEY,
    TAGS,
    UNIQ_KEY,
    decode_properties,
    property_place,
)
from skylark.mqcommon.message.record import Record
from skylark.mqproxy.deliveries import Delivery, PoppedRun
from skylark.mqproxy.sending import BORN_HOST, DELIVER_AT, SHOWN, TRACE_CONTEXT
from skylark.mqproxy.wire import messaging_pb2 as wire
from skylark.mqproxy.wire.fields import (
    cached_varint,
    duration_of,
    encoded,
    in_latin_1,
    sized,
    tag,
    text,
    time_of,
    varint,
)

_LONG_MAX_DIGITS: Final = 19
# Longer encoded properties, in bytes, are not remembered: senders write what they like.
_MAX_REMEMBERED: Final = 512
_KEY_NAME: Final = UNIQ_KEY.encode()
_HIDDEN: Final = RESERVED - SHOWN
# What makes a message one of another type than NORMAL.
_TRANSACTION: Final = "TRAN_MSG"
_DELAYED: Final = ("DELAY", DELIVER_AT, "TIMER_DELAY_SEC", "TIMER_DELAY_MS")
_OF_TYPES: Final = (_TRANSACTION, *_DELAYED, SHARDING_KEY, PRIORITY)

_message = wire.Message.DESCRIPTOR.fields_by_name
_TOPIC: Final = tag(_message["topic"].number)
_USER_PROPERTY: Final = tag(_message["user_properties"].number)
_SYSTEM: Final = tag(_message["system_properties"].number)
_BODY: Final = tag(_message["body"].number)
_POPPED: Final = tag(wire.ReceiveMessageResponse.DESCRIPTOR.fields_by_name["message"].number)
_PULLED: Final = tag(wire.PullMessageResponse.DESCRIPTOR.fields_by_name["message"].number)
# The entries of a map are messages of their own.
_NAME, _VALUE = tag(1), tag(2)

_system = wire.SystemProperties.DESCRIPTOR.fields_by_name
_TAG: Final = tag(_system["tag"].number)
_KEY: Final = tag(_system["keys"].number)
_MESSAGE_ID: Final = tag(_system["message_id"].number)
_BORN_TIMESTAMP: Final = tag(_system["born_timestamp"].number)
_BORN_HOST: Final = tag(_system["born_host"].number)
_STORE_TIMESTAMP: Final = tag(_system["store_timestamp"].number)
_STORE_HOST: Final = tag(_system["store_host"].number)
_DELIVERY_TIMESTAMP: Final = tag(_system["delivery_timestamp"].number)
_RECEIPT_HANDLE: Final = tag(_system["receipt_handle"].number)
_QUEUE_ID: Final = tag(_system["queue_id"].number, is_varint=True)
_QUEUE_OFFSET: Final = tag(_system["queue_offset"].number, is_varint=True)
_INVISIBLE_DURATION: Final = tag(_system["invisible_duration"].number)
_DELIVERY_ATTEMPT: Final = tag(_system["delivery_attempt"].number, is_varint=True)
_MESSAGE_GROUP: Final = tag(_system["message_group"].number)
_TRACE_CONTEXT: Final = tag(_system["trace_context"].number)
_PRIORITY: Final = tag(_system["priority"].number, is_varint=True)

# RocketMQ's clients refuse a message without a digest, which protects nothing.
_md5 = partial(hashlib.md5, usedforsecurity=False)
_MD5_DIGITS: Final = 32
_DIGEST: Final = wire.SystemProperties(body_digest=wire.Digest(type=wire.MD5, checksum="0" * _MD5_DIGITS))
_BEFORE_CHECKSUM: Final = _DIGEST.SerializeToString()[:-_MD5_DIGITS].decode("latin-1")
_CHECKSUM_BYTES: Final = len(_BEFORE_CHECKSUM) + _MD5_DIGITS
# By the type of a message.
_AFTER_CHECKSUM: Final = {
    kind: wire.SystemProperties(body_encoding=wire.IDENTITY, message_type=kind).SerializeToString().decode("latin-1")
    for kind in (wire.NORMAL, wire.FIFO, wire.DELAY, wire.TRANSACTION, wire.PRIORITY)
}


class _Times(NamedTuple):
    """The fields of a message's times; ``is_odd``: one of them is left out."""

    fields: str
    is_odd: bool


@lru_cache(maxsize=4_096)
def _times(born_ms: int, stored_ms: int) -> _Times:
    born, stored = time_of(born_ms), time_of(stored_ms)
    fields = ("" if born is None else _BORN_TIMESTAMP + born) + ("" if stored is None else _STORE_TIMESTAMP + stored)
    return _Times(fields, born is None or stored is None)


class MessageEncoder:
    """Encodes the messages of one call. ``topic`` is the topic as the client named it."""

    __slots__ = ("_alike", "_topic", "odd")

    def __init__(self, topic: wire.Resource) -> None:
        self._topic = _TOPIC + sized(topic.SerializeToString().decode("latin-1"))
        #: The messages so far that lack a born or a store time, because protobuf does not have that time.
        self.odd: list[MessageExt] = []
        self._alike: _Alike | None = None

    def pulled(self, message: MessageExt) -> bytes:
        """A PullMessageResponse with a message. Times that protobuf does not have are left out.

        ProtocolError when the record is damaged, or its body cannot be decompressed.
        """
        return self._encoded(_PULLED, message, message.reconsume_times + 1, "", "", None)

    def popped(self, delivery: Delivery) -> bytes:
        """A ReceiveMessageResponse with a message that was popped, as `pulled`."""
        message, (pop_text, _, offset, physical_offset), attempt, invisible_ms = delivery
        return self._encoded(_POPPED, message, attempt, pop_text, f" {offset} {physical_offset}", invisible_ms)

    def popped_run(self, run: PoppedRun) -> list[bytes]:
        """As `popped`, for all messages of ``run``."""
        first, keys, bodies, offsets, physical_offsets, born_ms, stored_ms = run.columns
        attempt = first.reconsume_times + 1
        alike = _Alike(
            _POPPED, self._topic, first.properties, _origin_of(first, attempt), run.pop_text, run.invisible_ms
        )
        ids = [*map(_text_of, keys)] if keys[0] else [offset_msg_id(first.store_host, at) for at in physical_offsets]
        # No time is left out: see `columns_of`.
        times = [each.fields for each in map(_times, born_ms, stored_ms)]
        handles = [f" {offset} {at}" for offset, at in zip(offsets, physical_offsets, strict=True)]
        return alike.encoded_all(ids, bodies, [*map(varint, offsets)], handles, times)

    def _encoded(
        self, answer: str, message: MessageExt, attempt: int, pop_text: str, handle: str, invisible_ms: int | None
    ) -> bytes:
        """``answer``: the tag of the message in the answer; ``pop_text`` and ``handle``: the text of the receipt."""
        record = message.record
        body = message.body if record.sys_flag & COMPRESSED else record.body
        properties, origin = record.properties, _origin_of(record, attempt)
        alike = self._alike
        if alike is None or not alike.includes(properties, origin, pop_text, invisible_ms):
            alike = self._alike = _Alike(answer, self._topic, properties, origin, pop_text, invisible_ms)
        key = properties[alike.key_at : alike.key_end]
        id_ = _text_of(key) if key else offset_msg_id(record.store_host, record.physical_offset)
        times = _times(record.born_timestamp, record.store_timestamp)
        if times.is_odd:
            self.odd.append(message)
        return alike.encoded(id_, body, varint(record.queue_offset), handle, times.fields)


# The hosts where a message was born and stored, its queue, and how often it was delivered.
_Origin = tuple[bytes, bytes, int, int]


def _origin_of(record: Record, attempt: int) -> _Origin:
    return record.born_host, record.store_host, record.queue_id, attempt


class _Alike:
    """What messages have in common that differ in their ids, bodies, offsets and times only.

    The unique key is at ``key_at`` to ``key_end`` of the properties; without one these are equal.
    """

    __slots__ = (
        "_after",
        "_answer",
        "_before",
        "_head",
        "_origin",
        "_pop",
        "_receipt",
        "_receipt_head",
        "_size",
        "_sizes",
        "_system",
        "_tail",
        "_users",
        "key_at",
        "key_end",
    )

    def __init__(
        self, answer: str, topic: str, properties: bytes, origin: _Origin, pop_text: str, invisible_ms: int | None
    ) -> None:
        """``answer``: the tag of the message in the answer; ``topic``: the encoded field.

        ``pop_text``: the beginning of the receipts, if ``invisible_ms`` is not None.
        """
        self._answer = answer
        self._origin, self._pop = origin, (pop_text, invisible_ms)
        pair_at, self.key_at, self.key_end = property_place(properties, _KEY_NAME)
        self._size = len(properties)
        self._before, self._after = properties[: self.key_at], properties[self.key_end :]
        others = properties[:pair_at] + self._after[1:]
        shown = _remembered(others) if len(others) <= _MAX_REMEMBERED else _shown(others)
        # The fields of the message up to the size of its system's fields.
        self._users = f"{topic}{shown.users}{_SYSTEM}"
        born_host = shown.born_host or _host(origin[0])
        # The system's fields after the checksum.
        self._system = f"{shown.system}{_BORN_HOST}{born_host}{_place(*origin[1:])}"
        self._receipt: str | None = None
        if invisible_ms is not None:
            self._system += _INVISIBLE_DURATION + duration_of(invisible_ms)
            self._receipt = in_latin_1(pop_text)
        self._system += _QUEUE_OFFSET
        # By the sizes of the message before.
        self._sizes = (0, 0, 0, 0, 0)
        self._head = self._receipt_head = self._tail = ""

    def includes(self, properties: bytes, origin: _Origin, pop_text: str, invisible_ms: int | None) -> bool:
        """Whether a message with these fields has in common with the others what is kept here."""
        return (
            origin == self._origin
            and (pop_text, invisible_ms) == self._pop
            and len(properties) == self._size
            and properties.startswith(self._before)
            and properties.endswith(self._after)
            # The end of a property in the key's place: these are other properties.
            and b"\x02" not in properties[self.key_at : self.key_end]
        )

    def encoded(self, id_: str, body: bytes, number: str, handle: str, times: str) -> bytes:
        """The answer with a message. ``number``: the varint of its offset; ``handle``: the end of its receipt.

        What is before, between and after these is made again only when one has another size than before.
        """
        sizes = (len(id_), len(number), len(handle), len(times), len(body))
        if sizes != self._sizes:
            self._sizes = sizes
            self._measure(*sizes)
        checksum = _md5(body).hexdigest().upper()
        head = f"{self._head}{id_}{_BEFORE_CHECKSUM}{checksum}{self._system}{number}{self._receipt_head}"
        return encoded(f"{head}{handle}{times}{self._tail}") + body

    def encoded_all(
        self,
        ids: Sequence[str],
        bodies: Sequence[bytes],
        numbers: Sequence[str],
        handles: Sequence[str],
        times: Sequence[str],
    ) -> list[bytes]:
        """As `encoded`, for several messages: in one step where each of the columns has texts of one size."""
        sizes = [{*map(len, column)} for column in (ids, numbers, handles, times, bodies)]
        if max(map(len, sizes)) > 1:
            return [*map(self.encoded, ids, bodies, numbers, handles, times)]
        self._measure(*[size for (size,) in sizes])
        head, system, receipt, tail = self._head, self._system, self._receipt_head, self._tail
        checksums = [_md5(body).hexdigest().upper() for body in bodies]
        texts = [
            f"{head}{id_}{_BEFORE_CHECKSUM}{checksum}{system}{number}{receipt}{handle}{time}{tail}"
            for id_, checksum, number, handle, time in zip(ids, checksums, numbers, handles, times, strict=True)
        ]
        return [encoded(fields) + body for fields, body in zip(texts, bodies, strict=True)]

    def _measure(self, id_bytes: int, number_bytes: int, handle_bytes: int, times_bytes: int, body_bytes: int) -> None:
        """Make what depends on the sizes of what differs."""
        if self._receipt is not None:
            receipt = self._receipt
            self._receipt_head = f"{_RECEIPT_HANDLE}{cached_varint(len(receipt) + handle_bytes)}{receipt}"
        id_head = f"{_MESSAGE_ID}{cached_varint(id_bytes)}"
        after_id_bytes = _CHECKSUM_BYTES + len(self._system) + number_bytes + len(self._receipt_head) + handle_bytes
        system_bytes = len(id_head) + id_bytes + after_id_bytes + times_bytes
        users = f"{self._users}{cached_varint(system_bytes)}"
        self._tail = f"{_BODY}{cached_varint(body_bytes)}"
        size = len(users) + system_bytes + len(self._tail) + body_bytes
        self._head = f"{self._answer}{cached_varint(size)}{users}{id_head}"


def _text_of(key: bytes) -> str:
    """A unique key as the text of a field."""
    return key.decode("latin-1") if key.isascii() else in_latin_1(key.decode("utf-8", "replace"))


class _Shown(NamedTuple):
    """The fields that are made of a message's properties, without its unique key.

    ``users``: the fields of users' properties. ``system``: the system's fields from the message's type on.
    ``born_host``: the value of its field; empty when the properties do not name it.
    """

    users: str
    system: str
    born_host: str


def _shown(raw: bytes) -> _Shown:
    """The fields of a message with these encoded properties, from which the unique key was taken out."""
    properties = decode_properties(raw.decode("utf-8", "replace"))
    users = ""
    system = _AFTER_CHECKSUM[wire.NORMAL if properties.keys().isdisjoint(_OF_TYPES) else _type_of(properties)]
    for name, value in properties.items():
        if name not in _HIDDEN:
            users += _USER_PROPERTY + sized(f"{_NAME}{text(name)}{_VALUE}{text(value)}")
        if name in _SHOWN_BY_FIELDS:
            system += _SHOWN_BY_FIELDS[name](value)
    born_host = properties.get(BORN_HOST)
    return _Shown(users, system, text(born_host) if born_host else "")


_remembered = lru_cache(maxsize=1_024)(_shown)


def stored_message(message: MessageExt, topic: wire.Resource) -> wire.Message:
    """A stored message as clients read it, as an object; errors as of `MessageEncoder.pulled`."""
    return wire.PullMessageResponse.FromString(MessageEncoder(topic).pulled(message)).message


@lru_cache(maxsize=4_096)
def _host(raw: bytes) -> str:
    return text(format_address(*decode_host(raw)))


@lru_cache(maxsize=1_024)
def _place(store_host: bytes, queue_id: int, attempt: int) -> str:
    """The fields about the queue of a message at its broker, and how often the message was delivered."""
    queue = f"{_STORE_HOST}{_host(store_host)}{_QUEUE_ID}{varint(queue_id)}"
    return f"{queue}{_DELIVERY_ATTEMPT}{varint(min(attempt, INT_MAX))}"


def _keys(keys: str) -> str:
    return "".join([_KEY + text(key) for key in keys.split()])


def _delivery_time(deliver_at: str) -> str:
    # Properties come from any client, also of the other protocol: an invalid time is left out, and raises nothing.
    if deliver_at.isascii() and deliver_at.isdigit() and len(deliver_at) <= _LONG_MAX_DIGITS:
        time = time_of(int(deliver_at))
        if time is not None:
            return _DELIVERY_TIMESTAMP + time
    return ""


def _priority(priority: str) -> str:
    # As with times: any client writes the property, and the field has 31 bits.
    if priority.isascii() and priority.isdigit() and len(priority) <= _LONG_MAX_DIGITS and int(priority) <= INT_MAX:
        return _PRIORITY + cached_varint(int(priority))
    return ""


# Properties that have fields of their own, and how these are made of the property's value.
_SHOWN_BY_FIELDS: Final = {
    TAGS: lambda value: _TAG + text(value),
    KEYS: _keys,
    SHARDING_KEY: lambda value: _MESSAGE_GROUP + text(value),
    TRACE_CONTEXT: lambda value: _TRACE_CONTEXT + text(value),
    DELIVER_AT: _delivery_time,
    PRIORITY: _priority,
}


def _type_of(properties: dict[str, str]) -> wire.MessageType:
    if properties.get(_TRANSACTION) == "true":
        return wire.TRANSACTION
    if not properties.keys().isdisjoint(_DELAYED):
        return wire.DELAY
    if SHARDING_KEY in properties:
        return wire.FIFO
    return wire.PRIORITY if PRIORITY in properties else wire.NORMAL
