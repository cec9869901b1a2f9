"""Requests of administrators about the offsets of groups and the clients of a broker, one function each."""

from mqcommon.errors import BrokerError
from mqcommon.message.queue import MessageQueue
from remoting.net.call import call
from remoting.protocol.codes import ResponseCode
from remoting.protocol.requests import clients, groups, offsets
from remoting.protocol.requests.clients import ProducerTableInfo
from remoting.protocol.requests.groups import (
    ConsumeStatsList,
    GetBrokerConsumeStatsRequestHeader,
    QueryConsumeTimeSpanRequestHeader,
    QueueTimeSpan,
    SubscriptionGroupConfig,
)
from remoting.protocol.requests.offsets import (
    CloneGroupOffsetRequestHeader,
    GetConsumerStatusRequestHeader,
    ResetOffsetRequestHeader,
)
from sdk.admin.broker_admin_api import all_groups
from sdk.endpoint import Endpoint


async def reset_offsets(
    broker: Endpoint,
    group: str,
    topic: str,
    timestamp_ms: int,
    *,
    force: bool = True,
    queue_id: int = -1,
    offset: int = -1,
) -> dict[MessageQueue, int]:
    """Let the group go on at a time, or one queue of it at an offset. Returns the queues' offsets.

    RocketMQ before 5.0 answers with code 206 when no consumer is connected.
    """
    header = ResetOffsetRequestHeader(group, topic, timestamp_ms, force, queue_id, offset)
    return (await call(broker, offsets.INVOKE_BROKER_TO_RESET_OFFSET, header)).body().offset_table


async def clone_offsets(broker: Endpoint, source: str, target: str, topic: str, *, offline: bool) -> None:
    """Give ``target`` the offsets of ``source`` in the topic's queues on the broker."""
    await call(broker, offsets.CLONE_GROUP_OFFSET, CloneGroupOffsetRequestHeader(source, target, topic, offline))


async def time_spans(broker: Endpoint, group: str, topic: str) -> list[QueueTimeSpan]:
    """How far the group is in time in the topic's queues on the broker."""
    header = QueryConsumeTimeSpanRequestHeader(topic, group)
    return (await call(broker, groups.QUERY_CONSUME_TIME_SPAN, header)).body().consume_time_span_set


async def broker_consume_stats(broker: Endpoint, *, is_order: bool) -> ConsumeStatsList:
    """The progress of all groups, in all topics or in ordered ones."""
    return (await call(broker, groups.GET_BROKER_CONSUME_STATS, GetBrokerConsumeStatsRequestHeader(is_order))).body()


async def consumer_status(
    broker: Endpoint, group: str, topic: str, client_id: str | None
) -> dict[str, dict[MessageQueue, int]]:
    """Client id → how far that consumer is; the broker asks the consumers."""
    header = GetConsumerStatusRequestHeader(topic, group, client_id)
    return (await call(broker, clients.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, header)).body().consumer_table or {}


async def group_config(broker: Endpoint, group: str) -> SubscriptionGroupConfig:
    """One group; BrokerError 26 when the broker has no such group.

    It is looked up in the whole table: a broker that is asked for one group (352) may create it.
    """
    found = (await all_groups(broker)).subscription_group_table.get(group)
    if found is None:
        text = f"Group {group} does not exist"
        raise BrokerError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, text, broker.addr)
    return found


async def all_producers(broker: Endpoint) -> ProducerTableInfo:
    """The connected producers, by group."""
    return (await call(broker, clients.GET_ALL_PRODUCER_INFO)).body()
