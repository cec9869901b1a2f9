"""Receive calls: what they ask for, and how long they wait. Pure."""

from typing import NamedTuple

from skylark.mqproxy.names import group_of, topic_of
from skylark.mqproxy.options import ProxyOptions
from skylark.mqproxy.statuses import Refused
from skylark.mqproxy.wire import messaging_pb2 as wire
from skylark.remoting.protocol.requests.clients import SQL92, TAG, parse_subscription

# Brokers check ten times a second for waits that are over, and then the answer has to travel.
RESERVE_MS = 300


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
    if text == "*":
        return text, TAG, frozenset()
    try:
        return text, TAG, frozenset(parse_subscription("", text).tags_set)
    except ValueError as error:
        raise Refused(wire.ILLEGAL_FILTER_EXPRESSION, str(error)) from None


def names_of(topic: wire.Resource, group: wire.Resource) -> tuple[str, str]:
    """The names of a topic and a group, checked."""
    return topic_of(topic), group_of(group)


class ReceiveQuery(NamedTuple):
    """What a receive call asks for, checked. ``broker_name`` is empty when any broker will do."""

    topic: str
    group: str
    broker_name: str
    expression: str
    kind: str
    tags: frozenset[str]
    invisible_ms: int

    @classmethod
    def of(cls, request: wire.ReceiveMessageRequest, options: ProxyOptions) -> "ReceiveQuery":
        """What ``request`` asks for. Refused when it cannot be carried out."""
        queue = request.message_queue
        topic, group = names_of(queue.topic, request.group)
        expression, kind, tags = filter_of(request.filter_expression)
        return cls(topic, group, queue.broker.name, expression, kind, tags, invisible_ms(request, options))
