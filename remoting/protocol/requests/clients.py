"""Clients: heartbeats (34, 35), checks of subscriptions (46), members of groups (38, 203, 204, 328), what groups
subscribe to (345), their offsets (223), requests of brokers (40, 220, 221, 307, 309), challenges (7103).
"""

from collections.abc import Mapping
from typing import Any

from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.message.javahash import java_hash
from skylark.mqcommon.message.queue import MessageQueue
from skylark.remoting.protocol.body import (
    FLAG,
    INT,
    LONG,
    REAL,
    TEXT,
    Body,
    body_of,
    choice,
    list_of,
    map_by_queue,
    map_of,
    member,
)
from skylark.remoting.protocol.command import LANGUAGES
from skylark.remoting.protocol.header import Header, optional, required
from skylark.remoting.protocol.request import NOTHING, Request
from skylark.remoting.protocol.requests.groups import (
    ConsumerGroupRequestHeader,
    ConsumerIdList,
    NotifyConsumerIdsChangedRequestHeader,
    ProducerGroupRequestHeader,
)
from skylark.remoting.protocol.requests.offsets import (
    GetConsumerStatusBody,
    GetConsumerStatusRequestHeader,
    ResetOffsetBody,
    ResetOffsetRequestHeader,
)
from skylark.remoting.protocol.rights import (
    GET,
    GET_CLUSTER,
    LARGE,
    SUB,
    SUB_GET,
    UPDATE,
    Need,
    Right,
    need_group,
    need_topic,
    of_body,
    on_both,
    on_group,
    text_of,
)
from skylark.remoting.protocol.scalars import read_flag, read_text

SUB_ALL = "*"
TAG = "TAG"
SQL92 = "SQL92"
CONSUME_TYPE = choice("CONSUME_ACTIVELY", "CONSUME_PASSIVELY", "CONSUME_POP")
# The last one is of RocketMQ 5.5: a consumer of lite topics, which a proxy names in its heartbeats beside others.
MESSAGE_MODEL = choice("BROADCASTING", "CLUSTERING", "LITE_SELECTIVE")
CONSUME_FROM_WHERE = choice(
    "CONSUME_FROM_LAST_OFFSET",
    "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
    "CONSUME_FROM_MIN_OFFSET",
    "CONSUME_FROM_MAX_OFFSET",
    "CONSUME_FROM_FIRST_OFFSET",
    "CONSUME_FROM_TIMESTAMP",
)


@lazy_dataclass(slots=True)
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


@lazy_dataclass(slots=True)
class ChallengeRequestHeader(Header):
    """7103: asks for a challenge, with which the client then signs its requests.

    ``server``: ``ip:port`` to which the client has connected, as it sees it; old clients do not say it.
    """

    server: str | None = optional(read_text)


@lazy_dataclass(slots=True)
class ChallengeHeader(Header):
    """The answer to 7103. RocketMQ, and old versions of Skylark that have no challenge, answer with an error.

    ``server``: the address that the request named, which signatures cover; old versions leave it out.
    """

    challenge: str = required(read_text)
    server: str | None = optional(read_text)


@lazy_dataclass(slots=True)
class HeartbeatResponseHeader(Header):
    """The answer to 34.

    ``subscription_differences`` is Skylark's own: for each of the client's groups whose members have different
    subscriptions a line, the group's name, a space, and who differs in what.
    """

    is_support_heart_beat_v2: bool | None = optional(read_flag, wire="IS_SUPPORT_HEART_BEAT_V2")
    is_sub_change: bool | None = optional(read_flag, wire="IS_SUB_CHANGE")
    subscription_differences: str | None = optional(read_text)


@lazy_dataclass(slots=True)
class UnregisterClientRequestHeader(Header):
    """35: a client leaves a producer group, a consumer group or both; an empty name stands for no group."""

    client_id: str = required(read_text, wire="clientID")
    producer_group: str | None = optional(read_text)
    consumer_group: str | None = optional(read_text)


@lazy_dataclass(slots=True)
class QuerySubscriptionByConsumerRequestHeader(Header):
    """345: the group's subscription to one topic."""

    group: str = required(read_text)
    topic: str = required(read_text)


@lazy_dataclass(slots=True)
class QuerySubscriptionResponseBody(Body):
    """The answer to 345; without ``subscription_data`` no member of the group subscribes to the topic."""

    group: str = member(TEXT, "")
    topic: str = member(TEXT, "")
    subscription_data: SubscriptionData | None = member(body_of(SubscriptionData), None)


@lazy_dataclass(slots=True)
class GetConsumerRunningInfoRequestHeader(Header):
    """307: asks for the status of a consumer; a broker passes it on to the client."""

    consumer_group: str = required(read_text)
    client_id: str = required(read_text)
    jstack_enable: bool | None = optional(read_flag)


@lazy_dataclass(slots=True)
class ConsumeMessageDirectlyRequestHeader(Header):
    """309: has a consumer handle one message.

    A broker adds its name and the message that the offset message id names, and passes the request on.
    """

    consumer_group: str = required(read_text)
    client_id: str = required(read_text)
    msg_id: str | None = optional(read_text)
    topic: str | None = optional(read_text)
    broker_name: str | None = optional(read_text)


@lazy_dataclass(slots=True)
class ProcessQueueInfo(Body):
    """One queue that the consumer works on. ``droped`` is RocketMQ's spelling."""

    commit_offset: int = member(LONG, 0)
    cached_msg_min_offset: int = member(LONG, 0)
    cached_msg_max_offset: int = member(LONG, 0)
    cached_msg_count: int = member(INT, 0)
    cached_msg_size_in_mib: int = member(INT, 0, wire="cachedMsgSizeInMiB")
    transaction_msg_min_offset: int = member(LONG, 0)
    transaction_msg_max_offset: int = member(LONG, 0)
    transaction_msg_count: int = member(INT, 0)
    locked: bool = member(FLAG, False)
    try_unlock_times: int = member(LONG, 0)
    last_lock_timestamp: int = member(LONG, 0)
    droped: bool = member(FLAG, False)
    last_pull_timestamp: int = member(LONG, 0)
    last_consume_timestamp: int = member(LONG, 0)


@lazy_dataclass(slots=True)
class PopProcessQueueInfo(Body):
    """One queue that the consumer pops from."""

    wait_ack_count: int = member(INT, 0)
    droped: bool = member(FLAG, False)
    last_pop_timestamp: int = member(LONG, 0)


@lazy_dataclass(slots=True)
class ConsumeStatus(Body):
    """Rates of one topic."""

    pull_rt: float = member(REAL, 0.0, wire="pullRT")
    pull_tps: float = member(REAL, 0.0, wire="pullTPS")
    consume_rt: float = member(REAL, 0.0, wire="consumeRT")
    consume_ok_tps: float = member(REAL, 0.0, wire="consumeOKTPS")
    consume_failed_tps: float = member(REAL, 0.0, wire="consumeFailedTPS")
    consume_failed_msgs: int = member(LONG, 0)


@lazy_dataclass(slots=True)
class ConsumerRunningInfo(Body):
    """Settings, queues and rates of one consumer."""

    properties: dict[str, str] = member(map_of(TEXT))
    subscription_set: list[SubscriptionData] = member(list_of(body_of(SubscriptionData)))
    mq_table: dict[MessageQueue, ProcessQueueInfo] = member(map_by_queue(body_of(ProcessQueueInfo)))
    mq_pop_table: dict[MessageQueue, PopProcessQueueInfo] = member(map_by_queue(body_of(PopProcessQueueInfo)))
    status_table: dict[str, ConsumeStatus] = member(map_of(body_of(ConsumeStatus)))
    user_consumer_info: dict[str, str] = member(map_of(TEXT))
    jstack: str | None = member(TEXT, None)


CONSUME_RESULT = choice("CR_SUCCESS", "CR_LATER", "CR_ROLLBACK", "CR_COMMIT", "CR_THROW_EXCEPTION", "CR_RETURN_NULL")


@lazy_dataclass(slots=True)
class ConsumeMessageDirectlyResult(Body):
    """The result of the consumer's listener."""

    order: bool = member(FLAG, False)
    auto_commit: bool = member(FLAG, True)
    consume_result: str = member(CONSUME_RESULT, "CR_SUCCESS")
    remark: str | None = member(TEXT, None)
    spent_time_mills: int = member(LONG, 0)


@lazy_dataclass(slots=True)
class Connection(Body):
    """One client's connection."""

    client_id: str = member(TEXT, "")
    client_addr: str = member(TEXT, "")
    language: str = member(choice(*LANGUAGES), "OTHER")
    version: int = member(INT, 0)


@lazy_dataclass(slots=True)
class ConsumerConnection(Body):
    """The members of a consumer group and what they subscribe to."""

    connection_set: list[Connection] = member(list_of(body_of(Connection)))
    subscription_table: dict[str, SubscriptionData] = member(map_of(body_of(SubscriptionData)))
    consume_type: str = member(CONSUME_TYPE, "CONSUME_ACTIVELY")
    message_model: str = member(MESSAGE_MODEL, "CLUSTERING")
    consume_from_where: str = member(CONSUME_FROM_WHERE, "CONSUME_FROM_LAST_OFFSET")


@lazy_dataclass(slots=True)
class ProducerConnection(Body):
    """The members of a producer group."""

    connection_set: list[Connection] = member(list_of(body_of(Connection)))


@lazy_dataclass(slots=True)
class ProducerInfo(Body):
    """One producer's connection, and when it last sent a heartbeat."""

    client_id: str = member(TEXT, "")
    remote_ip: str = member(TEXT, "", wire="remoteIP")
    language: str = member(choice(*LANGUAGES), "OTHER")
    version: int = member(INT, 0)
    last_update_timestamp: int = member(LONG, 0)


@lazy_dataclass(slots=True)
class ProducerTableInfo(Body):
    """All connected producers by group (328)."""

    data: dict[str, list[ProducerInfo]] = member(map_of(list_of(body_of(ProducerInfo))))


@lazy_dataclass(slots=True)
class ProducerData(Body):
    """A producer group that the client is in."""

    group_name: str = member(TEXT, "")


@lazy_dataclass(slots=True)
class ConsumerData(Body):
    """A consumer group that the client is in."""

    group_name: str = member(TEXT, "")
    consume_type: str = member(CONSUME_TYPE, "CONSUME_ACTIVELY")
    message_model: str = member(MESSAGE_MODEL, "CLUSTERING")
    consume_from_where: str = member(CONSUME_FROM_WHERE, "CONSUME_FROM_LAST_OFFSET")
    subscription_data_set: list[SubscriptionData] = member(list_of(body_of(SubscriptionData)))
    unit_mode: bool = member(FLAG, False)


@lazy_dataclass(slots=True)
class CheckClientRequestBody(Body):
    """46: a subscription that a client is about to make."""

    client_id: str = member(TEXT, "")
    group: str = member(TEXT, "")
    subscription_data: SubscriptionData = member(body_of(SubscriptionData))


@lazy_dataclass(slots=True)
class HeartbeatData(Body):
    """One client's groups. With ``without_sub`` the subscriptions are as sent before with the same fingerprint."""

    client_id: str = member(TEXT, "", wire="clientID")
    producer_data_set: list[ProducerData] = member(list_of(body_of(ProducerData)))
    consumer_data_set: list[ConsumerData] = member(list_of(body_of(ConsumerData)))
    heartbeat_fingerprint: int = member(INT, 0)
    without_sub: bool = member(FLAG, False)


def _unregister_needs(ext: Mapping[str, Any] | None) -> list[Need]:
    group = text_of(ext, "consumerGroup")
    return [need_group(group, SUB)] if group else []


def _heartbeat_needs(body: HeartbeatData) -> list[Need]:
    found = []
    for consumer in body.consumer_data_set:
        found.append(need_group(consumer.group_name, SUB))
        found += [need_topic(each.topic, SUB, consumer.group_name) for each in consumer.subscription_data_set]
    return found


def _check_client_needs(body: CheckClientRequestBody) -> list[Need]:
    return [need_group(body.group, SUB), need_topic(body.subscription_data.topic, SUB, body.group)]


def _consume_directly_needs(ext: Mapping[str, Any] | None) -> list[Need]:
    # A consumer handles any message that the id names, or a message that the request brings along. This needs the right
    # that a reset of the group's offsets needs.
    return [*GET_CLUSTER.of_ext(ext), need_group(text_of(ext, "consumerGroup"), UPDATE)]


# Sent before a client signs anything. Each connection gets its own challenge.
CHALLENGE = Request(7103, ChallengeRequestHeader, NOTHING, ChallengeHeader, NOTHING)
HEART_BEAT = Request(
    34,
    NOTHING,
    HeartbeatData,
    HeartbeatResponseHeader,
    NOTHING,
    right=of_body(_heartbeat_needs, like=on_both(SUB), limits=LARGE),
)
CHECK_CLIENT_CONFIG = Request(
    46,
    NOTHING,
    CheckClientRequestBody,
    NOTHING,
    NOTHING,
    right=of_body(_check_client_needs, like=on_both(SUB)),
)
UNREGISTER_CLIENT = Request(
    35,
    UnregisterClientRequestHeader,
    NOTHING,
    NOTHING,
    NOTHING,
    right=Right(_unregister_needs),
)
GET_CONSUMER_LIST_BY_GROUP = Request(
    38,
    ConsumerGroupRequestHeader,
    NOTHING,
    NOTHING,
    ConsumerIdList,
    right=on_group(SUB_GET),
)
NOTIFY_CONSUMER_IDS_CHANGED = Request(
    40,
    NotifyConsumerIdsChangedRequestHeader,
    NOTHING,
    NOTHING,
    NOTHING,
    may_be_oneway=True,
)
GET_CONSUMER_CONNECTION_LIST = Request(
    203,
    ConsumerGroupRequestHeader,
    NOTHING,
    NOTHING,
    ConsumerConnection,
    right=on_group(GET),
)
GET_PRODUCER_CONNECTION_LIST = Request(
    204,
    ProducerGroupRequestHeader,
    NOTHING,
    NOTHING,
    ProducerConnection,
    right=on_group(GET, "producerGroup"),
)
GET_ALL_PRODUCER_INFO = Request(
    328,
    NOTHING,
    NOTHING,
    NOTHING,
    ProducerTableInfo,
    right=GET_CLUSTER,
)
QUERY_SUBSCRIPTION_BY_CONSUMER = Request(
    345,
    QuerySubscriptionByConsumerRequestHeader,
    NOTHING,
    NOTHING,
    QuerySubscriptionResponseBody,
    right=on_both(GET, "group"),
)
# C++ clients get a ResetOffsetBodyForC.
RESET_CONSUMER_CLIENT_OFFSET = Request(
    220,
    ResetOffsetRequestHeader,
    ResetOffsetBody,
    NOTHING,
    NOTHING,
    may_be_oneway=True,
)
GET_CONSUMER_STATUS_FROM_CLIENT = Request(221, GetConsumerStatusRequestHeader, NOTHING, NOTHING, GetConsumerStatusBody)
INVOKE_BROKER_TO_GET_CONSUMER_STATUS = Request(
    223,
    GetConsumerStatusRequestHeader,
    NOTHING,
    NOTHING,
    GetConsumerStatusBody,
    right=on_both(GET, "group"),
)
GET_CONSUMER_RUNNING_INFO = Request(
    307,
    GetConsumerRunningInfoRequestHeader,
    NOTHING,
    NOTHING,
    ConsumerRunningInfo,
    right=on_group(GET),
)
# The body is the stored message. mqadmin sends none: the broker adds it.
CONSUME_MESSAGE_DIRECTLY = Request(
    309,
    ConsumeMessageDirectlyRequestHeader,
    bytes,
    NOTHING,
    ConsumeMessageDirectlyResult,
    right=Right(_consume_directly_needs),
)
