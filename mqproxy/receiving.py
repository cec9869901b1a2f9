"""Receive calls: what they ask for, and how long they wait. Pure."""

from typing import NamedTuple

from skylark.mqcommon.bounded_cache import BoundedCache
from skylark.mqproxy.names import group_of, topic_of
from skylark.mqproxy.options import ProxyOptions
from skylark.mqproxy.statuses import Refused, parsed
from skylark.mqproxy.wire import messaging_pb2 as wire
from skylark.remoting.protocol.requests.clients import SQL92, TAG, parse_subscription
from skylark.remoting.protocol.requests.pops import MAX_POP_COUNT

# Brokers check ten times a second for waits that are over, and then the answer has to travel.
RESERVE_MS = 300
# Longer requests are not remembered: senders write what they like. A query takes some KiB in memory.
_MAX_REMEMBERED = 512
_QUERY_BYTES = 4 << 10
_REMEMBERED_BYTES = 2 << 20


def named_polling_ms(request: wire.ReceiveMessageRequest | wire.PullMessageRequest) -> int | None:
    """How long the client wants to wait for messages; None when its request names no time."""
    return request.long_polling_timeout.ToMilliseconds() if request.HasField("long_polling_timeout") else None


def polling_ms(named_ms: int | None, settings: wire.Settings, left_s: float | None, options: ProxyOptions) -> int:
    """How long the broker may wait for messages. ``named_ms``: the time that the client has named, if any.

    ``left_s`` is what is left of the call's deadline. Refused when the client names no time, and its deadline is too
    close to wait at all.
    """
    least = options.grpc_client_consumer_min_long_polling_timeout_millis
    most = options.grpc_client_consumer_max_long_polling_timeout_millis
    left_ms = most if left_s is None else int(left_s * 1000)
    # A client that names a time gets this time, even a short one: it may have other topics to ask for. A client without
    # a time gets the rest until its deadline, less a share for the way of the answer.
    if named_ms is not None:
        wanted = named_ms
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
    """What a receive call asks for, checked. ``broker_name`` is empty when any broker will do.

    ``resource``: the topic as the client has named it. ``named_ms``: see `polling_ms`.
    """

    topic: str
    group: str
    broker_name: str
    expression: str
    kind: str
    tags: frozenset[str]
    invisible_ms: int
    most: int
    named_ms: int | None
    attempt_id: str | None
    is_renewed: bool
    resource: wire.Resource

    @classmethod
    def of(cls, request: wire.ReceiveMessageRequest, options: ProxyOptions) -> "ReceiveQuery":
        """What ``request`` asks for. Refused when it cannot be carried out."""
        queue = request.message_queue
        topic, group = names_of(queue.topic, request.group)
        return cls(
            topic,
            group,
            queue.broker.name,
            *filter_of(request.filter_expression),
            invisible_ms(request, options),
            min(max(1, request.batch_size), MAX_POP_COUNT),
            named_polling_ms(request),
            request.attempt_id if request.HasField("attempt_id") else None,
            request.auto_renew and options.enable_proxy_auto_renew,
            queue.topic,
        )


class ReceiveQueries:
    """Reads the requests of receive calls. A client sends few different ones again and again: these are remembered."""

    def __init__(self, options: ProxyOptions) -> None:
        self._options = options
        self._known: BoundedCache[bytes, ReceiveQuery] = BoundedCache(_REMEMBERED_BYTES)

    def read(self, data: bytes) -> ReceiveQuery:
        """What the request ``data`` asks for. Refused when it cannot be read or carried out."""
        known = self._known.get(data)
        if known is None:
            known = ReceiveQuery.of(parsed(wire.ReceiveMessageRequest, data), self._options)
            # An attempt has an id of its own, so its request does not come again.
            if known.attempt_id is None and len(data) <= _MAX_REMEMBERED:
                self._known.put(data, known, _QUERY_BYTES)
        return known
