"""Requests to a broker that only admin tools use, one function per request, as in `sdk.broker_api`."""

from collections.abc import Mapping, Sequence

from mqcommon.errors import BrokerError
from mqcommon.names import AUTO_CREATE_TOPIC
from remoting.net.call import call
from remoting.protocol.codes import ResponseCode
from remoting.protocol.requests import brokers, clients, groups, query, topics
from remoting.protocol.requests.brokers import (
    BrokerStatsData,
    HARuntimeInfo,
    ResetMasterFlushOffsetHeader,
    ViewBrokerStatsDataRequestHeader,
)
from remoting.protocol.requests.clients import (
    ConsumeMessageDirectlyRequestHeader,
    ConsumeMessageDirectlyResult,
    ConsumerConnection,
    ConsumerRunningInfo,
    GetConsumerRunningInfoRequestHeader,
    ProducerConnection,
)
from remoting.protocol.requests.groups import (
    ConsumerGroupRequestHeader,
    ConsumeStats,
    DeleteSubscriptionGroupRequestHeader,
    GetConsumeStatsRequestHeader,
    MessageRequestMode,
    ProducerGroupRequestHeader,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    SubscriptionGroupTable,
)
from remoting.protocol.requests.query import ConsumeQueueEntries, QueryConsumeQueueRequestHeader
from remoting.protocol.requests.replication import GET_BROKER_EPOCH_CACHE, EpochEntryCache
from remoting.protocol.requests.topics import (
    CreateTopicRequestHeader,
    GetTopicConfigRequestHeader,
    GroupList,
    TopicConfig,
    TopicConfigList,
    TopicConfigTable,
    TopicList,
    TopicRequestHeader,
    TopicStatsTable,
)
from sdk.config_text import decode_config, encode_config
from sdk.endpoint import Endpoint

# How many topics or groups one request lists: brokers limit the size of a request.
LIST_PART = 50

# --- topics and groups


async def create_topic(broker: Endpoint, config: TopicConfig) -> None:
    """Create the topic, or change it to ``config``.

    Attributes are sent as changes, ``+name=value``; a name that begins with ``-`` takes the attribute away.
    """
    changes = [
        name if name.startswith("-") else f"{name}={value}" if name.startswith("+") else f"+{name}={value}"
        for name, value in config.attributes.items()
    ]
    header = CreateTopicRequestHeader(
        config.topic_name,
        AUTO_CREATE_TOPIC,
        config.read_queue_nums,
        config.write_queue_nums,
        config.perm,
        config.topic_filter_type,
        config.order,
        config.topic_sys_flag,
        attributes=",".join(changes),
        force=False,
    )
    await call(broker, topics.UPDATE_AND_CREATE_TOPIC, header)


async def create_topics(broker: Endpoint, configs: Sequence[TopicConfig]) -> None:
    """Create or change the topics, LIST_PART at a time. Their attributes are ``+name``: value, ``-name``: ""."""
    for first in range(0, len(configs), LIST_PART):
        part = TopicConfigList(list(configs[first : first + LIST_PART]))
        await call(broker, topics.UPDATE_AND_CREATE_TOPIC_LIST, None, part)


async def delete_topic(broker: Endpoint, topic: str) -> None:
    """Delete the topic, its queues and the groups' offsets in them."""
    await call(broker, topics.DELETE_TOPIC_IN_BROKER, TopicRequestHeader(topic))


async def all_topic_config(broker: Endpoint) -> TopicConfigTable:
    """All topics of the broker, and their data version."""
    return (await call(broker, topics.GET_ALL_TOPIC_CONFIG.bare)).body()


async def topic_config(broker: Endpoint, topic: str) -> TopicConfig:
    """One topic of the broker; code 17 when it has no such topic. Brokers before 5.0 return only the whole table."""
    try:
        return (await call(broker, topics.GET_TOPIC_CONFIG, GetTopicConfigRequestHeader(topic, lo=True))).body()
    except BrokerError as error:
        if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise
    table = await all_topic_config(broker)
    found = table.topic_config_table.get(topic)
    if found is None:
        raise BrokerError(ResponseCode.TOPIC_NOT_EXIST, f"No topic in this broker. topic: {topic}", broker.addr)
    return found


async def system_topics(broker: Endpoint) -> TopicList:
    """The topics that the broker created for itself."""
    return (await call(broker, topics.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)).body()


async def topic_stats(broker: Endpoint, topic: str) -> TopicStatsTable:
    """Smallest, largest offset and last update of each queue of the topic on the broker."""
    return (await call(broker, topics.GET_TOPIC_STATS_INFO, TopicRequestHeader(topic))).body()


async def groups_of_topic(broker: Endpoint, topic: str) -> GroupList:
    """The groups that consume the topic, by their offsets and connections."""
    return (await call(broker, topics.QUERY_TOPIC_CONSUME_BY_WHO, TopicRequestHeader(topic))).body()


async def create_group(broker: Endpoint, config: SubscriptionGroupConfig) -> None:
    """Create the subscription group, or change it to ``config``."""
    await call(broker, groups.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, config)


async def create_groups(broker: Endpoint, configs: Sequence[SubscriptionGroupConfig]) -> None:
    """Create or change the groups, LIST_PART at a time."""
    for first in range(0, len(configs), LIST_PART):
        part = SubscriptionGroupList(list(configs[first : first + LIST_PART]))
        await call(broker, groups.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, None, part)


async def set_consume_mode(broker: Endpoint, mode: MessageRequestMode) -> None:
    """Set how a group consumes a topic."""
    await call(broker, groups.SET_MESSAGE_REQUEST_MODE, None, mode)


async def delete_group(broker: Endpoint, group: str, *, clean_offset: bool) -> None:
    """Delete the subscription group, and its offsets if ``clean_offset``."""
    header = DeleteSubscriptionGroupRequestHeader(group, clean_offset)
    await call(broker, groups.DELETE_SUBSCRIPTIONGROUP, header)


async def all_groups(broker: Endpoint) -> SubscriptionGroupTable:
    """Every subscription group of the broker."""
    return (await call(broker, groups.GET_ALL_SUBSCRIPTIONGROUP_CONFIG.bare)).body()


async def consume_stats(broker: Endpoint, group: str, topic: str | None = None) -> ConsumeStats:
    """The group's offsets and lag in each queue on the broker, for ``topic`` or for all its topics."""
    return (await call(broker, groups.GET_CONSUME_STATS, GetConsumeStatsRequestHeader(group, topic))).body()


# --- the store


async def query_consume_queue(
    broker: Endpoint, topic: str, queue_id: int, index: int, count: int, group: str | None = None
) -> ConsumeQueueEntries:
    """Up to ``count`` entries of a queue; code 1 when there is no such queue."""
    header = QueryConsumeQueueRequestHeader(topic, queue_id, index, count, group)
    return (await call(broker, query.QUERY_CONSUME_QUEUE, header)).body()


async def delete_expired_commit_log(broker: Endpoint) -> None:
    """Delete commit log files older than fileReservedTime now."""
    await call(broker, brokers.DELETE_EXPIRED_COMMITLOG)


async def clean_expired_consume_queue(broker: Endpoint) -> None:
    """Delete consume queue files whose messages have been deleted."""
    await call(broker, brokers.CLEAN_EXPIRED_CONSUMEQUEUE)


async def clean_unused_topic(broker: Endpoint) -> None:
    """Delete consume queues of topics that the broker does not have."""
    await call(broker, brokers.CLEAN_UNUSED_TOPIC)


# --- the broker itself


async def runtime_info(broker: Endpoint) -> dict[str, str]:
    """Counters and state, all as text (PROTOCOL.md section 15)."""
    return (await call(broker, brokers.GET_BROKER_RUNTIME_INFO)).body().table


async def broker_config(broker: Endpoint) -> dict[str, str]:
    """The current values of all options of the broker."""
    return decode_config((await call(broker, brokers.GET_BROKER_CONFIG)).body())


async def update_broker_config(broker: Endpoint, values: Mapping[str, str]) -> None:
    """Change options while the broker runs."""
    await call(broker, brokers.UPDATE_BROKER_CONFIG, None, encode_config(values))


async def ha_status(broker: Endpoint) -> HARuntimeInfo:
    """The replication state: of a master, how far its slaves are; of a slave, how far it has copied."""
    return (await call(broker, brokers.GET_BROKER_HA_STATUS)).body()


async def broker_epochs(broker: Endpoint) -> EpochEntryCache:
    """Which master of its set wrote which part of the broker's log."""
    return (await call(broker, GET_BROKER_EPOCH_CACHE)).body()


async def reset_master_flush_offset(broker: Endpoint, offset: int) -> None:
    """Set the offset up to which a slave takes its master's log as flushed."""
    await call(broker, brokers.RESET_MASTER_FLUSH_OFFSET, ResetMasterFlushOffsetHeader(offset))


async def broker_stats(broker: Endpoint, name: str, key: str) -> BrokerStatsData:
    """A rate (TOPIC_PUT_NUMS, GROUP_GET_NUMS, ...) over the last minute, hour and day; code 1 when unknown."""
    return (await call(broker, brokers.VIEW_BROKER_STATS_DATA, ViewBrokerStatsDataRequestHeader(name, key))).body()


# --- who is connected


async def consumer_connection(broker: Endpoint, group: str) -> ConsumerConnection:
    """The consumers of ``group`` that are connected; code 206 when none is."""
    return (await call(broker, clients.GET_CONSUMER_CONNECTION_LIST, ConsumerGroupRequestHeader(group))).body()


async def producer_connection(broker: Endpoint, group: str) -> ProducerConnection:
    """The producers of ``group`` that are connected; code 1 when none is."""
    return (await call(broker, clients.GET_PRODUCER_CONNECTION_LIST, ProducerGroupRequestHeader(group))).body()


async def consumer_running_info(
    broker: Endpoint, group: str, client_id: str, *, jstack: bool = False
) -> ConsumerRunningInfo:
    """The status of one consumer; the broker asks the consumer for it."""
    header = GetConsumerRunningInfoRequestHeader(group, client_id, jstack)
    return (await call(broker, clients.GET_CONSUMER_RUNNING_INFO, header)).body()


async def consume_message_directly(
    broker: Endpoint, group: str, client_id: str, topic: str, offset_msg_id: str
) -> ConsumeMessageDirectlyResult:
    """The result of one consumer for one message, which the broker sends to it."""
    header = ConsumeMessageDirectlyRequestHeader(group, client_id, offset_msg_id, topic)
    return (await call(broker, clients.CONSUME_MESSAGE_DIRECTLY, header, b"")).body()
