"""The messages of a SendMessage call as messages of the SDK, checked as RocketMQ's proxy does. Pure.

A body that its client has compressed stays compressed until its turn (`expanded`): a call of a few kilobytes may hold
gigabytes.
"""

import zlib
from collections.abc import Mapping, Sequence

from skylark.mqcommon.message.message import OwnKeyMessage
from skylark.mqcommon.message.properties import KEYS, PRIORITY, RESERVED, SHARDING_KEY, TAGS
from skylark.mqproxy.names import has_control_character, topic_of
from skylark.mqproxy.options import ProxyOptions
from skylark.mqproxy.statuses import OK, Refused, common_status
from skylark.mqproxy.times import ms_of
from skylark.mqproxy.wire import messaging_pb2 as wire
from skylark.sdk.producer.result import SendResult, SendStatus

DELIVER_AT, BORN_HOST, BORN_TIMESTAMP = "TIMER_DELIVER_MS", "__BORNHOST", "BORN_TIMESTAMP"
# Brokers deliver a message with this property later, as with `DELIVER_AT`, whose limits the proxy checks.
_START_DELIVER_TIME = "__STARTDELIVERTIME"
TRACE_CONTEXT = "TRACE_CONTEXT"
#: Names that only senders' clients set, and that consumers see among the user's properties, as in RocketMQ.
SHOWN = frozenset({SHARDING_KEY, "__transactionId__"})
TRANSACTION_PREPARED, PRODUCER_GROUP, CHECK_IMMUNITY_S = "TRAN_MSG", "PGROUP", "CHECK_IMMUNITY_TIME_IN_SECONDS"

#: The most messages that one call may send or acknowledge: a call of many small ones would block the event loop.
MAX_MESSAGES = 1_024

# The argument of zlib.decompressobj for a gzip or a zlib header.
_GZIP_OR_ZLIB = 32 + zlib.MAX_WBITS

_CODES = {
    SendStatus.FLUSH_DISK_TIMEOUT: wire.MASTER_PERSISTENCE_TIMEOUT,
    SendStatus.FLUSH_SLAVE_TIMEOUT: wire.SLAVE_PERSISTENCE_TIMEOUT,
    SendStatus.SLAVE_NOT_AVAILABLE: wire.HA_NOT_AVAILABLE,
}


def type_of(message: wire.Message) -> wire.MessageType:
    """The type of a message: its properties decide, and for a transaction its declared type."""
    # The type that a client declares counts for transactions only, as with RocketMQ's proxy.
    system = message.system_properties
    if system.message_type == wire.TRANSACTION:
        return wire.TRANSACTION
    if system.HasField("lite_topic"):
        return wire.LITE
    if system.HasField("delivery_timestamp"):
        return wire.DELAY
    if system.message_group:
        return wire.FIFO
    return wire.PRIORITY if system.HasField("priority") else wire.NORMAL


def sdk_messages(
    messages: Sequence[wire.Message], options: ProxyOptions, peer: str, now_ms: int
) -> list[OwnKeyMessage]:
    """The messages of one call, from the client at ``peer``, for the SDK. Refused when one is wrong.

    Bodies are unchanged; compressed bodies (`is_compressed`) must be expanded before they are sent.
    """
    if not messages:
        raise Refused(wire.MESSAGE_CORRUPTED, "no message to send")
    check_count(len(messages))
    topic = topic_of(messages[0].topic)
    if len(messages) > 1 and any(message.topic != messages[0].topic for message in messages):
        raise Refused(wire.MESSAGE_CORRUPTED, "topic in message is not same")
    return [_sdk_message(topic, message, options, peer, now_ms) for message in messages]


def check_count(count: int) -> None:
    """Refused when one call names more messages than a call may have."""
    if count > MAX_MESSAGES:
        raise Refused(wire.BAD_REQUEST, f"a call may have {MAX_MESSAGES} messages at most, this one has {count}")


def _sdk_message(topic: str, message: wire.Message, options: ProxyOptions, peer: str, now_ms: int) -> OwnKeyMessage:
    system = message.system_properties
    if not system.message_id.strip():
        raise Refused(wire.ILLEGAL_MESSAGE_ID, "message id cannot be empty")
    made = OwnKeyMessage(topic, _body(message, options), unique_key=system.message_id)
    made.properties = _properties(message, options, peer, now_ms)
    return made


def _body(message: wire.Message, options: ProxyOptions) -> bytes:
    body, most = message.body, options.most_body_bytes
    if not body and options.enable_message_body_empty_check:
        raise Refused(wire.MESSAGE_BODY_EMPTY, "message body cannot be empty")
    if len(body) > most and not is_compressed(message):
        raise Refused(wire.MESSAGE_BODY_TOO_LARGE, f"message body cannot exceed the max {most}")
    return body


def is_compressed(message: wire.Message) -> bool:
    """Whether the body of the message must be expanded."""
    return message.system_properties.body_encoding == wire.GZIP


def expanded(body: bytes, most: int) -> bytes:
    """The content of a body that is compressed with gzip. Refused when it is broken, or larger than ``most`` bytes."""
    # Consumers of the other protocol read zlib only, so the content is stored uncompressed.
    inflating = zlib.decompressobj(_GZIP_OR_ZLIB)
    try:
        # One byte more than is allowed shows that the content is too large.
        content = inflating.decompress(body, most + 1)
    except zlib.error as error:
        raise Refused(wire.MESSAGE_CORRUPTED, f"the body is not compressed with gzip: {error}") from None
    if inflating.unused_data or (not inflating.eof and len(content) <= most):
        raise Refused(wire.MESSAGE_CORRUPTED, "the compressed body is cut off, or has something behind its end")
    if len(content) > most:
        raise Refused(wire.MESSAGE_BODY_TOO_LARGE, f"message body cannot exceed the max {most}")
    return content


def may_go_on(sent: Sequence[wire.SendResultEntry]) -> bool:
    """Whether the results of these sends allow to send more: the broker did not deny the right to send to the topic."""
    return all(entry.status.code not in (wire.FORBIDDEN, wire.UNAUTHORIZED) for entry in sent)


def _properties(message: wire.Message, options: ProxyOptions, peer: str, now_ms: int) -> dict[str, str]:
    system = message.system_properties
    found = _users_properties(message.user_properties, system.tag, system.keys, options)
    if system.HasField("delivery_timestamp"):
        deliver_at_ms = ms_of(system.delivery_timestamp)
        if deliver_at_ms is None:
            raise Refused(wire.ILLEGAL_DELIVERY_TIME, "the delivery time is not between the years 1 and 9999")
        if options.max_delay_time_mills and deliver_at_ms - now_ms > options.max_delay_time_mills:
            text = f"the max delay time of message is too large, max is {options.max_delay_time_mills}"
            raise Refused(wire.ILLEGAL_DELIVERY_TIME, text)
        found[DELIVER_AT] = str(deliver_at_ms)
    if system.message_group:
        _check_message_group(system.message_group, options.max_message_group_size)
        found[SHARDING_KEY] = system.message_group
    if system.HasField("priority"):
        if system.priority < 0:
            raise Refused(wire.BAD_REQUEST, f"the priority of a message is 0 or more, not {system.priority}")
        found[PRIORITY] = str(system.priority)
    for name, value in ((TRACE_CONTEXT, system.trace_context), (BORN_HOST, system.born_host or peer)):
        if value:
            if has_control_character(value):
                raise Refused(wire.BAD_REQUEST, f"{name} cannot contain control character")
            found[name] = value
    if system.message_type == wire.TRANSACTION:
        # The producer group of a transaction is its topic: brokers ask the proxies whose clients name the topic.
        found[TRANSACTION_PREPARED], found[PRODUCER_GROUP] = "true", message.topic.name
        if system.HasField("orphaned_transaction_recovery_duration"):
            found[CHECK_IMMUNITY_S] = _recovery_s(system, options)
    if system.HasField("born_timestamp") and (born_ms := ms_of(system.born_timestamp)) is not None:
        found[BORN_TIMESTAMP] = str(born_ms)
    return found


def _users_properties(users: Mapping[str, str], tag: str, keys: Sequence[str], options: ProxyOptions) -> dict[str, str]:
    """The properties, tag and keys that the sender has given to the message, checked."""
    if not (users or tag or keys):
        return {}
    if len(users) > options.user_property_max_num:
        text = f"too many user properties, max is {options.user_property_max_num}"
        raise Refused(wire.MESSAGE_PROPERTIES_TOO_LARGE, text)
    for name, value in users.items():
        _check_property(name, value)
    _check_tag(tag)
    for key in keys:
        _check_words(key, "key", wire.ILLEGAL_MESSAGE_KEY)
    # Properties are counted as they are stored, in bytes of UTF-8, and without the names of RocketMQ's own properties.
    size = sum([len(text.encode()) for text in (*users, *users.values(), tag, *keys)])
    if options.max_user_property_size and size > options.max_user_property_size:
        text = f"the total size of user property is too large, max is {options.max_user_property_size}"
        raise Refused(wire.MESSAGE_PROPERTIES_TOO_LARGE, text)
    # A message that was received may be sent again with its properties: these do not hold for the new message.
    found = {name: value for name, value in users.items() if name not in SHOWN}
    if tag:
        found[TAGS] = tag
    if keys:
        found[KEYS] = " ".join(keys)
    return found


def _recovery_s(system: wire.SystemProperties, options: ProxyOptions) -> str:
    seconds, most = system.orphaned_transaction_recovery_duration.ToSeconds(), options.max_transaction_recovery_second
    if most and seconds > most:
        text = f"the max transaction recovery time of message is too large, max is {most}"
        raise Refused(wire.BAD_REQUEST, text)
    return str(seconds)


def _check_property(name: str, value: str) -> None:
    if (name in RESERVED and name not in SHOWN) or name == _START_DELIVER_TIME:
        raise Refused(wire.ILLEGAL_MESSAGE_PROPERTY_KEY, f"property is used by system: {name}")
    if not name or not value:
        raise Refused(wire.ILLEGAL_MESSAGE_PROPERTY_KEY, "a property needs a key and a value that are not empty")
    for what, text in (("key", name), ("value", value)):
        if has_control_character(text):
            text = f"the {what} of property cannot contain control character"
            raise Refused(wire.ILLEGAL_MESSAGE_PROPERTY_KEY, text)


def _check_tag(tag: str) -> None:
    _check_words(tag, "tag", wire.ILLEGAL_MESSAGE_TAG)
    if "|" in tag:
        raise Refused(wire.ILLEGAL_MESSAGE_TAG, "tag cannot contain '|'")


def _check_words(text: str, what: str, code: wire.Code) -> None:
    if text and text.isspace():
        raise Refused(code, f"{what} cannot be the char sequence of whitespace")
    if has_control_character(text):
        raise Refused(code, f"{what} cannot contain control character")


def _check_message_group(group: str, most_bytes: int) -> None:
    _check_words(group, "message group", wire.ILLEGAL_MESSAGE_GROUP)
    if most_bytes and len(group.encode()) >= most_bytes:
        raise Refused(wire.ILLEGAL_MESSAGE_GROUP, f"message group exceed the max size {most_bytes}")


def entry_of(result: SendResult, transaction_id: str = "") -> wire.SendResultEntry:
    """The entry for a message that a broker has stored; without a transaction the entry has the message's id."""
    code = _CODES.get(result.status)
    if code is not None:
        return wire.SendResultEntry(
            status=wire.Status(code=code, message=f"send message failed, sendStatus={result.status.name}")
        )
    msg_id = result.msg_id
    return wire.SendResultEntry(
        status=OK,
        message_id=msg_id,
        offset=result.queue_offset,
        transaction_id=transaction_id or msg_id,
        recall_handle=result.recall_handle,
    )


def answer_of(entries: Sequence[wire.SendResultEntry]) -> wire.SendMessageResponse:
    """The answer to a call: the status that all entries share, or MULTIPLE_RESULTS."""
    return wire.SendMessageResponse(status=common_status([entry.status for entry in entries]), entries=entries)
