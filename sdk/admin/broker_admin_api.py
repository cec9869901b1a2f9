"""What only admin tools ask of a broker: one function a request, as in `sdk.broker_api`."""

from collections.abc import Mapping

from mqcommon.errors import BrokerError
from remoting.protocol.bodies import decode_body
from remoting.protocol.bodies.connections import ConsumerConnection, ProducerConnection
from remoting.protocol.bodies.consume_queue import ConsumeQueueEntries
from remoting.protocol.bodies.consume_result import ConsumeMessageDirectlyResult
from remoting.protocol.bodies.group import SubscriptionGroupConfig, SubscriptionGroupTable
from remoting.protocol.bodies.ha import HARuntimeInfo
from remoting.protocol.bodies.kvtable import KVTable
from remoting.protocol.bodies.running_info import ConsumerRunningInfo
from remoting.protocol.bodies.stats import BrokerStatsData, ConsumeStats
from remoting.protocol.bodies.topic import GroupList, TopicConfig, TopicConfigTable, TopicList, TopicStatsTable
from remoting.protocol.codes import RequestCode, ResponseCode
from sdk.config_text import decode_config, encode_config
from sdk.endpoint import Endpoint

_DEFAULT_TOPIC = "TBW102"

# --- topics and groups


async def create_topic(broker: Endpoint, config: TopicConfig) -> None:
    """Create the topic, or change it to ``config``.

    Attributes are sent as changes, ``+name=value``; a name that begins with ``-`` takes the attribute away.
    """
    changes = [
        name if name.startswith("-") else f"{name}={value}" if name.startswith("+") else f"+{name}={value}"
        for name, value in config.attributes.items()
    ]
    ext = {
        "topic": config.topic_name,
        "defaultTopic": _DEFAULT_TOPIC,
        "readQueueNums": config.read_queue_nums,
        "writeQueueNums": config.write_queue_nums,
        "perm": config.perm,
        "topicFilterType": config.topic_filter_type,
        "topicSysFlag": config.topic_sys_flag,
        "order": config.order,
        "attributes": ",".join(changes),
        "force": False,
    }
    await broker.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, ext)


async def delete_topic(broker: Endpoint, topic: str) -> None:
    """Drop the topic, its queues and the offsets in them."""
    await broker.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic})


async def all_topic_config(broker: Endpoint) -> TopicConfigTable:
    """Every topic of the broker, with their data version."""
    answer = await broker.ask(RequestCode.GET_ALL_TOPIC_CONFIG)
    return decode_body(TopicConfigTable, answer.body, answer.codec)


async def topic_config(broker: Endpoint, topic: str) -> TopicConfig:
    """One topic of the broker; code 17 when it has no such topic. Brokers before 5.0 know only the whole table."""
    accept = (ResponseCode.SUCCESS, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
    ext = {"topic": topic, "lo": True}
    answer = await broker.ask(RequestCode.GET_TOPIC_CONFIG, ext, accept=accept)
    if answer.code == ResponseCode.SUCCESS:
        return decode_body(TopicConfig, answer.body, answer.codec)
    table = await all_topic_config(broker)
    found = table.topic_config_table.get(topic)
    if found is None:
        raise BrokerError(ResponseCode.TOPIC_NOT_EXIST, f"No topic in this broker. topic: {topic}", broker.addr)
    return found


async def system_topics(broker: Endpoint) -> TopicList:
    """The topics that the broker made for itself."""
    answer = await broker.ask(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
    return decode_body(TopicList, answer.body, answer.codec)


async def topic_stats(broker: Endpoint, topic: str) -> TopicStatsTable:
    """Smallest, largest offset and last update of each queue of the topic on the broker."""
    answer = await broker.ask(RequestCode.GET_TOPIC_STATS_INFO, {"topic": topic})
    return decode_body(TopicStatsTable, answer.body, answer.codec)


async def groups_of_topic(broker: Endpoint, topic: str) -> GroupList:
    """The groups that consume the topic, by their offsets and connections."""
    answer = await broker.ask(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": topic})
    return decode_body(GroupList, answer.body, answer.codec)


async def create_group(broker: Endpoint, config: SubscriptionGroupConfig) -> None:
    """Create the subscription group, or change it to ``config``."""
    await broker.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, config)


async def delete_group(broker: Endpoint, group: str, *, clean_offset: bool) -> None:
    """Drop the subscription group and, if asked, its offsets."""
    ext = {"groupName": group, "cleanOffset": clean_offset}
    await broker.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, ext)


async def all_groups(broker: Endpoint) -> SubscriptionGroupTable:
    """Every subscription group of the broker."""
    answer = await broker.ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    return decode_body(SubscriptionGroupTable, answer.body, answer.codec)


async def consume_stats(broker: Endpoint, group: str, topic: str | None = None) -> ConsumeStats:
    """How far the group has consumed each queue on the broker; of all its topics when none is named."""
    ext = {"consumerGroup": group} if topic is None else {"consumerGroup": group, "topic": topic}
    answer = await broker.ask(RequestCode.GET_CONSUME_STATS, ext)
    return decode_body(ConsumeStats, answer.body, answer.codec)


# --- the store


async def query_consume_queue(
    broker: Endpoint, topic: str, queue_id: int, index: int, count: int, group: str | None = None
) -> ConsumeQueueEntries:
    """Up to ``count`` entries of a queue; code 1 when there is no such queue."""
    ext = {"topic": topic, "queueId": queue_id, "index": index, "count": count}
    if group is not None:
        ext["consumerGroup"] = group
    answer = await broker.ask(RequestCode.QUERY_CONSUME_QUEUE, ext)
    return decode_body(ConsumeQueueEntries, answer.body, answer.codec)


async def delete_expired_commit_log(broker: Endpoint) -> None:
    """Delete commit log files older than fileReservedTime now."""
    await broker.ask(RequestCode.DELETE_EXPIRED_COMMITLOG)


async def clean_expired_consume_queue(broker: Endpoint) -> None:
    """Delete consume queue files whose messages are gone."""
    await broker.ask(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)


async def clean_unused_topic(broker: Endpoint) -> None:
    """Delete consume queues of topics that the broker does not have."""
    await broker.ask(RequestCode.CLEAN_UNUSED_TOPIC)


# --- the broker itself


async def runtime_info(broker: Endpoint) -> dict[str, str]:
    """Counters and state, all as text (PROTOCOL.md section 15)."""
    answer = await broker.ask(RequestCode.GET_BROKER_RUNTIME_INFO)
    return dict(decode_body(KVTable, answer.body, answer.codec).table)


async def broker_config(broker: Endpoint) -> dict[str, str]:
    """Every option of the broker as it runs."""
    answer = await broker.ask(RequestCode.GET_BROKER_CONFIG)
    return decode_config(answer.body)


async def update_broker_config(broker: Endpoint, values: Mapping[str, str]) -> None:
    """Change options while the broker runs."""
    await broker.ask(RequestCode.UPDATE_BROKER_CONFIG, None, encode_config(values))


async def ha_status(broker: Endpoint) -> HARuntimeInfo:
    """How far a master's slaves are, or how a slave's copying goes."""
    answer = await broker.ask(RequestCode.GET_BROKER_HA_STATUS)
    return decode_body(HARuntimeInfo, answer.body, answer.codec)


async def reset_master_flush_offset(broker: Endpoint, offset: int) -> None:
    """Tell a slave how far its master's disk has the log."""
    await broker.ask(RequestCode.RESET_MASTER_FLUSH_OFFSET, {"masterFlushOffset": offset})


async def broker_stats(broker: Endpoint, name: str, key: str) -> BrokerStatsData:
    """A rate (TOPIC_PUT_NUMS, GROUP_GET_NUMS, ...) over the last minute, hour and day; code 1 when not known."""
    ext = {"statsName": name, "statsKey": key}
    answer = await broker.ask(RequestCode.VIEW_BROKER_STATS_DATA, ext)
    return decode_body(BrokerStatsData, answer.body, answer.codec)


# --- who is connected


async def consumer_connection(broker: Endpoint, group: str) -> ConsumerConnection:
    """The consumers of ``group`` that are connected; code 206 when none is."""
    answer = await broker.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": group})
    return decode_body(ConsumerConnection, answer.body, answer.codec)


async def producer_connection(broker: Endpoint, group: str) -> ProducerConnection:
    """The producers of ``group`` that are connected; code 1 when none is."""
    answer = await broker.ask(RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": group})
    return decode_body(ProducerConnection, answer.body, answer.codec)


async def consumer_running_info(
    broker: Endpoint, group: str, client_id: str, *, jstack: bool = False
) -> ConsumerRunningInfo:
    """What one consumer is doing; the broker asks it."""
    ext = {"consumerGroup": group, "clientId": client_id, "jstackEnable": jstack}
    answer = await broker.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, ext)
    return decode_body(ConsumerRunningInfo, answer.body, answer.codec)


async def consume_message_directly(
    broker: Endpoint, group: str, client_id: str, topic: str, offset_msg_id: str
) -> ConsumeMessageDirectlyResult:
    """What one consumer makes of one message; the broker hands it on."""
    ext = {"consumerGroup": group, "clientId": client_id, "topic": topic, "msgId": offset_msg_id}
    answer = await broker.ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, ext)
    return decode_body(ConsumeMessageDirectlyResult, answer.body, answer.codec)
