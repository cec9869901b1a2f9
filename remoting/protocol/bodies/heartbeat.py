"""The heartbeat that a client sends to its brokers every 30 seconds (34), with its subscriptions."""

from dataclasses import dataclass

from mqcommon.message.javahash import java_hash
from remoting.protocol.bodies.body import Body, member
from remoting.protocol.bodies.kinds import FLAG, INT, LONG, TEXT, body_of, choice, list_of

SUB_ALL = "*"
TAG = "TAG"
SQL92 = "SQL92"
CONSUME_TYPE = choice("CONSUME_ACTIVELY", "CONSUME_PASSIVELY", "CONSUME_POP")
MESSAGE_MODEL = choice("BROADCASTING", "CLUSTERING")
CONSUME_FROM_WHERE = choice(
    "CONSUME_FROM_LAST_OFFSET",
    "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
    "CONSUME_FROM_MIN_OFFSET",
    "CONSUME_FROM_MAX_OFFSET",
    "CONSUME_FROM_FIRST_OFFSET",
    "CONSUME_FROM_TIMESTAMP",
)


@dataclass(slots=True)
class SubscriptionData(Body):
    """A subscription as heartbeats carry it. ``tags_set`` and ``code_set`` keep the order they came in."""

    topic: str = member(TEXT, "")
    sub_string: str = member(TEXT, SUB_ALL)
    expression_type: str = member(TEXT, TAG)
    tags_set: list[str] = member(list_of(TEXT))
    code_set: list[int] = member(list_of(INT))
    sub_version: int = member(LONG, 0)
    class_filter_mode: bool = member(FLAG, False)

    @property
    def is_tag(self) -> bool:
        """Whether the expression consists of tags."""
        return self.expression_type in ("", TAG)


def parse_subscription(
    topic: str, expression: str | None, expression_type: str | None = TAG, sub_version: int = 0
) -> SubscriptionData:
    """The subscription of an expression: "*", "TagA || TagB", or SQL with expression type SQL92.

    Raises ValueError when an expression of tags names none.
    """
    if expression_type not in (None, "", TAG):
        return SubscriptionData(topic, expression or "", expression_type or TAG, [], [], sub_version)
    if not expression or expression == SUB_ALL:
        return SubscriptionData(topic, SUB_ALL, TAG, [], [], sub_version)
    tags = list(dict.fromkeys(tag.strip() for tag in expression.split("||") if tag.strip()))
    if not tags:
        raise ValueError(f"subscription {expression!r} names no tag")
    codes = list(dict.fromkeys(map(java_hash, tags)))
    return SubscriptionData(topic, expression, TAG, tags, codes, sub_version)


@dataclass(slots=True)
class ProducerData(Body):
    """A producer group that the client is in."""

    group_name: str = member(TEXT, "")


@dataclass(slots=True)
class ConsumerData(Body):
    """A consumer group that the client is in."""

    group_name: str = member(TEXT, "")
    consume_type: str = member(CONSUME_TYPE, "CONSUME_ACTIVELY")
    message_model: str = member(MESSAGE_MODEL, "CLUSTERING")
    consume_from_where: str = member(CONSUME_FROM_WHERE, "CONSUME_FROM_LAST_OFFSET")
    subscription_data_set: list[SubscriptionData] = member(list_of(body_of(SubscriptionData)))
    unit_mode: bool = member(FLAG, False)


@dataclass(slots=True)
class CheckClientRequestBody(Body):
    """46: a subscription that a client is about to make."""

    client_id: str = member(TEXT, "")
    group: str = member(TEXT, "")
    subscription_data: SubscriptionData = member(body_of(SubscriptionData))


@dataclass(slots=True)
class HeartbeatData(Body):
    """One client's groups. With ``without_sub`` the subscriptions are those sent before with the same fingerprint."""

    client_id: str = member(TEXT, "", wire="clientID")
    producer_data_set: list[ProducerData] = member(list_of(body_of(ProducerData)))
    consumer_data_set: list[ConsumerData] = member(list_of(body_of(ConsumerData)))
    heartbeat_fingerprint: int = member(INT, 0)
    without_sub: bool = member(FLAG, False)
