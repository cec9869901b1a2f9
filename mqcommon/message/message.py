"""Messages as users see them: `Message` to send, `MessageExt` as received.

A message to send may have a unique key that its sender chose (`OwnKeyMessage`, `WithOwnKeys`), so that a message that
is sent again can be recognised. Brokers do not compare unique keys. `Admin.query_by_unique_key` finds a message by its
key, which is consumers' ``msg_id``.
"""

import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate
from typing import Any, overload

from skylark.mqcommon.addresses import format_address
from skylark.mqcommon.arguments import INT_MAX, INT_MIN, as_bytes, check_int, check_text, shown, wrong_type
from skylark.mqcommon.errors import InvalidArgument, ProtocolError, RequestRefused
from skylark.mqcommon.message.columns import record_starts
from skylark.mqcommon.message.compression import decompressed
from skylark.mqcommon.message.flags import COMPRESSED, HOSTS_V6, WRAPPED
from skylark.mqcommon.message.ids import decode_host, offset_msg_id
from skylark.mqcommon.message.inner import InnerBatch, may_hold_batches, unwrapped
from skylark.mqcommon.message.layout import CRC_MASK, HEAD_V4
from skylark.mqcommon.message.properties import (
    CONTENT_TYPE,
    DELAY,
    FAIL_CLIENT,
    FAIL_REASON,
    FAIL_TIME,
    KEYS,
    PRIORITY,
    RESENT_TIMES,
    RESERVED,
    SHARDING_KEY,
    TAGS,
    UNIQ_KEY,
    decode_properties,
    encode_properties,
)
from skylark.mqcommon.message.queue import MessageQueue
from skylark.mqcommon.message.record import Record, decode_record
from skylark.mqcommon.names import check_topic

# Readers of fields of records with IPv4 hosts; readers of plain numbers fit any record.
_BODY_HEAD = HEAD_V4.reader("body_crc", "sys_flag", "body_length")
_QUEUE_ID = HEAD_V4.reader("queue_id")
_QUEUE_OFFSET = HEAD_V4.reader("queue_offset")
_PHYSICAL_OFFSET = HEAD_V4.reader("physical_offset")
# A record holds 32,767 bytes of properties; producers and brokers add their own to the user's.
MAX_PROPERTIES_BYTES = 32_000
_ARGUMENTS = {KEYS: "keys", TAGS: "tags", SHARDING_KEY: "sharding_key"}
# Skylark's own properties of a message are not among its headers, nor is the format of its body.
_NOT_HEADERS = RESERVED | {FAIL_REASON, FAIL_CLIENT, FAIL_TIME, CONTENT_TYPE, RESENT_TIMES}
# The byte of sysFlag that has its low bits.
_SYS_FLAG_END = HEAD_V4.places("sys_flag")[-1]
# Digits of the highest priority.
_MOST_DIGITS = 10
# Names that were checked already.
_LEGAL_TOPICS: set[str] = set()
_MAX_LEGAL_TOPICS = 4096
_UNUSUAL = COMPRESSED | HOSTS_V6 | WRAPPED


class Message:
    """A message to send.

    `queryMsgByKey` finds it by ``keys``; consumers filter by ``tags`` (one tag per message). ``properties`` are the
    user's own; RocketMQ's reserved names are refused. ``priority``: 0 or more, where more is more urgent. The priority
    chooses the queue, so a message with a sharding key has none (docs/guides/priorities.md). ``body``: bytes; a
    bytearray or memoryview is copied. A message that cannot be sent raises TypeError or ValueError here, where it is
    made; only the size of its body is checked later, by the producer.
    """

    __slots__ = ("body", "flag", "properties", "topic")

    def __init__(
        self,
        topic: str,
        body: bytes | bytearray | memoryview = b"",
        *,
        tags: str | None = None,
        keys: str | Iterable[str] | None = None,
        properties: Mapping[str, str] | None = None,
        flag: int = 0,
        delay_level: int = 0,
        sharding_key: str | None = None,
        priority: int | None = None,
    ) -> None:
        if type(topic) is not str or topic not in _LEGAL_TOPICS:
            _check_topic(topic)
        if type(body) is not bytes:
            body = as_bytes("body", body)
        if flag != 0 or type(flag) is not int:
            check_int("flag", flag, INT_MIN, INT_MAX)
        self.topic = topic
        self.body = body
        self.flag = flag
        self.properties: dict[str, str] | None = None
        if properties is not None or tags is not None or keys is not None or delay_level or sharding_key is not None:
            self.properties = _checked_properties(properties, tags, keys, delay_level, sharding_key)
        if priority is not None:
            check_int("priority", priority, 0, INT_MAX)
            if sharding_key:
                raise InvalidArgument(
                    "sharding_key and priority both choose the queue of the message; give one of them"
                )
            self.properties = {**(self.properties or {}), PRIORITY: str(priority)}

    @property
    def tags(self) -> str | None:
        return self.properties.get(TAGS) if self.properties else None

    @property
    def keys(self) -> str | None:
        return self.properties.get(KEYS) if self.properties else None

    @property
    def sharding_key(self) -> str | None:
        return self.properties.get(SHARDING_KEY) if self.properties else None

    @property
    def priority(self) -> int | None:
        """The priority; None for a message without one."""
        return _priority(self.properties) if self.properties else None

    def __repr__(self) -> str:
        return f"Message(topic={self.topic!r}, body={len(self.body)} bytes, properties={self.properties!r})"


def _priority(properties: Mapping[str, str]) -> int | None:
    text = properties.get(PRIORITY, "")
    # Any client may have written the text.
    return min(int(text), INT_MAX) if text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS else None


def _check_topic(topic: object) -> None:
    check_text("topic", topic)
    assert isinstance(topic, str)
    try:
        check_topic(topic)
    except RequestRefused as refused:
        raise InvalidArgument(f"topic is {shown(topic)}: {refused.remark}") from None
    if len(_LEGAL_TOPICS) >= _MAX_LEGAL_TOPICS:
        _LEGAL_TOPICS.clear()
    _LEGAL_TOPICS.add(topic)


def _checked_properties(
    properties: Mapping[str, str] | None,
    tags: str | None,
    keys: str | Iterable[str] | None,
    delay_level: int,
    sharding_key: str | None,
) -> dict[str, str] | None:
    merged: dict[str, str] = {}
    if properties is not None:
        if not isinstance(properties, Mapping):
            raise wrong_type("properties", "a mapping of str to str", properties)
        for name, value in properties.items():
            if type(name) is not str:
                check_text("a name in properties", name)
            if name in RESERVED:
                raise InvalidArgument(f"property name {name!r} is reserved by RocketMQ; choose another")
            if type(value) is not str:
                check_text(f"properties[{name!r}]", value)
            if not name or not value:
                raise InvalidArgument(f"properties[{name!r}] needs a name and a value that are not empty")
            merged[name] = value
    if keys is not None and (joined := keys if type(keys) is str else _joined(keys)):
        merged[KEYS] = joined
    if tags is not None:
        check_text("tags", tags)
        if "||" in tags:
            raise InvalidArgument(
                f"tags is {shown(tags)}: a message has one tag, and consumers read || as the end of a tag"
            )
        if tags:
            merged[TAGS] = tags
    if delay_level:
        check_int("delay_level", delay_level, 0, INT_MAX)
        merged[DELAY] = str(delay_level)
    if sharding_key is not None:
        check_text("sharding_key", sharding_key)
        if sharding_key:
            merged[SHARDING_KEY] = sharding_key
    size = 0
    for name, value in merged.items():
        size += _pair_size(name, value)
    if size > MAX_PROPERTIES_BYTES:
        raise InvalidArgument(f"the properties have {size} bytes, at most {MAX_PROPERTIES_BYTES} are taken")
    return merged or None


def _joined(keys: str | Iterable[str]) -> str:
    """Several keys as one text, as RocketMQ stores them."""
    if isinstance(keys, str):
        return keys
    if isinstance(keys, bytes | Mapping) or not isinstance(keys, Iterable):
        hint = ": decode it, as in keys.decode()" if isinstance(keys, bytes) else ""
        raise wrong_type("keys", "a str or an iterable of str", keys, hint)
    listed = list(keys)
    for number, key in enumerate(listed):
        check_text(f"keys[{number}]", key)
        if " " in key:
            raise InvalidArgument(f"keys[{number}] is {shown(key)}: a space separates keys, so that would be several")
    return " ".join(listed)


def _pair_size(name: str, value: str) -> int:
    """How many bytes the property takes."""
    label = _ARGUMENTS.get(name) or f"properties[{name!r}]"
    if "\x01" in name or "\x02" in name or "\x01" in value or "\x02" in value:
        raise InvalidArgument(
            f"{label} = {shown(value)} holds the characters \\x01 or \\x02, which end names and values"
        )
    if name.isascii() and value.isascii():
        return len(name) + len(value) + 2
    check_text(f"the name of {label}", name)
    check_text(label, value)
    return len(name.encode()) + len(value.encode()) + 2


def own_properties(message: Message) -> bytes:
    """The encoded properties that the user gave."""
    return encode_properties(message.properties).encode() if message.properties else b""


def wire_properties(message: Message, unique_key: str) -> bytes:
    """The encoded properties of ``message`` with its unique key."""
    own = message.properties
    if own is None:
        return b"UNIQ_KEY\x01" + unique_key.encode() + b"\x02"
    return f"{encode_properties(own)}UNIQ_KEY\x01{unique_key}\x02".encode()


class MessageExt:
    """A stored message. Fields are decoded when they are read; bytes stay in the pull's buffer until then.

    Holding one message keeps its pull's buffer (at most a few MiB) alive.
    """

    # ``_content`` is set only while a decompressed body, or why there is none, is kept; ``_inner`` in messages of inner
    # batches: the record at ``_at`` is the batch's, and ``_row`` the number in it.
    __slots__ = ("_at", "_content", "_data", "_inner", "_properties", "_record", "_row", "broker_name")

    _content: bytes | str
    _inner: InnerBatch

    def __init__(self, data: bytes, at: int, broker_name: str) -> None:
        self._data = data
        self._at = at
        self._record: Record | None = None
        self._properties: dict[str, str] | None = None
        self._row = 0
        self.broker_name = broker_name

    @property
    def record(self) -> Record:
        """All fields as stored. Raises ProtocolError when the record is damaged."""
        record = self._record
        if record is None:
            # A record of an inner batch that was not taken apart is a message, too.
            is_inner = self._data[self._at + _SYS_FLAG_END] & WRAPPED == WRAPPED
            batch: InnerBatch | None = getattr(self, "_inner", None) if is_inner else None
            record = decode_record(self._data, self._at) if batch is None else batch.record(self._row)
            self._record = record
        return record

    @property
    def topic(self) -> str:
        return self.record.topic

    @property
    def body(self) -> bytes:
        """The body, decompressed. Raises ProtocolError when that fails, or the stored body does not match its CRC."""
        record = self._record
        if record is None:
            # Reading the body alone costs a tenth of decoding the record.
            crc, sys_flag, size = _BODY_HEAD.unpack_from(self._data, self._at)
            if not sys_flag & _UNUSUAL and 0 <= size <= len(self._data) - self._at - _BODY_HEAD.size:
                start = self._at + _BODY_HEAD.size
                body = self._data[start : start + size]
                if zlib.crc32(body) & CRC_MASK == crc:
                    return body
            record = self.record
        if not record.sys_flag & COMPRESSED:
            return record.body
        content: bytes | str | None = getattr(self, "_content", None)
        if content is None:
            return decompressed(record.body, record.sys_flag)
        if isinstance(content, str):
            raise ProtocolError(content)
        return content

    @property
    def is_inner(self) -> bool:
        """Whether the message is stored in an inner batch, so that its place in the log is the batch's place."""
        return self._data[self._at + _SYS_FLAG_END] & WRAPPED == WRAPPED

    @property
    def is_compressed(self) -> bool:
        """Whether the stored body is compressed."""
        return bool(self._data[self._at + _SYS_FLAG_END] & COMPRESSED)

    @property
    def has_content(self) -> bool:
        """Whether the decompressed body is kept, or the reason why there is none."""
        return hasattr(self, "_content")

    def keep_content(self) -> int:
        """Decompress the body for later readers; returns how many bytes it has. For any thread."""
        try:
            content = self._content = self.body
        except ProtocolError as error:
            self._content = str(error)
            return 0
        return len(content)

    def keep_small_content(self, most: int) -> bool:
        """Decompress the body for later readers, if it has at most ``most`` bytes; returns whether this was done."""
        try:
            record = self.record
            self._content = decompressed(record.body, record.sys_flag, most)
        except ProtocolError:
            return False
        return True

    def drop_content(self) -> None:
        """Do not keep the decompressed body any longer."""
        with suppress(AttributeError):
            del self._content

    @property
    def properties(self) -> dict[str, str]:
        """All properties, including RocketMQ's own."""
        if self._properties is None:
            self._properties = decode_properties(self.record.properties.decode("utf-8", "replace"))
        return self._properties

    @property
    def headers(self) -> Mapping[str, str]:
        """The sender's own properties, without RocketMQ's and Skylark's."""
        return {name: value for name, value in self.properties.items() if name not in _NOT_HEADERS}

    @property
    def tags(self) -> str | None:
        return self.properties.get(TAGS)

    @property
    def keys(self) -> str | None:
        return self.properties.get(KEYS)

    @property
    def priority(self) -> int | None:
        """The sender's priority; None for a message without one."""
        return _priority(self.properties)

    @property
    def msg_id(self) -> str:
        """The producer's unique key, or the offset message id when there is none."""
        return self.properties.get(UNIQ_KEY) or self.offset_msg_id

    @property
    def offset_msg_id(self) -> str:
        return offset_msg_id(self.record.store_host, self.record.physical_offset)

    @property
    def queue_id(self) -> int:
        return int(_QUEUE_ID.unpack_from(self._data, self._at)[0])

    @property
    def queue(self) -> MessageQueue:
        return MessageQueue(self.topic, self.broker_name, self.queue_id)

    @property
    def queue_offset(self) -> int:
        # The bytes of an inner batch have the offset of its first message.
        return int(_QUEUE_OFFSET.unpack_from(self._data, self._at)[0]) + self._row

    @property
    def physical_offset(self) -> int:
        return int(_PHYSICAL_OFFSET.unpack_from(self._data, self._at)[0])

    @property
    def flag(self) -> int:
        return self.record.flag

    @property
    def sys_flag(self) -> int:
        return self.record.sys_flag

    @property
    def born_timestamp(self) -> int:
        """ms since 1970, by the producer's clock."""
        return self.record.born_timestamp

    @property
    def born_host(self) -> str:
        return format_address(*decode_host(self.record.born_host))

    @property
    def store_timestamp(self) -> int:
        """ms since 1970, by the broker's clock."""
        return self.record.store_timestamp

    @property
    def store_host(self) -> str:
        return format_address(*decode_host(self.record.store_host))

    @property
    def reconsume_times(self) -> int:
        return self.record.reconsume_times

    @property
    def prepared_transaction_offset(self) -> int:
        return self.record.prepared_transaction_offset

    @property
    def store_size(self) -> int:
        """Bytes of the stored record."""
        return self.record.size

    @property
    def held_bytes(self) -> int:
        """Bytes of the pull's buffer that this message keeps in memory."""
        return len(self._data)

    def show_topic(self, topic: str) -> None:
        """Let ``topic`` be this message's topic, whatever the record says: retry topics hold other topics' messages."""
        self._record = self.record._replace(topic=topic)

    def count_failure(self) -> None:
        """Count a failure that the broker does not know of."""
        self._record = self.record._replace(reconsume_times=self.record.reconsume_times + 1)

    def __repr__(self) -> str:
        return (
            f"MessageExt(topic={self.topic!r}, broker_name={self.broker_name!r}, queue_id={self.queue_id}, "
            f"queue_offset={self.queue_offset}, msg_id={self.msg_id!r})"
        )


def packed_in(messages: Iterable[MessageExt]) -> list[MessageExt]:
    """The messages whose stored bodies are compressed. For large pulls: cheaper than the property `is_compressed`."""
    return [message for message in messages if message._data[message._at + _SYS_FLAG_END] & COMPRESSED]


def records_of(messages: Sequence[MessageExt]) -> tuple[bytes, list[int], list[int]]:
    """The bytes with the records of ``messages``, where each begins, and which messages may differ from their records.

    Messages differ that are in inner batches, or have another topic or count of failures (`show_topic`,
    `count_failure`).
    """
    changed = [number for number, message in enumerate(messages) if message._record is not None]
    data = messages[0]._data
    in_one = all([message._data is data for message in messages])
    starts = [message._at for message in messages]
    if not in_one or may_hold_batches(data, starts):
        changed = sorted({*changed, *[number for number, message in enumerate(messages) if message.is_inner]})
    if in_one:
        return data, starts, changed
    records = [message._data[message._at : message._at + message.store_size] for message in messages]
    return b"".join(records), [0, *accumulate(map(len, records[:-1]))], changed


def decode_messages(data: bytes, broker_name: str = "", first_offset: int = 0) -> list[MessageExt]:
    """The messages of a pull's body. Raises ProtocolError when it does not consist of whole records.

    Messages of inner batches before ``first_offset`` are left out.
    """
    starts = record_starts(data)
    if may_hold_batches(data, starts):
        return unwrapped(data, starts, lambda at: MessageExt(data, at, broker_name), first_offset)
    return [MessageExt(data, at, broker_name) for at in starts]


_MOST_CHARS = 255
_VISIBLE_ASCII = re.compile(r"[!-~]*")


class OwnKeyMessage(Message):
    """A message for `Producer.send` with ``unique_key``, instead of a key that the producer makes up."""

    __slots__ = ("encoded_key",)

    def __init__(self, topic: str, body: bytes = b"", *, unique_key: str, **others: Any) -> None:
        super().__init__(topic, body, **others)
        check_text("unique_key", unique_key)
        self.encoded_key = _encoded_key(unique_key)


class WithOwnKeys(Sequence["bytes | Message"]):
    """Messages for `Producer.send_many`, with one of ``unique_keys`` each."""

    __slots__ = ("encoded_keys", "messages")

    def __init__(self, messages: Sequence[bytes | Message], unique_keys: Sequence[str]) -> None:
        if len(messages) != len(unique_keys):
            raise InvalidArgument(f"there are {len(messages)} messages and {len(unique_keys)} unique_keys")
        self.messages = messages
        self.encoded_keys = _encoded_keys(unique_keys)

    def __len__(self) -> int:
        return len(self.messages)

    @overload
    def __getitem__(self, index: int) -> bytes | Message: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[bytes | Message]: ...

    def __getitem__(self, index: int | slice) -> bytes | Message | Sequence[bytes | Message]:
        return self.messages[index]


def _encoded_keys(keys: Sequence[str]) -> list[bytes]:
    """The keys as encoded properties; they are checked together, which takes a tenth of the time."""
    if not all(keys) or max(map(len, keys), default=0) > _MOST_CHARS or not _VISIBLE_ASCII.fullmatch("".join(keys)):
        return [_encoded_key(key) for key in keys]
    return [b"UNIQ_KEY\x01%s\x02" % key.encode() for key in keys]


def _encoded_key(key: str) -> bytes:
    if not 0 < len(key) <= _MOST_CHARS or not _VISIBLE_ASCII.fullmatch(key):
        raise InvalidArgument(f"a unique key must be 1 to {_MOST_CHARS} visible ASCII characters, not {shown(key)}")
    return b"UNIQ_KEY\x01%s\x02" % key.encode()
