"""Subscription groups of a broker: 200, 201, 207, 208, 225, 303, 317, 343, 352, 400, 401, 5003."""

from typing import Final

from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.message.queue import MessageQueue
from skylark.remoting.protocol.body import (
    FLAG,
    INT,
    LONG,
    REAL,
    TEXT,
    Body,
    DataVersion,
    Kind,
    body_of,
    choice,
    list_of,
    map_by_queue,
    map_of,
    member,
    read_queue,
    write_queue,
)
from skylark.remoting.protocol.header import Header, optional, required
from skylark.remoting.protocol.request import NOTHING, Request
from skylark.remoting.protocol.requests.topics import NO_CHANGE_ON_SLAVE, TopicList
from skylark.remoting.protocol.rights import (
    CREATE,
    DELETE,
    GET,
    GET_CLUSTER,
    SUB,
    UPDATE,
    Need,
    need_group,
    need_topic,
    of_body,
    on_both,
    on_group,
)
from skylark.remoting.protocol.scalars import read_flag, read_int, read_text


@lazy_dataclass(slots=True)
class ConsumerGroupRequestHeader(Header):
    """38, 203: about one consumer group."""

    consumer_group: str = required(read_text)


@lazy_dataclass(slots=True)
class NotifyConsumerIdsChangedRequestHeader(Header):
    """40: the members of a group changed. Clients ignore a request that names no group."""

    consumer_group: str | None = optional(read_text)


@lazy_dataclass(slots=True)
class ProducerGroupRequestHeader(Header):
    """204: about one producer group."""

    producer_group: str = required(read_text)


@lazy_dataclass(slots=True)
class GetAllSubscriptionGroupRequestHeader(Header):
    """201: all groups of a broker, or some by number. Older callers send no header, and get all."""

    group_seq: int | None = optional(read_int)
    data_version: str | None = optional(read_text)
    max_group_num: int | None = optional(read_int)


@lazy_dataclass(slots=True)
class GetAllSubscriptionGroupResponseHeader(Header):
    """How many groups there are."""

    total_group_num: int | None = optional(read_int)


@lazy_dataclass(slots=True)
class DeleteSubscriptionGroupRequestHeader(Header):
    """207: delete a group. ``remove_offset`` is what 4.x calls ``clean_offset``; clients send both."""

    group_name: str = required(read_text)
    clean_offset: bool | None = optional(read_flag)
    remove_offset: bool | None = optional(read_flag)


@lazy_dataclass(slots=True)
class GetConsumeStatsRequestHeader(Header):
    """208: the progress of a group. A blank topic means all topics of the group; ``topic_list`` is a ";" list."""

    consumer_group: str = required(read_text)
    topic: str | None = optional(read_text)
    topic_list: str | None = optional(read_text)


@lazy_dataclass(slots=True)
class GroupRequestHeader(Header):
    """343 and 352: about one group."""

    group: str = required(read_text)


@lazy_dataclass(slots=True)
class QueryConsumeTimeSpanRequestHeader(Header):
    """303: the group and the topic whose queues are asked for."""

    topic: str = required(read_text)
    group: str = required(read_text)


@lazy_dataclass(slots=True)
class GetBrokerConsumeStatsRequestHeader(Header):
    """317: the progress of all groups. ``is_order``: only ordered topics.

    Two fields are for Skylark's brokers, and add to the answer what would otherwise take a request for each group.
    ``members``: the connected members. ``traffic``: which groups read each topic, and the messages in and out.
    """

    is_order: bool = required(read_flag)
    members: bool | None = optional(read_flag)
    traffic: bool | None = optional(read_flag)


@lazy_dataclass(slots=True)
class SubscriptionGroupNames(Body):
    """Groups to delete (5003). ``clean_offset``: their offsets and pending retries, too."""

    group_name_list: list[str] = member(list_of(TEXT))
    clean_offset: bool = member(FLAG, False)


PULL: Final = "PULL"
POP: Final = "POP"
BROADCASTING: Final = "BROADCASTING"

_QUEUE = Kind(read_queue, write_queue, lambda: MessageQueue("", "", 0))


@lazy_dataclass(slots=True)
class MessageRequestMode(Body):
    """How a group consumes a topic: PULL or POP; ``pop_share_queue_num`` is for POP."""

    consumer_group: str = member(TEXT, "")
    topic: str = member(TEXT, "")
    mode: str = member(TEXT, "PULL")
    pop_share_queue_num: int = member(INT, 0)


@lazy_dataclass(slots=True)
class MessageRequestModes(Body):
    """402: by topic and group."""

    message_request_mode_map: dict[str, dict[str, MessageRequestMode]] = member(
        map_of(map_of(body_of(MessageRequestMode)))
    )


@lazy_dataclass(slots=True)
class QueryAssignmentRequestBody(Body):
    """400: a member of a group asks for its queues. ``strategy_name``: AVG or AVG_BY_CIRCLE."""

    topic: str = member(TEXT, "")
    consumer_group: str = member(TEXT, "")
    client_id: str = member(TEXT, "")
    strategy_name: str = member(TEXT, "")
    message_model: str = member(choice("BROADCASTING", "CLUSTERING"), "CLUSTERING")


@lazy_dataclass(slots=True)
class MessageQueueAssignment(Body):
    """A queue, and how it is consumed."""

    message_queue: MessageQueue = member(_QUEUE)
    mode: str = member(TEXT, PULL)


@lazy_dataclass(slots=True)
class QueryAssignmentResponseBody(Body):
    """The answer to 400; None when the broker cannot tell. The member then keeps the queues that it has."""

    message_queue_assignments: list[MessageQueueAssignment] | None = member(
        list_of(body_of(MessageQueueAssignment)), None
    )


@lazy_dataclass(slots=True)
class ExponentialRetryPolicy(Body):
    """Delays that grow, in milliseconds."""

    initial: int = member(LONG, 5000)
    max: int = member(LONG, 7_200_000)
    multiplier: int = member(LONG, 2)


@lazy_dataclass(slots=True)
class CustomizedRetryPolicy(Body):
    """Delays one by one, in milliseconds."""

    next: list[int] = member(list_of(LONG))


@lazy_dataclass(slots=True)
class GroupRetryPolicy(Body):
    """When a message that was not consumed is delivered again."""

    type: str = member(choice("EXPONENTIAL", "CUSTOMIZED"), "CUSTOMIZED")
    exponential_retry_policy: ExponentialRetryPolicy | None = member(body_of(ExponentialRetryPolicy), None)
    customized_retry_policy: CustomizedRetryPolicy | None = member(body_of(CustomizedRetryPolicy), None)


@lazy_dataclass(slots=True)
class SimpleSubscriptionData(Body):
    """A subscription that the group's configuration fixes."""

    topic: str = member(TEXT, "")
    expression_type: str = member(TEXT, "TAG")
    expression: str = member(TEXT, "*")
    version: int = member(LONG, 0)


@lazy_dataclass(slots=True)
class SubscriptionGroupConfig(Body):
    """How a broker serves a consumer group."""

    group_name: str = member(TEXT, "")
    consume_enable: bool = member(FLAG, True)
    consume_from_min_enable: bool = member(FLAG, True)
    consume_broadcast_enable: bool = member(FLAG, True)
    consume_message_orderly: bool = member(FLAG, False)
    retry_queue_nums: int = member(INT, 1)
    retry_max_times: int = member(INT, 16)
    group_retry_policy: GroupRetryPolicy = member(body_of(GroupRetryPolicy))
    broker_id: int = member(LONG, 0)
    which_broker_when_consume_slowly: int = member(LONG, 1)
    notify_consumer_ids_changed_enable: bool = member(FLAG, True)
    group_sys_flag: int = member(INT, 0)
    consume_timeout_minute: int = member(INT, 15)
    subscription_data_set: list[SimpleSubscriptionData] | None = member(list_of(body_of(SimpleSubscriptionData)), None)
    attributes: dict[str, str] = member(map_of(TEXT))


@lazy_dataclass(slots=True)
class SubscriptionGroupList(Body):
    """Groups to create or change (225)."""

    group_config_list: list[SubscriptionGroupConfig] = member(list_of(body_of(SubscriptionGroupConfig)))


@lazy_dataclass(slots=True)
class SubscriptionGroupTable(Body):
    """All groups of a broker (201)."""

    subscription_group_table: dict[str, SubscriptionGroupConfig] = member(map_of(body_of(SubscriptionGroupConfig)))
    forbidden_table: dict[str, dict[str, int]] = member(map_of(map_of(INT)))
    data_version: DataVersion = member(body_of(DataVersion))


@lazy_dataclass(slots=True)
class ConsumerIdList(Body):
    """The members of a consumer group (38)."""

    consumer_id_list: list[str] = member(list_of(TEXT))


@lazy_dataclass(slots=True)
class ConsumeOffset(Body):
    """A group's progress in one queue."""

    broker_offset: int = member(LONG, 0)
    consumer_offset: int = member(LONG, 0)
    pull_offset: int = member(LONG, 0)
    last_timestamp: int = member(LONG, 0)


@lazy_dataclass(slots=True)
class ConsumeStats(Body):
    """A group's progress in all its queues (208)."""

    offset_table: dict[MessageQueue, ConsumeOffset] = member(map_by_queue(body_of(ConsumeOffset)))
    consume_tps: float = member(REAL, 0.0)


@lazy_dataclass(slots=True)
class GroupMembers(Body):
    """The connected members of a group: the version of each by client id, and what one of them says of the group."""

    versions: dict[str, int] = member(map_of(INT))
    consume_type: str = member(TEXT, "")
    message_model: str = member(TEXT, "")


@lazy_dataclass(slots=True)
class Traffic(Body):
    """Messages that were sent to a topic, or that ``group`` got of the topic.

    ``tps``: messages per second in the last minute; ``of_day``: messages of the last day.
    """

    topic: str = member(TEXT, "")
    group: str = member(TEXT, "")
    tps: float = member(REAL, 0.0)
    of_day: int = member(LONG, 0)


@lazy_dataclass(slots=True)
class ConsumeStatsList(Body):
    """All groups of a broker (317): for each a map with one key, the group, to its progress in each topic.

    The last three members are Skylark's own, and None in the answers of other brokers: the members of each group, the
    groups that read each topic (as 300), and the messages in and out.
    """

    consume_stats_list: list[dict[str, list[ConsumeStats]]] = member(list_of(map_of(list_of(body_of(ConsumeStats)))))
    broker_addr: str = member(TEXT, "")
    total_diff: int = member(LONG, 0)
    total_inflight_diff: int = member(LONG, 0)
    members: dict[str, GroupMembers] | None = member(map_of(body_of(GroupMembers)), None)
    readers: dict[str, list[str]] | None = member(map_of(list_of(TEXT)), None)
    traffic: list[Traffic] | None = member(list_of(body_of(Traffic)), None)


@lazy_dataclass(slots=True)
class QueueTimeSpan(Body):
    """Store times in one queue: of its first and last message, and of the last message that the group has consumed.

    ``delay_time``: how long the group's next message has been waiting.
    """

    message_queue: MessageQueue | None = member(Kind(read_queue, write_queue), None)
    min_time_stamp: int = member(LONG, 0)
    max_time_stamp: int = member(LONG, 0)
    consume_time_stamp: int = member(LONG, 0)
    delay_time: int = member(LONG, 0)


@lazy_dataclass(slots=True)
class QueryConsumeTimeSpanBody(Body):
    """A group's progress in time, in each queue of a topic (303)."""

    consume_time_span_set: list[QueueTimeSpan] = member(list_of(body_of(QueueTimeSpan)))


def _assignment_needs(body: QueryAssignmentRequestBody) -> list[Need]:
    return [need_group(body.consumer_group, SUB), need_topic(body.topic, SUB, body.consumer_group)]


def _mode_needs(body: MessageRequestMode) -> list[Need]:
    return [need_group(body.consumer_group, UPDATE), need_topic(body.topic, UPDATE, body.consumer_group)]


def _delete_groups_needs(body: SubscriptionGroupNames) -> list[Need]:
    return [need_group(name, DELETE) for name in body.group_name_list]


def _create_group_needs(body: SubscriptionGroupConfig) -> list[Need]:
    return [need_group(body.group_name, CREATE)]


def _create_groups_needs(body: SubscriptionGroupList) -> list[Need]:
    return [need_group(config.group_name, CREATE) for config in body.group_config_list]


UPDATE_AND_CREATE_SUBSCRIPTIONGROUP = Request(
    200,
    NOTHING,
    SubscriptionGroupConfig,
    NOTHING,
    NOTHING,
    right=of_body(_create_group_needs, like=on_group(CREATE)),
    on_slave=NO_CHANGE_ON_SLAVE,
)
UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST = Request(
    225,
    NOTHING,
    SubscriptionGroupList,
    NOTHING,
    NOTHING,
    right=of_body(_create_groups_needs, like=on_group(CREATE)),
    on_slave=NO_CHANGE_ON_SLAVE,
)
GET_ALL_SUBSCRIPTIONGROUP_CONFIG = Request(
    201,
    GetAllSubscriptionGroupRequestHeader,
    NOTHING,
    GetAllSubscriptionGroupResponseHeader,
    SubscriptionGroupTable,
    right=GET_CLUSTER,
)
DELETE_SUBSCRIPTIONGROUP = Request(
    207,
    DeleteSubscriptionGroupRequestHeader,
    NOTHING,
    NOTHING,
    NOTHING,
    right=on_group(DELETE, "groupName"),
    on_slave=NO_CHANGE_ON_SLAVE,
)
DELETE_SUBSCRIPTION_GROUP_LIST = Request(
    5003,
    NOTHING,
    SubscriptionGroupNames,
    NOTHING,
    NOTHING,
    right=of_body(_delete_groups_needs, like=on_group(DELETE)),
    on_slave=NO_CHANGE_ON_SLAVE,
)
GET_CONSUME_STATS = Request(
    208,
    GetConsumeStatsRequestHeader,
    NOTHING,
    NOTHING,
    ConsumeStats,
    right=on_both(GET),
)
GET_BROKER_CONSUME_STATS = Request(
    317,
    GetBrokerConsumeStatsRequestHeader,
    NOTHING,
    NOTHING,
    ConsumeStatsList,
    right=GET_CLUSTER,
)
QUERY_CONSUME_TIME_SPAN = Request(
    303,
    QueryConsumeTimeSpanRequestHeader,
    NOTHING,
    NOTHING,
    QueryConsumeTimeSpanBody,
    right=on_both(GET, "group"),
)
QUERY_TOPICS_BY_CONSUMER = Request(
    343,
    GroupRequestHeader,
    NOTHING,
    NOTHING,
    TopicList,
    right=on_group(GET, "group"),
)
GET_SUBSCRIPTIONGROUP_CONFIG = Request(
    352,
    GroupRequestHeader,
    NOTHING,
    NOTHING,
    SubscriptionGroupConfig,
    right=on_group(GET, "group"),
)
QUERY_ASSIGNMENT = Request(
    400,
    NOTHING,
    QueryAssignmentRequestBody,
    NOTHING,
    QueryAssignmentResponseBody,
    right=of_body(_assignment_needs, like=on_both(SUB)),
)
SET_MESSAGE_REQUEST_MODE = Request(
    401,
    NOTHING,
    MessageRequestMode,
    NOTHING,
    NOTHING,
    right=of_body(_mode_needs, like=on_both(UPDATE)),
    on_slave=NO_CHANGE_ON_SLAVE,
)
