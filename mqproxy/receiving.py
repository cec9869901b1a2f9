"""Receive calls: how long they wait, and received messages as clients read them. Pure, but for MD5."""

import hashlib

from skylark.mqcommon.arguments import INT_MAX
from skylark.mqcommon.errors import ProtocolError
from skylark.mqcommon.message.message import MessageExt
from skylark.mqcommon.message.properties import KEYS, RESERVED, SHARDING_KEY, TAGS
from skylark.mqproxy.brokers import Delivery
from skylark.mqproxy.names import group_of, topic_of
from skylark.mqproxy.options import ProxyOptions
from skylark.mqproxy.sending import BORN_HOST, DELIVER_AT, SHOWN, TRACE_CONTEXT
from skylark.mqproxy.statuses import Refused
from skylark.mqproxy.times import put_duration, put_time
from skylark.mqproxy.wire import messaging_pb2 as wire
from skylark.remoting.protocol.requests.clients import SQL92, TAG, parse_subscription

# Brokers check ten times a second for waits that are over, and then the answer has to travel.
RESERVE_MS = 300
_LONG_MAX_DIGITS = 19


def polling_ms(
    request: wire.ReceiveMessageRequest | wire.PullMessageRequest,
    settings: wire.Settings,
    left_s: float | None,
    options: ProxyOptions,
) -> int:
    """How long the broker may wait for messages; ``left_s`` is what is left of the call's deadline.

    Refused when the client names no time, and its deadline is too close to wait at all.
    """
    least = options.grpc_client_consumer_min_long_polling_timeout_millis
    most = options.grpc_client_consumer_max_long_polling_timeout_millis
    left_ms = most if left_s is None else int(left_s * 1000)
    # A client that names a time gets this time, even a short one: it may have other topics to ask for. A client without
    # a time gets the rest until its deadline, less a share for the way of the answer.
    if request.HasField("long_polling_timeout"):
        wanted = request.long_polling_timeout.ToMilliseconds()
    elif left_ms < least:
        text = "The deadline time remaining is not enough for polling, please check network condition"
        raise Refused(wire.ILLEGAL_POLLING_TIME, text)
    else:
        wanted = max(left_ms - settings.request_timeout.ToMilliseconds() // 2, least)
    ends_ms = most if left_s is None else left_ms - RESERVE_MS
    return max(0, min(wanted, most, ends_ms))


def invisible_ms(request: wire.ReceiveMessageRequest, options: ProxyOptions) -> int:
    """How long the messages are hidden from others. A client that leaves it to the proxy gets the default."""
    # The proxy renews these messages for as long as the client lives, so messages of a dead client come back soon.
    if request.auto_renew:
        return options.default_invisible_time_mills
    wanted = request.invisible_duration.ToMilliseconds()
    check_invisible(wanted, options.min_invisible_time_mills_for_recv, options)
    return wanted


def check_invisible(wanted: int, least: int, options: ProxyOptions) -> None:
    """Refuse a time that is too short or too long."""
    if wanted < least:
        raise Refused(wire.ILLEGAL_INVISIBLE_TIME, f"the invisibleTime is too small. min is {least}")
    most = options.max_invisible_time_mills
    if most and wanted > most:
        raise Refused(wire.ILLEGAL_INVISIBLE_TIME, f"the invisibleTime is too large. max is {most}")


def filter_of(expression: wire.FilterExpression) -> tuple[str, str, frozenset[str]]:
    """(expression, its kind, its tags). The tags are empty for all messages, and for SQL, which brokers evaluate."""
    if expression.type == wire.SQL:
        return expression.expression, SQL92, frozenset()
    text = expression.expression or "*"
    try:
        return text, TAG, frozenset(parse_subscription("", text).tags_set)
    except ValueError as error:
        raise Refused(wire.ILLEGAL_FILTER_EXPRESSION, str(error)) from None


def names_of(topic: wire.Resource, group: wire.Resource) -> tuple[str, str]:
    """The names of a topic and a group, checked."""
    return topic_of(topic), group_of(group)


def fill_received(made: wire.Message, delivery: Delivery, topic: wire.Resource) -> None:
    """Fill ``made`` with a received message, as clients read it. ProtocolError as for `fill_stored`."""
    fill_stored(made, delivery.message, topic)
    system = made.system_properties
    system.receipt_handle = str(delivery.receipt)
    system.delivery_attempt = min(delivery.attempt, INT_MAX)
    put_duration(system.invisible_duration, delivery.invisible_ms)


def lacks_a_time(message: wire.Message) -> bool:
    """Whether the stored message has a born or a store time that protobuf does not have."""
    system = message.system_properties
    return not (system.HasField("born_timestamp") and system.HasField("store_timestamp"))


def fill_stored(made: wire.Message, message: MessageExt, topic: wire.Resource) -> None:
    """Fill ``made`` with a stored message, as clients read it; times that protobuf does not have are left out.

    ProtocolError when its body cannot be decompressed, or protobuf cannot hold it for another reason.
    """
    try:
        _fill(made, message, topic)
    except ValueError as error:
        # Any client writes what is stored. One odd message must not keep its neighbours from being handed out.
        raise ProtocolError(f"it cannot be a message of gRPC: {error}") from error


def _fill(made: wire.Message, message: MessageExt, topic: wire.Resource) -> None:
    # Field by field: messages in the arguments of other messages are copied, which takes three times as long.
    properties, body = message.properties, message.body
    made.topic.CopyFrom(topic)
    made.body = body
    system = made.system_properties
    system.message_id = message.msg_id
    # RocketMQ's clients refuse a message without a digest, which protects nothing.
    digest = system.body_digest
    digest.type = wire.MD5
    digest.checksum = hashlib.md5(body, usedforsecurity=False).hexdigest().upper()
    system.body_encoding = wire.IDENTITY
    system.message_type = _type_of(properties)
    system.born_host = properties.get(BORN_HOST) or message.born_host
    system.store_host = message.store_host
    system.queue_id = message.queue_id
    system.queue_offset = message.queue_offset
    system.delivery_attempt = min(message.reconsume_times + 1, INT_MAX)
    put_time(system.born_timestamp, message.born_timestamp)
    put_time(system.store_timestamp, message.store_timestamp)
    if TAGS in properties:
        system.tag = properties[TAGS]
    if KEYS in properties:
        system.keys.extend(properties[KEYS].split())
    if SHARDING_KEY in properties:
        system.message_group = properties[SHARDING_KEY]
    if TRACE_CONTEXT in properties:
        system.trace_context = properties[TRACE_CONTEXT]
    # Properties come from any client, also of the other protocol: an invalid time is left out, and raises nothing.
    deliver_at = properties.get(DELIVER_AT, "")
    if deliver_at.isascii() and deliver_at.isdigit() and len(deliver_at) <= _LONG_MAX_DIGITS:
        put_time(system.delivery_timestamp, int(deliver_at))
    if users := {name: value for name, value in properties.items() if name not in RESERVED or name in SHOWN}:
        made.user_properties.update(users)


def _type_of(properties: dict[str, str]) -> wire.MessageType:
    if properties.get("TRAN_MSG") == "true":
        return wire.TRANSACTION
    if not properties.keys().isdisjoint(("DELAY", DELIVER_AT, "TIMER_DELAY_SEC", "TIMER_DELAY_MS")):
        return wire.DELAY
    return wire.FIFO if SHARDING_KEY in properties else wire.NORMAL
