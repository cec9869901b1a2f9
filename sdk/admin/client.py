"""`Admin`: operations of administrators on a cluster, one method per operation.

Operations on one server take its address. Operations on a topic or a group find the brokers in the route, ask all
masters (or the slave with the lowest id) at once, and merge the answers: each queue is on one broker, so entries never
conflict. Statistics must be complete: they fail when one broker fails. Searches return what was found if at least one
broker answered. A method asks with the request's description (remoting/protocol/requests).
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Literal, Self

import orjson
from trio.lowlevel import enable_ki_protection

from skylark.mqcommon.addresses import format_address
from skylark.mqcommon.errors import BrokerError, InvalidArgument, RemotingError, RouteNotFound, UserError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.message.ids import parse_offset_msg_id
from skylark.mqcommon.message.message import MessageExt
from skylark.mqcommon.message.queue import MessageQueue
from skylark.mqcommon.names import AUTO_CREATE_TOPIC, retry_topic, username_fault
from skylark.remoting.net.call import call
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.requests import (
    acl as plain_acl,
)
from skylark.remoting.protocol.requests import (
    auth,
    backups,
    brokers,
    clients,
    controller,
    groups,
    offsets,
    query,
    replication,
    routes,
    scrubs,
    shrinking,
    tier,
    topics,
)
from skylark.remoting.protocol.requests.acl import (
    AccessExplanation,
    AclConfig,
    AclVersionResponseHeader,
    PlainAccessConfig,
)
from skylark.remoting.protocol.requests.auth import AclInfo, UserInfo
from skylark.remoting.protocol.requests.brokers import BrokerStatsData, HARuntimeInfo
from skylark.remoting.protocol.requests.clients import (
    Connection,
    ConsumeMessageDirectlyResult,
    ConsumerConnection,
    ConsumerRunningInfo,
    ProducerConnection,
    ProducerTableInfo,
    SubscriptionData,
)
from skylark.remoting.protocol.requests.controller import (
    BrokerReplicasInfo,
    GetMetaDataResponseHeader,
    MasterHeader,
)
from skylark.remoting.protocol.requests.groups import (
    ConsumeOffset,
    ConsumeStats,
    ConsumeStatsList,
    QueueTimeSpan,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
)
from skylark.remoting.protocol.requests.query import ConsumeQueueEntries
from skylark.remoting.protocol.requests.raft import RAFT_MEMBERS, RaftMembers, RaftMembersRequestHeader
from skylark.remoting.protocol.requests.replication import EpochEntryCache
from skylark.remoting.protocol.requests.routes import ClusterInfo, TopicRouteData
from skylark.remoting.protocol.requests.topics import (
    TopicConfig,
    TopicConfigAndMapping,
    TopicConfigTable,
    TopicQueueMappingDetail,
    TopicStatsTable,
)
from skylark.sdk import broker_api, namesrv_api
from skylark.sdk.admin.dead_letter_files import DeadLetterFile, format_of
from skylark.sdk.admin.dead_letters import (
    RATE,
    USE_TOPIC,
    DeadLetter,
    DeadLetterChoice,
    DeadLetterCounts,
    DeadLetters,
    Matches,
    OnProgress,
    Resending,
)
from skylark.sdk.admin.requests import AdminRequests, body_of, header_of
from skylark.sdk.checked import Count, GroupName, Milliseconds, NotNegative, Offset, TopicName, checked_methods
from skylark.sdk.client import Client, ClientHandle
from skylark.sdk.config_text import decode_config, encode_config
from skylark.sdk.credentials import GivenCredentials, GivenTls
from skylark.sdk.endpoint import Endpoint
from skylark.sdk.nameservers import NameServerSource
from skylark.sdk.namespaces import Namespace, takes_plain_names
from skylark.sdk.routes import master_of
from skylark.sdk.runtime import AsyncOnly

logger = logging.getLogger(__name__)

LONG_MAX = 2**63 - 1
UNIQUE_KEY_MAX_NUM = 32
# How many topics or groups one request lists: brokers limit the size of a request.
LIST_PART = 50
# This time stands for the end of each queue.
END_OF_QUEUE = -1
_NO_SUCH_TOPIC = (ResponseCode.TOPIC_NOT_EXIST, ResponseCode.SYSTEM_ERROR)
_NO_SUCH_GROUP = (ResponseCode.CONSUMER_NOT_ONLINE, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST)


@lazy_dataclass(frozen=True, slots=True)
class Rollback:
    """A queue's end, the group's former offset, the offset for the time, and the offset that the group got."""

    queue: MessageQueue
    broker_offset: int
    consumer_offset: int
    timestamp_offset: int
    rollback_offset: int


@checked_methods
@takes_plain_names
class Admin(AsyncOnly):
    """Asks NameServers and brokers; ``async with Admin("127.0.0.1:9876") as admin: ...``.

    ``nameserver`` says where the NameServers are, or is a shared `Client`; by default $NAMESRV_ADDR. Without
    NameServers, methods that take a broker's address work; the others raise UserError. ``timeout_ms`` is for each
    request. Topics and groups in arguments are names in ``namespace``, by default the `Client`'s namespace; results
    have the names that brokers know, which arguments may have, too.
    """

    def __init__(
        self,
        nameserver: NameServerSource | Client | None = None,
        *,
        timeout_ms: Milliseconds = 5000,
        namespace: Namespace = "",
        credentials: GivenCredentials = None,
        tls: GivenTls = None,
    ) -> None:
        self._client = ClientHandle(
            nameserver,
            timeout_ms=timeout_ms,
            needs_nameserver=False,
            namespace=namespace,
            credentials=credentials,
            tls=tls,
        )
        self.names = self._client.names
        self._ask = AdminRequests(self._client)

    @enable_ki_protection
    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        return self

    @enable_ki_protection
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.__aexit__(kind, error, trace)

    # --- routes and clusters

    async def topic_route(self, topic: str) -> TopicRouteData:
        """The topic's route as a NameServer gives it; RouteNotFound when none has it."""
        return await self._client.fetch_route(topic)

    async def cluster_info(self) -> ClusterInfo:
        """Clusters, their brokers, and the addresses of each broker's master and slaves."""
        return await self._ask.namesrv(namesrv_api.cluster_info)

    async def brokers_of_cluster(self, cluster: str) -> list[str]:
        """The masters' addresses, by broker name; UserError when there is no such cluster."""
        info = await self.cluster_info()
        names = info.cluster_addr_table.get(cluster)
        if names is None:
            known = ", ".join(sorted(info.cluster_addr_table)) or "none"
            raise UserError(f"there is no cluster {cluster!r}; the NameServer knows: {known}")
        tables = [info.broker_addr_table[name].broker_addrs for name in sorted(names) if name in info.broker_addr_table]
        return [addr for addr in map(master_of, tables) if addr is not None]

    async def broker_addr_of(self, broker_name: str) -> str:
        """The address of the broker's master; UserError when there is none."""
        info = await self.cluster_info()
        broker = info.broker_addr_table.get(broker_name)
        if broker is None:
            known = ", ".join(sorted(info.broker_addr_table)) or "none"
            raise UserError(f"there is no broker {broker_name!r}; the NameServer knows: {known}")
        addr = master_of(broker.broker_addrs)
        if addr is None:
            raise UserError(f"broker {broker_name!r} has no master now, only slaves")
        return addr

    # --- topics

    async def create_topic(self, addr: str, config: TopicConfig) -> None:
        """Create the topic on the broker, or change it to ``config``."""
        await self._ask.call(addr, topics.UPDATE_AND_CREATE_TOPIC, _topic_header(config))

    async def create_topics(self, addr: str, configs: Sequence[TopicConfig]) -> None:
        """Create or change several topics on the broker, which must be RocketMQ 5.3 or newer, or Skylark."""
        for first in range(0, len(configs), LIST_PART):
            part = topics.TopicConfigList(list(configs[first : first + LIST_PART]))
            await self._ask.call(addr, topics.UPDATE_AND_CREATE_TOPIC_LIST, None, part)

    async def delete_topic_in_broker(self, addr: str, topic: str) -> None:
        """Delete the topic and its messages from the broker."""
        await self._ask.call(addr, topics.DELETE_TOPIC_IN_BROKER, topics.TopicRequestHeader(topic))

    async def delete_topic_in_namesrv(self, topic: str, cluster: str | None = None) -> None:
        """Delete the topic's route from every NameServer (only in ``cluster``, if given)."""
        header = routes.DeleteTopicFromNamesrvRequestHeader(topic, cluster)
        (await self._ask.each_namesrv(lambda at: call(at, routes.DELETE_TOPIC_IN_NAMESRV, header))).all()

    async def topic_list(self, *, also_absent: bool = False) -> list[str]:
        """All topics, as the NameServer lists them.

        ``also_absent``: also the topics of brokers that are away, as far as a NameServer of Skylark knows them.
        """
        ask = body_of(routes.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, None)
        listed = await self._ask.namesrv(ask)
        return [*listed.topic_list, *(listed.absent_topics or () if also_absent else ())]

    async def topics_by_cluster(self, cluster: str) -> list[str]:
        """The topics of a cluster."""
        ask = body_of(routes.GET_TOPICS_BY_CLUSTER, routes.ClusterRequestHeader(cluster))
        return list((await self._ask.namesrv(ask)).topic_list)

    async def system_topics(self) -> list[str]:
        """The topics that NameServers and brokers created for themselves."""
        listed = await self._ask.namesrv(body_of(routes.GET_SYSTEM_TOPIC_LIST_FROM_NS, None))
        names = list(listed.topic_list)
        if listed.broker_addr:
            own = await self.system_topics_of_broker(listed.broker_addr)
            names += [topic for topic in own if topic not in names]
        return names

    async def system_topics_of_broker(self, addr: str) -> list[str]:
        """The topics that the broker created for itself."""
        return list((await self._ask.call(addr, topics.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)).body().topic_list)

    async def topic_config(self, addr: str, topic: str) -> TopicConfig:
        """One topic of the broker; BrokerError 17 when it has no such topic."""
        header = topics.GetTopicConfigRequestHeader(topic, lo=True)
        try:
            return (await self._ask.call(addr, topics.GET_TOPIC_CONFIG, header)).body().config
        except BrokerError as error:
            # Brokers before 5.0 return only the whole table.
            if not error.is_unknown_request:
                raise
        found = (await self.all_topic_config(addr)).topic_config_table.get(topic)
        if found is None:
            raise BrokerError(ResponseCode.TOPIC_NOT_EXIST, f"No topic in this broker. topic: {topic}", addr)
        return found

    async def all_topic_config(self, addr: str) -> TopicConfigTable:
        """Every topic of the broker."""
        return (await self._ask.call(addr, topics.GET_ALL_TOPIC_CONFIG.bare)).body()

    async def topic_stats(self, topic: str, cluster: str | None = None) -> TopicStatsTable:
        """Offsets and last update of each queue of the topic; ``cluster`` chooses other brokers than its route."""
        ask = body_of(topics.GET_TOPIC_STATS_INFO, topics.TopicRequestHeader(topic))
        answers = await self._ask.each_of_topic(topic, ask, cluster)
        return _merge_topic_stats(answers.all(ignore=_NO_SUCH_TOPIC))

    async def groups_of_topic(self, topic: str) -> list[str]:
        """The groups that consume the topic."""
        ask = body_of(topics.QUERY_TOPIC_CONSUME_BY_WHO, topics.TopicRequestHeader(topic))
        answers = await self._ask.each_of_topic(topic, ask)
        return sorted({group for found in answers.any() for group in found.group_list})

    async def groups_of_topic_at(self, addr: str, topic: str) -> list[str]:
        """The groups that consume the topic at one broker."""
        found = await self._ask.call(addr, topics.QUERY_TOPIC_CONSUME_BY_WHO, topics.TopicRequestHeader(topic))
        return sorted(found.body().group_list)

    # --- groups

    async def create_group(self, addr: str, config: SubscriptionGroupConfig) -> None:
        """Create the subscription group on the broker, or change it to ``config``."""
        await self._ask.call(addr, groups.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, config)

    async def create_groups(self, addr: str, configs: Sequence[SubscriptionGroupConfig]) -> None:
        """Create or change several subscription groups on the broker; see `create_topics`."""
        for first in range(0, len(configs), LIST_PART):
            part = groups.SubscriptionGroupList(list(configs[first : first + LIST_PART]))
            await self._ask.call(addr, groups.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, None, part)

    async def set_consume_mode(
        self, addr: str, topic: str, group: str, mode: Literal["PULL", "POP"], pop_share_queue_num: int = 0
    ) -> None:
        """Set how members of the group that let the broker assign queues consume the topic: by pull, or by pop."""
        body = groups.MessageRequestMode(group, topic, mode, pop_share_queue_num)
        await self._ask.call(addr, groups.SET_MESSAGE_REQUEST_MODE, None, body)

    async def delete_group(self, addr: str, group: str, clean_offset: bool = False) -> None:
        """Delete the group from the broker; with ``clean_offset`` also its offsets and retry messages."""
        header = groups.DeleteSubscriptionGroupRequestHeader(group, clean_offset)
        await self._ask.call(addr, groups.DELETE_SUBSCRIPTIONGROUP, header)

    async def all_groups(self, addr: str) -> SubscriptionGroupTable:
        """Every subscription group of the broker."""
        return (await self._ask.call(addr, groups.GET_ALL_SUBSCRIPTIONGROUP_CONFIG.bare)).body()

    async def group_config(self, addr: str, group: GroupName) -> SubscriptionGroupConfig:
        """One group of the broker; BrokerError 26 when it has no such group."""
        # A request for one group (352) may create the group; a request for the whole table creates nothing.
        found = (await self.all_groups(addr)).subscription_group_table.get(group)
        if found is None:
            raise BrokerError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {group} does not exist", addr)
        return found

    async def group_exists(self, group: str) -> bool:
        """Whether any broker knows the group."""
        ask = body_of(groups.GET_ALL_SUBSCRIPTIONGROUP_CONFIG.bare, None)
        answers = await self._ask.each(await self._ask.all_readers(), ask)
        if any(group in table.subscription_group_table for table in answers.values.values()):
            return True
        answers.all()  # raises if a broker did not answer, since that broker may know the group
        return False

    async def consume_stats(self, group: str, topic: str | None = None, cluster: str | None = None) -> ConsumeStats:
        """The group's offsets and lag in each queue of ``topic``, or of all its topics.

        ``cluster`` chooses other brokers than the topic's route.
        """
        ask = body_of(groups.GET_CONSUME_STATS, groups.GetConsumeStatsRequestHeader(group, topic))
        answers = await self._ask.each_of_group(group, topic, ask, cluster)
        # Brokers without the topic or the group have nothing to add. A broker that does not answer is an error, since
        # the sums would be too small.
        return _merge_consume_stats(answers.all(ignore=(*_NO_SUCH_TOPIC, *_NO_SUCH_GROUP)))

    async def consume_stats_at(self, addr: str, group: str, topic: str) -> ConsumeStats:
        """As `consume_stats`, for one broker; BrokerError when the broker has no such topic."""
        header = groups.GetConsumeStatsRequestHeader(group, topic)
        return (await self._ask.call(addr, groups.GET_CONSUME_STATS, header)).body()

    async def consumer_connection(self, group: str, addr: str | None = None) -> ConsumerConnection:
        """The group's consumers connected to the broker at ``addr``, or to any; BrokerError 206 if there is none."""
        ask = body_of(clients.GET_CONSUMER_CONNECTION_LIST, groups.ConsumerGroupRequestHeader(group))
        if addr is not None:
            return _merge_consumers([await ask(self._ask.at(addr))])
        return _merge_consumers((await self._ask.each_of_group(group, None, ask)).any())

    async def query_subscription(self, group: str, topic: str) -> SubscriptionData | None:
        """What the group's connected consumers read of the topic; None when none of them subscribes to it."""
        header = clients.QuerySubscriptionByConsumerRequestHeader(group, topic)
        answers = await self._ask.each_of_topic(topic, body_of(clients.QUERY_SUBSCRIPTION_BY_CONSUMER, header))
        return next((one.subscription_data for one in answers.any() if one.subscription_data is not None), None)

    async def consumer_running_info(self, group: str, client_id: str, *, jstack: bool = False) -> ConsumerRunningInfo:
        """The status of one consumer of the group, asked through the broker that the consumer is connected to."""
        header = clients.GetConsumerRunningInfoRequestHeader(group, client_id, jstack)
        ask = body_of(clients.GET_CONSUMER_RUNNING_INFO, header)
        return (await self._ask.each_of_group(group, None, ask)).any()[0]

    async def consumer_status(
        self, group: GroupName, topic: TopicName, client_id: str | None = None
    ) -> dict[str, dict[MessageQueue, int]]:
        """Client id → the consumer's offset in each of its queues; for one consumer if ``client_id`` is given.

        The brokers ask the consumers; consumers that do not answer are left out.
        """
        header = offsets.GetConsumerStatusRequestHeader(topic, group, client_id)
        ask = body_of(clients.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, header)
        merged: dict[str, dict[MessageQueue, int]] = {}
        for answer in (await self._ask.each_of_topic(topic, ask)).any():
            for name, positions in (answer.consumer_table or {}).items():
                merged.setdefault(name, {}).update(positions)
        return merged

    async def producer_connection(self, group: str, topic: str) -> ProducerConnection:
        """The group's producers connected to the brokers of ``topic``; BrokerError 1 when there is none."""
        ask = body_of(clients.GET_PRODUCER_CONNECTION_LIST, groups.ProducerGroupRequestHeader(group))
        return _merge_producers((await self._ask.each_of_topic(topic, ask)).any())

    async def all_producers(self, addr: str) -> ProducerTableInfo:
        """The producers that are connected to the broker, by group."""
        return (await self._ask.call(addr, clients.GET_ALL_PRODUCER_INFO)).body()

    # --- offsets of groups

    async def reset_offsets(
        self,
        group: GroupName,
        topic: TopicName,
        timestamp_ms: int,
        *,
        force: bool = True,
        cluster: str | None = None,
    ) -> dict[MessageQueue, int]:
        """Move the group to the first message stored at or after a time; -1 is the end of each queue.

        Connected consumers follow; the offsets are set even if no consumer is connected. Without ``force`` offsets
        are only moved back. Returns the offset of each queue. ``cluster`` chooses other brokers than the topic's route.
        """

        header = offsets.ResetOffsetRequestHeader(group, topic, timestamp_ms, force, queue_id=-1, offset=-1)

        async def reset(at: Endpoint) -> dict[MessageQueue, int]:
            try:
                return (await call(at, offsets.INVOKE_BROKER_TO_RESET_OFFSET, header)).body().offset_table
            except BrokerError as error:
                if error.code != ResponseCode.CONSUMER_NOT_ONLINE:
                    raise
            # RocketMQ before 5.0 resets only through connected consumers, and there is none: commit the offsets.
            return {
                one.queue: one.rollback_offset for one in await self._roll_back(at, group, topic, timestamp_ms, force)
            }

        answers = await self._ask.each_of_topic(topic, reset, cluster)
        return {mq: offset for table in answers.all() for mq, offset in sorted(table.items())}

    async def reset_queue(
        self,
        addr: str,
        group: GroupName,
        topic: TopicName,
        queue_id: NotNegative,
        timestamp_ms: int,
        offset: Offset | None = None,
        *,
        force: bool = True,
    ) -> dict[MessageQueue, int]:
        """As `reset_offsets`, for one queue of the broker. With ``offset`` the time is ignored.

        UserError unless the broker has useServerSideResetOffset=true: other brokers would reset the whole topic.
        """
        if (await self.broker_config(addr)).get("useServerSideResetOffset") != "true":
            raise UserError(
                f"broker {addr} cannot reset one queue: it is older than 5.0, or has useServerSideResetOffset=false"
            )
        header = offsets.ResetOffsetRequestHeader(
            group, topic, timestamp_ms, force, queue_id, -1 if offset is None else offset
        )
        return (await self._ask.call(addr, offsets.INVOKE_BROKER_TO_RESET_OFFSET, header)).body().offset_table

    async def roll_back_offsets(
        self, group: GroupName, topic: TopicName, timestamp_ms: int, *, force: bool = True
    ) -> list[Rollback]:
        """Set the group's offsets as `reset_offsets` does, but by commits: connected consumers do not follow.

        Any broker can do this; consumers of the group must not run.
        """
        answers = await self._ask.each_of_topic(
            topic, lambda at: self._roll_back(at, group, topic, timestamp_ms, force)
        )
        return sorted((one for found in answers.all() for one in found), key=lambda one: one.queue)

    async def clone_group_offsets(
        self, source: GroupName, target: GroupName, topic: TopicName, *, offline: bool = False
    ) -> None:
        """Give ``target`` the offsets of ``source`` in a topic.

        ``offline``: also when connected consumers of ``source`` no longer subscribe to the topic.
        """
        header = offsets.CloneGroupOffsetRequestHeader(source, target, topic, offline)
        (await self._ask.each_of_topic(topic, lambda at: call(at, offsets.CLONE_GROUP_OFFSET, header))).all()

    async def consume_time_spans(self, group: GroupName, topic: TopicName) -> list[QueueTimeSpan]:
        """The group's progress in time in each queue of a topic; ``delay_time``: the wait of the next message."""
        ask = body_of(groups.QUERY_CONSUME_TIME_SPAN, groups.QueryConsumeTimeSpanRequestHeader(topic, group))
        answers = await self._ask.each_of_topic(topic, ask)
        return [span for answer in answers.all() for span in answer.consume_time_span_set]

    async def broker_consume_stats(
        self, addr: str, *, only_ordered: bool = False, members: bool = False, traffic: bool = False
    ) -> ConsumeStatsList:
        """The progress of all groups of the broker, or only of groups with ordered topics.

        Skylark's brokers add the connected ``members`` of each group if asked, and with ``traffic`` the groups of each
        topic with the messages in and out; BrokerError when this is too large for one answer.
        """
        header = groups.GetBrokerConsumeStatsRequestHeader(only_ordered, members or None, traffic or None)
        return (await self._ask.call(addr, groups.GET_BROKER_CONSUME_STATS, header)).body()

    # --- messages and queues

    async def query_message_by_key(
        self,
        topic: str,
        key: str,
        max_num: Count = 64,
        begin: int = 0,
        end: int = LONG_MAX,
        cluster: str | None = None,
        on_partial: Callable[[str], None] = lambda why: None,
    ) -> list[MessageExt]:
        """Messages of ``topic`` with ``key`` among their keys, stored from ``begin`` to ``end`` (ms), oldest first.

        ``cluster`` chooses other brokers than the topic's route. ``on_partial`` is told why a broker has not searched
        all messages of the time, as when its bucket has very many.
        """
        found = await self._query(topic, key, max_num, begin, end, cluster=cluster, on_partial=on_partial)
        matching = [message for message in found if key in (message.keys or "").split(" ")]
        return matching[:max_num]

    async def query_by_unique_key(
        self,
        topic: str,
        key: str,
        *,
        begin: int = 0,
        strict: bool = False,
        on_partial: Callable[[str], None] = lambda why: None,
    ) -> list[MessageExt]:
        """Messages of ``topic`` with the unique key ``key``, oldest first; more than one when a send was retried.

        They were stored from ``begin`` (ms) on. With ``strict``, raises the error of a broker that does not answer,
        even if others do, and all of a large bucket is searched, however long it takes. ``on_partial``: see
        `query_message_by_key`.
        """
        found = await self._query(
            topic, key, UNIQUE_KEY_MAX_NUM, begin, LONG_MAX, unique=True, strict=strict, on_partial=on_partial
        )
        return [message for message in found if message.msg_id == key]

    async def view_message(self, offset_msg_id: str) -> MessageExt:
        """The message with this offset message id, which contains the broker's address; the first of an inner batch."""
        return (await self.view_messages(offset_msg_id))[0]

    async def view_messages(self, offset_msg_id: str) -> list[MessageExt]:
        """As `view_message`, but all messages of an inner batch, which share the id."""
        try:
            host, port, offset = parse_offset_msg_id(offset_msg_id)
        except ValueError as error:
            raise InvalidArgument(str(error)) from None
        return await broker_api.view_messages(self._ask.at(format_address(host, port)), offset)

    async def consume_message_directly(
        self, group: str, client_id: str, message: MessageExt
    ) -> ConsumeMessageDirectlyResult:
        """Send a message through its broker to a push consumer of the group, even if the group has consumed it."""
        topic = self.names.topic(message.topic)
        header = clients.ConsumeMessageDirectlyRequestHeader(group, client_id, message.offset_msg_id, topic)
        return (await self._ask.call(message.store_host, clients.CONSUME_MESSAGE_DIRECTLY, header, b"")).body()

    async def max_offset(self, mq: MessageQueue) -> int:
        """The offset that the queue's next message will get."""
        return (await self._client.ask_master(mq, lambda at: broker_api.max_offset(at, mq.topic, mq.queue_id))).offset

    async def min_offset(self, mq: MessageQueue) -> int:
        """The offset of the queue's oldest message."""
        return (await self._client.ask_master(mq, lambda at: broker_api.min_offset(at, mq.topic, mq.queue_id))).offset

    async def search_offset(
        self, mq: MessageQueue, timestamp_ms: int, boundary: Literal["LOWER", "UPPER"] = "LOWER"
    ) -> int:
        """The offset of the queue's first message stored at or after ``timestamp_ms``.

        With ``boundary`` UPPER: the offset of the last message stored at or before this time.
        """
        position = await self._client.ask_master(
            mq, lambda at: broker_api.search_offset(at, mq.topic, mq.queue_id, timestamp_ms, boundary=boundary)
        )
        return position.offset

    async def earliest_store_time(self, mq: MessageQueue) -> int | None:
        """The store time of the queue's oldest message (ms); None when the queue is empty."""
        return await self._client.ask_master(mq, lambda at: broker_api.earliest_store_time(at, mq.topic, mq.queue_id))

    async def query_consume_queue(
        self, addr: str, topic: str, queue_id: NotNegative, index: Offset, count: Count = 10, group: str | None = None
    ) -> ConsumeQueueEntries:
        """Consume queue entries of a broker from offset ``index`` on, and whether ``group`` subscribes to them.

        Brokers limit the number of entries. BrokerError 1 when there is no such queue.
        """
        header = query.QueryConsumeQueueRequestHeader(topic, queue_id, index, count, group)
        return (await self._ask.call(addr, query.QUERY_CONSUME_QUEUE, header)).body()

    # --- dead letters

    async def dead_letters(
        self,
        group: GroupName,
        *,
        ids: Sequence[str] | None = None,
        from_ms: int | None = None,
        to_ms: int | None = None,
        matches: Matches | None = None,
        most: Count = 1_000,
    ) -> list[DeadLetter]:
        """Messages that the group has given up, with the group's reason; of each queue the oldest first.

        ``ids`` may be unique keys and offset message ids, of the dead letter or of the message that was consumed first.
        ``from_ms`` and ``to_ms``: when the letters were stored, by the broker's clock; ``matches`` chooses among these.
        UserError when no broker knows the group.
        """
        found: list[DeadLetter] = []

        async def collect(letters: Sequence[DeadLetter]) -> None:
            found.extend(letters[: most - len(found)])

        choice = DeadLetterChoice(ids, from_ms, to_ms, matches)
        letters = DeadLetters(self._client, group, choice)
        await letters.each(collect, None)
        await self._check_known(group, letters)
        return found

    async def resend_dead_letters(
        self,
        group: GroupName,
        *,
        ids: Sequence[str] | None = None,
        from_ms: int | None = None,
        to_ms: int | None = None,
        matches: Matches | None = None,
        rate: float | None = RATE,
        to_topic: bool = False,
        again: bool = False,
        dry_run: bool = False,
        on_letter: Callable[[DeadLetter], object] | None = None,
        on_progress: OnProgress | None = None,
    ) -> DeadLetterCounts:
        """Deliver dead letters to the group again, at most ``rate`` a second; the choice is as in `dead_letters`.

        The messages keep their unique keys, and their attempts are counted anew. Letters that were sent again before
        are left out, unless ``again``: brokers remember each resent letter, even if the call is cancelled. The messages
        go to the group's retry topic, so that no other group gets them; with ``to_topic`` to the topics that
        they came from, which is the only way to groups that consume in order or pop. The dead letters themselves stay
        where they are. ``dry_run`` sends nothing. ``on_letter`` is called with each letter before it is sent,
        ``on_progress`` after each part. UserError when no broker knows the group.
        """
        choice = DeadLetterChoice(ids, from_ms, to_ms, matches)
        letters = DeadLetters(self._client, group, choice, only_new=not again)
        is_read = False
        if not to_topic and not dry_run:
            is_read = await self._is_retry_topic_read(group)
        resending = Resending(
            self._client, group, rate, on_letter, letters.remember, to_topic=to_topic, dry_run=dry_run, is_read=is_read
        )
        counts = await letters.each(resending.resend, on_progress, dry_run=dry_run)
        await self._check_known(group, letters)
        return counts

    async def export_dead_letters(
        self,
        group: GroupName,
        file: str,
        *,
        file_format: str | None = None,
        ids: Sequence[str] | None = None,
        from_ms: int | None = None,
        to_ms: int | None = None,
        matches: Matches | None = None,
        on_progress: OnProgress | None = None,
    ) -> DeadLetterCounts:
        """Write dead letters to ``file``; the choice is as in `dead_letters`.

        ``file_format``: ``jsonl``, or ``parquet`` (with the extra ``arrow``); by default the end of the file's name
        decides. The file appears when it is complete.
        """
        letters = DeadLetters(self._client, group, DeadLetterChoice(ids, from_ms, to_ms, matches))
        async with DeadLetterFile(file, format_of(file, file_format)) as written:
            counts = await letters.each(written.write, on_progress)
            await self._check_known(group, letters)
            return counts

    # --- static topics

    async def static_topic(self, addr: str, topic: str) -> TopicConfigAndMapping:
        """The topic on the broker, with the broker's part if the topic is static; BrokerError 17 if there is none."""
        header = topics.GetTopicConfigRequestHeader(topic, lo=True)
        return (await self._ask.call(addr, topics.GET_TOPIC_CONFIG, header)).body()

    async def put_static_topic(self, addr: str, config: TopicConfig, mapping: TopicQueueMappingDetail) -> None:
        """Create or change a static topic on the broker, and the broker's part in it.

        BrokerError when ``mapping`` changes a fixed value. See sdk/admin/remapping.py for the order of changes.
        """
        await self._ask.call(addr, topics.UPDATE_AND_CREATE_STATIC_TOPIC, _topic_header(config), mapping)

    async def own_max_offset(self, addr: str, topic: str, queue_id: NotNegative, *, committed: bool = True) -> int:
        """The end of a queue of the broker, which may be part of a logical one.

        Without ``committed`` the end includes messages that are not on enough replicas yet.
        """
        header = offsets.GetMaxOffsetRequestHeader(topic, queue_id, committed, lo=False)
        return (await self._ask.call(addr, offsets.GET_MAX_OFFSET, header)).header().offset

    # --- backups

    async def begin_backup(self, addr: str, name: str) -> None:
        """Have a Skylark broker back up its store to ``backup/<name>`` in its storePathRootDir; see `backup_status`.

        BrokerError when ``name`` is no name of a directory, or while another backup runs.
        """
        await self._ask.call(addr, backups.BACK_UP_STORE, backups.BackUpStoreRequestHeader(name))

    async def backup_status(self, addr: str) -> backups.BackupStatus:
        """How far the last backup is that the broker has begun since its start."""
        return (await self._ask.call(addr, backups.GET_BACKUP_STATUS)).body()

    # --- scrubs

    async def begin_scrub(self, addr: str, bytes_per_s: NotNegative = 0) -> scrubs.ScrubStatus:
        """Have a Skylark broker check its whole store now; see `scrub_status`.

        ``bytes_per_s``: how fast it reads; 0: as it likes. BrokerError while another scrub that was asked for runs.
        """
        header = scrubs.ScrubRequestHeader(bytes_per_s)
        return (await self._ask.call(addr, scrubs.SCRUB, header)).body()

    async def scrub_status(self, addr: str) -> scrubs.ScrubStatus:
        """How far the broker's scrub is, and what it has found."""
        return (await self._ask.call(addr, scrubs.SCRUB_STATUS)).body()

    # --- tiered storage

    async def tier_status(self, addr: str) -> tier.TierStatus:
        """What a Skylark broker has in its bucket, and whether it can use the bucket."""
        return (await self._ask.call(addr, tier.TIER_STATUS)).body()

    async def begin_tier_purge(self, addr: str) -> tier.TierStatus:
        """Have a Skylark master remove the bytes of deleted topics from its bucket; see `tier_status`."""
        return (await self._ask.call(addr, tier.TIER_PURGE)).body()

    async def take_tier_over(self, addr: str) -> tier.TierStatus:
        """Have a Skylark master own its set in the bucket, whatever term the last owner had; see `tier_status`."""
        return (await self._ask.call(addr, tier.TIER_TAKE_OVER)).body()

    # --- draining brokers, removing queues

    async def drain_broker(self, addr: str, *, drain: bool = True, settle_ms: NotNegative = 35_000) -> None:
        """Have a Skylark broker take no more sends; with ``drain`` false, take sends again.

        For ``settle_ms`` the broker still takes sends of clients with old routes.
        """
        await self._ask.call(addr, shrinking.DRAIN_BROKER, shrinking.DrainBrokerRequestHeader(drain, settle_ms))

    async def drain_status(self, addr: str, forgotten: Sequence[str] = ()) -> shrinking.DrainStatus:
        """What the broker must still deliver, and groups must still read; ``forgotten``: groups to leave out."""
        header = shrinking.GetDrainStatusRequestHeader(",".join(forgotten) or None)
        return (await self._ask.call(addr, shrinking.GET_DRAIN_STATUS, header)).body()

    async def seal_queues(self, addr: str, topic: str, first_queue: NotNegative) -> list[shrinking.SealedQueue]:
        """Hide the messages of these queues that no group has reached yet; see mqadmin/moving.py.

        Returns the topic's sealed queues from number ``first_queue`` on.
        """
        header = shrinking.SealQueuesRequestHeader(topic, first_queue)
        return (await self._ask.call(addr, shrinking.SEAL_QUEUES, header)).body().queues

    async def read_sealed(self, addr: str, topic: str, queue_id: NotNegative, offset: Offset) -> tuple[bytes, int]:
        """Records of a sealed queue from ``offset`` on, one after another, and the offset after the last record."""
        answer = await self._ask.call(
            addr, shrinking.READ_SEALED, shrinking.ReadSealedRequestHeader(topic, queue_id, offset)
        )
        return answer.body(), answer.header().next_offset

    async def store_moved(self, addr: str, topic: str, queue_id: NotNegative, records: bytes) -> None:
        """Store records of another queue in this one, with their keys, properties and times."""
        await self._ask.call(addr, shrinking.STORE_MOVED, shrinking.StoreMovedRequestHeader(topic, queue_id), records)

    async def note_moved(self, addr: str, topic: str, queue_id: NotNegative, moved_to: Offset) -> None:
        """Record that the messages of a sealed queue before ``moved_to`` are stored elsewhere."""
        await self._ask.call(addr, shrinking.NOTE_MOVED, shrinking.NoteMovedRequestHeader(topic, queue_id, moved_to))

    async def closed_queues(
        self, addr: str, topic: str, first_queue: NotNegative, forgotten: Sequence[str] = ()
    ) -> shrinking.ClosedQueues:
        """The messages left in the topic's closed queues, from number ``first_queue`` on."""
        header = shrinking.GetClosedQueuesRequestHeader(topic, first_queue, ",".join(forgotten) or None)
        return (await self._ask.call(addr, shrinking.GET_CLOSED_QUEUES, header)).body()

    # --- brokers

    async def switch_timer_engine(self, addr: str, engine: str) -> None:
        """Let a broker of RocketMQ 5.4 keep messages with a time of delivery in files ("F") or in RocksDB ("R").

        Skylark's brokers have files only. BrokerError 29 when the broker does not have the engine.
        """
        await self._ask.call(addr, brokers.SWITCH_TIMER_ENGINE, brokers.SwitchTimerEngineRequestHeader(engine))

    async def delete_expired_commit_log(self, addr: str) -> None:
        """Delete the broker's commit log files that are older than its fileReservedTime, at any hour."""
        await self._ask.call(addr, brokers.DELETE_EXPIRED_COMMITLOG)

    async def clean_expired_consume_queue(self, addr: str) -> None:
        """Delete the broker's consume queue files whose messages have been deleted."""
        await self._ask.call(addr, brokers.CLEAN_EXPIRED_CONSUMEQUEUE)

    async def clean_unused_topic(self, addr: str) -> None:
        """Delete the broker's consume queues of topics that it no longer has."""
        await self._ask.call(addr, brokers.CLEAN_UNUSED_TOPIC)

    async def broker_runtime_info(self, addr: str) -> dict[str, str]:
        """Counters and state of the broker, all as text."""
        return (await self._ask.call(addr, brokers.GET_BROKER_RUNTIME_INFO)).body().table

    async def broker_config(self, addr: str) -> dict[str, str]:
        """The current values of all options of the broker."""
        return decode_config((await self._ask.call(addr, brokers.GET_BROKER_CONFIG)).body())

    async def update_broker_config(self, addr: str, values: Mapping[str, str]) -> None:
        """Change options of the broker while it runs."""
        await self._ask.call(addr, brokers.UPDATE_BROKER_CONFIG, None, encode_config(values))

    async def broker_ha_status(self, addr: str) -> HARuntimeInfo:
        """The replication state: for a master, the progress of its slaves; for a slave, its own progress."""
        return (await self._ask.call(addr, brokers.GET_BROKER_HA_STATUS)).body()

    async def broker_epochs(self, addr: str) -> EpochEntryCache:
        """Which master of its set wrote which part of a broker's log; BrokerError 3 when it has no Controllers."""
        return (await self._ask.call(addr, replication.GET_BROKER_EPOCH_CACHE)).body()

    async def reset_master_flush_offset(self, addr: str, offset: int) -> None:
        """Set the offset up to which a slave takes its master's log as flushed."""
        header = brokers.ResetMasterFlushOffsetHeader(offset)
        await self._ask.call(addr, brokers.RESET_MASTER_FLUSH_OFFSET, header)

    async def broker_stats(self, addr: str, name: str, key: str) -> BrokerStatsData:
        """A rate of the broker (TOPIC_PUT_NUMS of a topic, ...); BrokerError 1 when it is unknown."""
        header = brokers.ViewBrokerStatsDataRequestHeader(name, key)
        return (await self._ask.call(addr, brokers.VIEW_BROKER_STATS_DATA, header)).body()

    async def wipe_write_perm(self, broker_name: str) -> dict[str, int]:
        """Take the write permission from the broker's topics; returns NameServer address → topics changed."""
        ask = header_of(routes.WIPE_WRITE_PERM_OF_BROKER, routes.BrokerNameRequestHeader(broker_name))
        answers = await self._ask.each_namesrv(ask)
        answers.all()
        return {addr: header.wipe_topic_count for addr, header in answers.values.items()}

    async def add_write_perm(self, broker_name: str) -> dict[str, int]:
        """Give the write permission back to the broker's topics; returns NameServer address → topics changed."""
        ask = header_of(routes.ADD_WRITE_PERM_OF_BROKER, routes.BrokerNameRequestHeader(broker_name))
        # Not `each_namesrv`: old NameServers do not know this request.
        answers = await self._ask.each(await self._ask.namesrvs(), ask)
        answers.all()
        return {addr: header.add_topic_count for addr, header in answers.values.items()}

    async def forget_broker(self, broker_name: str) -> None:
        """Tell all NameServers that a broker which is away is gone for good: answers count as complete without it.

        BrokerError when the broker is registered or unknown; the other NameServers are told even so.
        """
        header = routes.BrokerNameRequestHeader(broker_name)
        addrs = await self._ask.namesrvs()
        (await self._ask.each(addrs, lambda at: call(at, routes.FORGET_BROKER, header))).all()

    # --- Controllers; ``addrs``: Controllers of one group; the method finds their leader

    async def controller_metadata(self, addr: str) -> GetMetaDataResponseHeader:
        """The leader of the Controller's group, and the addresses of the members."""
        return (await self._ask.call(addr, controller.CONTROLLER_GET_METADATA_INFO)).header()

    async def controller_config(self, addr: str) -> dict[str, str]:
        """The options of the Controller."""
        return decode_config((await self._ask.call(addr, controller.GET_CONTROLLER_CONFIG)).body())

    async def update_controller_config(self, addr: str, values: Mapping[str, str]) -> None:
        """Change options of the Controller."""
        await self._ask.call(addr, controller.UPDATE_CONTROLLER_CONFIG, None, encode_config(values))

    async def sync_state_sets(self, addrs: Sequence[str], names: Sequence[str]) -> BrokerReplicasInfo:
        """Masters and SyncStateSets of broker sets; unknown names are left out."""
        leader, body = await self._leader(addrs), orjson.dumps(list(names))
        return (await self._ask.call(leader, controller.CONTROLLER_GET_SYNC_STATE_DATA, None, body)).body()

    async def elect_master(
        self, addrs: Sequence[str], broker_name: str, broker_id: int, cluster: str | None = None
    ) -> MasterHeader:
        """Make a replica the master of its set. BrokerError 2012 if it is not alive or not in the SyncStateSet."""
        header = controller.ElectMasterRequestHeader(broker_name, cluster, broker_id, designate_elect=True)
        return (await self._ask.call(await self._leader(addrs), controller.CONTROLLER_ELECT_MASTER, header)).header()

    async def clean_broker_metadata(
        self,
        addrs: Sequence[str],
        broker_name: str,
        broker_ids: Sequence[int] = (),
        cluster: str | None = None,
        *,
        even_living: bool = False,
    ) -> None:
        """Forget replicas that will not return; all replicas of the set when no ids are given."""
        to_clean = ";".join(map(str, broker_ids)) or None
        header = controller.CleanBrokerDataRequestHeader(broker_name, cluster, to_clean, even_living)
        await self._ask.call(await self._leader(addrs), controller.CLEAN_BROKER_DATA, header)

    async def controller_members(
        self, addrs: Sequence[str], action: str = "list", *, node: str | None = None, addr: str | None = None
    ) -> RaftMembers:
        """The members of the group. ``action``: list, add (``addr``), remove or transfer (``node``)."""
        header = RaftMembersRequestHeader(action, node, addr)
        return (await self._ask.call(await self._leader(addrs), RAFT_MEMBERS, header)).body()

    async def dledger_members(
        self, addr: str, action: str = "list", *, node: str | None = None, member: str | None = None
    ) -> RaftMembers:
        """The members of the DLedger group whose leader is at ``addr``.

        ``action``: list, add (``member``, its address in the group), remove or transfer (``node``).
        """
        header = RaftMembersRequestHeader(action, node, member)
        return (await self._ask.call(addr, RAFT_MEMBERS, header)).body()

    # --- NameServers

    async def namesrv_config(self, addrs: Sequence[str] | None = None) -> dict[str, dict[str, str]]:
        """NameServer address → its options; of all NameServers when ``addrs`` is None."""
        answers = await self._ask.each_namesrv(body_of(routes.GET_NAMESRV_CONFIG, None), addrs)
        answers.all()
        return {addr: decode_config(text) for addr, text in answers.values.items()}

    async def update_namesrv_config(self, values: Mapping[str, str], addrs: Sequence[str] | None = None) -> None:
        """Change options of the NameServers at ``addrs``, or of all."""
        body = encode_config(values)
        (await self._ask.each_namesrv(lambda at: call(at, routes.UPDATE_NAMESRV_CONFIG, None, body), addrs)).all()

    async def put_kv(self, namespace: str, key: str, value: str) -> None:
        """Set a value in every NameServer's key-value store."""
        header = routes.PutKVConfigRequestHeader(namespace, key, value)
        (await self._ask.each_namesrv(lambda at: call(at, routes.PUT_KV_CONFIG, header))).all()

    async def delete_kv(self, namespace: str, key: str) -> None:
        """Remove a value from every NameServer's key-value store."""
        header = routes.KVConfigRequestHeader(namespace, key)
        (await self._ask.each_namesrv(lambda at: call(at, routes.DELETE_KV_CONFIG, header))).all()

    async def get_kv(self, namespace: str, key: str) -> str | None:
        """A value of the key-value store; None when there is none."""

        async def get(at: Endpoint) -> str | None:
            answer = await call(at, routes.GET_KV_CONFIG, routes.KVConfigRequestHeader(namespace, key))
            return None if answer.code == ResponseCode.QUERY_NOT_FOUND else answer.header().value or ""

        return await self._ask.namesrv(get)

    async def kv_list(self, namespace: str) -> dict[str, str]:
        """All values of a namespace."""

        async def get(at: Endpoint) -> dict[str, str]:
            answer = await call(at, routes.GET_KVLIST_BY_NAMESPACE, routes.NamespaceRequestHeader(namespace))
            return {} if answer.code == ResponseCode.QUERY_NOT_FOUND else answer.body().table

        return await self._ask.namesrv(get)

    # --- users of a broker set; slaves copy the master's users

    async def create_user(self, addr: str, user: UserInfo) -> None:
        """Create a user of the broker; BrokerError 16 when the name exists.

        By default the user is Normal, and enabled. Only a Super user may create another Super user.
        """
        await self._ask.call(addr, auth.AUTH_CREATE_USER, _about_user(user.username), user)

    async def update_user(self, addr: str, user: UserInfo) -> None:
        """Change a user of the broker; a value of None is kept."""
        await self._ask.call(addr, auth.AUTH_UPDATE_USER, _about_user(user.username), user)

    async def delete_user(self, addr: str, username: str) -> None:
        """Delete a user of the broker and the user's policies."""
        await self._ask.call(addr, auth.AUTH_DELETE_USER, _about_user(username))

    async def get_user(self, addr: str, username: str) -> UserInfo | None:
        """A user of the broker; None when there is none. Brokers show passwords only to a Super user, or never."""
        answer = await self._ask.call(addr, auth.AUTH_GET_USER, _about_user(username))
        return answer.body() if answer.command.body else None

    async def list_users(self, addr: str, part: str | None = None) -> list[UserInfo]:
        """The users of the broker whose name contains ``part``, or all."""
        answer = await self._ask.call(addr, auth.AUTH_LIST_USER, auth.ListUsersRequestHeader(part))
        return answer.body().users if answer.command.body else []

    async def create_acl(self, addr: str, acl: AclInfo) -> None:
        """Add policies of a user, whom ``acl`` names as ``User:name``."""
        await self._ask.call(addr, auth.AUTH_CREATE_ACL, auth.AclRequestHeader(acl.subject), acl)

    async def update_acl(self, addr: str, acl: AclInfo) -> None:
        """Add policies of a user; they replace the user's policies about the same resources."""
        await self._ask.call(addr, auth.AUTH_UPDATE_ACL, auth.AclRequestHeader(acl.subject), acl)

    async def delete_acl(
        self, addr: str, subject: str, resource: str | None = None, policy_type: str | None = None
    ) -> None:
        """Delete the policies of a user, or only policies about a resource (type Custom, or ``policy_type``)."""
        header = auth.DeleteAclRequestHeader(subject, policy_type, resource)
        await self._ask.call(addr, auth.AUTH_DELETE_ACL, header)

    async def get_acl(self, addr: str, subject: str) -> AclInfo | None:
        """The policies of a user; None when there are none."""
        answer = await self._ask.call(addr, auth.AUTH_GET_ACL, auth.AclRequestHeader(subject))
        return answer.body() if answer.command.body else None

    async def list_acls(
        self, addr: str, subject_part: str | None = None, resource_part: str | None = None
    ) -> list[AclInfo]:
        """The policies of users with ``subject_part`` in the name, about resources with ``resource_part`` in theirs."""
        header = auth.ListAclsRequestHeader(subject_part, resource_part)
        answer = await self._ask.call(addr, auth.AUTH_LIST_ACL, header)
        return answer.body().acls if answer.command.body else []

    # --- accounts in files: each broker has its own files, slaves as well

    async def update_account(self, addr: str, account: PlainAccessConfig) -> None:
        """Create an account in the broker's plain_acl.yml, or change it in its file; a value of None is kept."""
        header = plain_acl.UpdateAclConfigRequestHeader(
            account.access_key,
            account.secret_key,
            account.white_remote_address,
            account.admin,
            account.default_topic_perm,
            account.default_group_perm,
            None if account.topic_perms is None else ",".join(account.topic_perms),
            None if account.group_perms is None else ",".join(account.group_perms),
        )
        await self._ask.call(addr, plain_acl.UPDATE_AND_CREATE_ACL_CONFIG, header)

    async def delete_account(self, addr: str, access_key: str) -> None:
        """Delete an account from its file; BrokerError 210 when there is none."""
        await self._ask.call(addr, plain_acl.DELETE_ACL_CONFIG, plain_acl.DeleteAclConfigRequestHeader(access_key))

    async def update_white_list(self, addr: str, addresses: Sequence[str], file: str | None = None) -> None:
        """Replace globalWhiteRemoteAddresses of a file, by default of the broker's plain_acl.yml."""
        header = plain_acl.UpdateGlobalWhiteAddrsRequestHeader(",".join(addresses), file)
        await self._ask.call(addr, plain_acl.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, header)

    async def account_versions(self, addr: str) -> AclVersionResponseHeader:
        """The broker's names, and the version of each file as JSON."""
        return (await self._ask.call(addr, plain_acl.GET_BROKER_CLUSTER_ACL_INFO, None)).header()

    async def accounts(self, addr: str) -> AclConfig:
        """All accounts of the broker, and the global white list. Skylark's brokers do not show secrets."""
        return (await self._ask.call(addr, plain_acl.GET_BROKER_CLUSTER_ACL_CONFIG, None)).body()

    async def explain_access(
        self, addr: str, access_key: str, address: str, code: int, *, topic: str = "", group: str = ""
    ) -> AccessExplanation:
        """Whether and why the broker would serve a request ``code`` about the topic or group, and which rule decides.

        The account (or user) ``access_key`` is assumed to send the request, correctly signed, from a client at
        ``address``. For Skylark's brokers only, with accounts or users.
        """
        header = plain_acl.ExplainAccessRequestHeader(access_key, address, code, topic, group)
        return (await self._ask.call(addr, plain_acl.EXPLAIN_ACCESS, header)).body()

    # --- internals

    async def _check_known(self, group: str, letters: DeadLetters) -> None:
        """UserError when nothing was read because no broker knows the group."""
        if letters.has_topic:
            return
        try:
            # Brokers make the retry topic when a member joins. Anybody may ask for its route, but not for all groups.
            await self.topic_route(retry_topic(group))
        except RouteNotFound:
            if not await self.group_exists(group):
                raise UserError(f"no broker knows group {group}") from None

    async def _is_retry_topic_read(self, group: str) -> bool:
        """Whether the group has connected members, which then read its retry topic, as far as they tell.

        UserError when no member reads it (as where all pop), or when a member consumes in order: brokers then make a
        dead letter at once of what is sent there.
        """
        try:
            found = await self.consumer_connection(group)
        except BrokerError as error:
            if error.code not in _NO_SUCH_GROUP:
                raise
            return False
        if retry_topic(group) not in found.subscription_table:
            raise UserError(
                f"the members of group {group} do not read its retry topic, which is usual where they pop, as a "
                f"SimpleConsumer or a worker of Celery. {USE_TOPIC}"
            )
        for member in found.connection_set:
            try:
                info = await self.consumer_running_info(group, member.client_id)
            except (BrokerError, RemotingError) as error:
                # A member that does not tell, as some C++ clients, does not prevent sending.
                logger.warning("whether %s consumes in order is not known: %s", member.client_id, error)
                continue
            if info.properties.get("PROP_CONSUMEORDERLY") == "true":
                raise UserError(
                    f"member {member.client_id} of group {group} consumes in order, and brokers make a dead letter at "
                    f"once of what is sent to the retry topic of such a group. {USE_TOPIC}"
                )
        return True

    async def _query(
        self,
        topic: str,
        key: str,
        max_num: int,
        begin: int,
        end: int,
        *,
        unique: bool = False,
        strict: bool = False,
        cluster: str | None = None,
        on_partial: Callable[[str], None],
    ) -> list[MessageExt]:
        names = await self._ask.readers_of(topic, cluster)

        async def ask(at: Endpoint) -> list[MessageExt]:
            return await broker_api.query_messages(
                at,
                topic,
                key,
                max_num=max_num,
                begin_ms=begin,
                end_ms=end,
                unique=unique,
                goes_on=strict,
                broker_name=names[at.addr],
                on_partial=lambda why: on_partial(f"{names[at.addr]}: {why}"),
            )

        answers = await self._ask.each(names, ask)
        # A broker that is down may hide messages. This is an error only for callers who must know that there are no
        # other messages; people want to see what was found.
        listed = answers.all() if strict else answers.any()
        found = [message for messages in listed for message in messages if message.topic == topic]
        return sorted(found, key=lambda message: message.store_timestamp)

    async def _roll_back(self, at: Endpoint, group: str, topic: str, timestamp_ms: int, force: bool) -> list[Rollback]:
        """Commit the offset for the time in each queue of the broker. Consumers that run would overwrite it."""
        header = groups.GetConsumeStatsRequestHeader(group, topic)
        stats = (await call(at, groups.GET_CONSUME_STATS, header)).body()
        rows = []
        # Each queue is committed by itself. After a failure the earlier queues have moved; a repeated call moves them
        # to the same offsets.
        for mq, progress in sorted(stats.offset_table.items()):
            by_time = progress.broker_offset
            if timestamp_ms != END_OF_QUEUE:
                by_time = (await broker_api.search_offset(at, topic, mq.queue_id, timestamp_ms)).offset
            row = rollback_of(mq, progress, by_time, force=force)
            await broker_api.commit_offset(at, group, topic, mq.queue_id, row.rollback_offset)
            rows.append(row)
        return rows

    async def _leader(self, addrs: Sequence[str]) -> str:
        """The address of the leader, asked from ``addrs`` in turn; UserError when no Controller knows it."""
        reasons = []
        for addr in addrs:
            # Any member of the group may know the leader: use the first answer, which may be outdated just after an
            # election. Then the former leader refuses the request, and nothing is changed.
            try:
                leader = (await self.controller_metadata(addr)).controller_leader_address
            except (RemotingError, BrokerError) as error:
                reasons.append(str(error))
                continue
            if leader:
                return leader
            reasons.append(f"{addr} knows of no leader")
        raise UserError(f"no leader of the Controllers was found: {'; '.join(reasons) or 'no address is given'}")


def _topic_header(config: TopicConfig) -> topics.CreateTopicRequestHeader:
    """The fields that create ``config``, or change a topic to it.

    Attributes are sent as changes, ``+name=value``; a name that begins with ``-`` takes the attribute away.
    """
    changes = [
        name if name.startswith("-") else f"{name}={value}" if name.startswith("+") else f"+{name}={value}"
        for name, value in config.attributes.items()
    ]
    return topics.CreateTopicRequestHeader(
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


def rollback_of(mq: MessageQueue, progress: ConsumeOffset, by_time: int, *, force: bool) -> Rollback:
    """The change of a queue when the group moves to ``by_time``. Without ``force`` the group only moves back."""
    by_time = max(by_time, 0)
    moves = force or by_time <= progress.consumer_offset
    return Rollback(
        mq, progress.broker_offset, progress.consumer_offset, by_time, by_time if moves else progress.consumer_offset
    )


def _merge_topic_stats(parts: Sequence[TopicStatsTable]) -> TopicStatsTable:
    """The queues of all brokers; rates add up."""
    merged = TopicStatsTable()
    for part in parts:
        merged.offset_table.update(part.offset_table)
        merged.topic_put_tps += part.topic_put_tps
    return merged


def _merge_consume_stats(parts: Sequence[ConsumeStats]) -> ConsumeStats:
    """The queues of all brokers; rates add up."""
    merged = ConsumeStats()
    for part in parts:
        merged.offset_table.update(part.offset_table)
        merged.consume_tps += part.consume_tps
    return merged


def _merge_consumers(parts: Sequence[ConsumerConnection]) -> ConsumerConnection:
    """All members, each once. Subscriptions and settings are the same for a whole group: the first answer is used."""
    merged = parts[0]
    merged.connection_set = _each_once(parts)
    for part in parts:
        for topic, subscription in part.subscription_table.items():
            merged.subscription_table.setdefault(topic, subscription)
    return merged


def _merge_producers(parts: Sequence[ProducerConnection]) -> ProducerConnection:
    """All producers, each once."""
    return ProducerConnection(connection_set=_each_once(parts))


def _each_once(parts: Sequence[ConsumerConnection] | Sequence[ProducerConnection]) -> list[Connection]:
    members = {member.client_id: member for part in parts for member in part.connection_set}
    return [members[client_id] for client_id in sorted(members)]


def _about_user(username: str) -> auth.UserRequestHeader:
    """The header for a user's name. InvalidArgument for an invalid name, before anything is signed."""
    if (fault := username_fault(username.strip())) is not None:
        raise InvalidArgument(fault)
    return auth.UserRequestHeader(username)
