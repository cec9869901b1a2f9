"""`Admin`: operations of administrators on a cluster, one method per operation.

Operations on one server take its address. Operations on a topic or a group find the brokers in the route, ask all
masters (or the slave with the lowest id) at once, and merge the answers. Statistics must be complete: they fail when
one broker fails. Searches return what was found if at least one broker answered.
"""

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Literal, Self

from mqcommon.addresses import format_address
from mqcommon.errors import InvalidArgument, UserError
from mqcommon.message.ids import parse_offset_msg_id
from mqcommon.message.message import MessageExt
from mqcommon.message.queue import MessageQueue
from remoting.protocol.codes import ResponseCode
from remoting.protocol.requests.brokers import BrokerStatsData, HARuntimeInfo
from remoting.protocol.requests.clients import (
    ConsumeMessageDirectlyResult,
    ConsumerConnection,
    ConsumerRunningInfo,
    ProducerConnection,
)
from remoting.protocol.requests.groups import (
    ConsumeStats,
    MessageRequestMode,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
)
from remoting.protocol.requests.query import ConsumeQueueEntries
from remoting.protocol.requests.routes import ClusterInfo, TopicRouteData
from remoting.protocol.requests.topics import TopicConfig, TopicConfigTable, TopicStatsTable
from sdk import broker_api, namesrv_api
from sdk.admin import broker_admin_api as api
from sdk.admin.account_client import AccountAdmin
from sdk.admin.asking import Asking
from sdk.admin.controller_client import ControllerAdmin
from sdk.admin.given_names import takes_plain_names
from sdk.admin.merge import merge_consume_stats, merge_consumers, merge_producers, merge_topic_stats
from sdk.admin.namesrv_client import NamesrvAdmin
from sdk.admin.offset_client import OffsetAdmin
from sdk.admin.user_client import UserAdmin
from sdk.checked import Count, Milliseconds, NotNegative, Offset, checked_methods
from sdk.credentials import GivenCredentials, GivenTls
from sdk.fanout import ask_all
from sdk.nameserver_source import NameServerSource
from sdk.namespaces import Namespace
from sdk.routes import master_of
from sdk.shared import Client, ClientHandle

LONG_MAX = 2**63 - 1
UNIQUE_KEY_MAX_NUM = 32
_NO_SUCH_TOPIC = (ResponseCode.TOPIC_NOT_EXIST, ResponseCode.SYSTEM_ERROR)
_NO_SUCH_GROUP = (ResponseCode.CONSUMER_NOT_ONLINE, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST)


@checked_methods
@takes_plain_names
class Admin(OffsetAdmin, NamesrvAdmin, UserAdmin, AccountAdmin, ControllerAdmin):
    """Asks NameServers and brokers; ``async with Admin("127.0.0.1:9876") as admin: ...``.

    ``nameserver`` says where the NameServers are, or is a shared `Client`; by default $NAMESRV_ADDR. Without
    NameServers, methods that take a broker's address work; the others raise UserError. ``timeout_ms`` is for each
    request. Topics and groups that are given are names in ``namespace``, by default that of the `Client`; results have
    the names that brokers know, which may be given, too.
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
        self._ask = Asking(self._client)

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        return self

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
        await api.create_topic(self._ask.at(addr), config)

    async def create_topics(self, addr: str, configs: Sequence[TopicConfig]) -> None:
        """Create or change several topics on the broker, which must be RocketMQ 5.3 or newer, or Skylark."""
        await api.create_topics(self._ask.at(addr), configs)

    async def delete_topic_in_broker(self, addr: str, topic: str) -> None:
        """Delete the topic and its messages from the broker."""
        await api.delete_topic(self._ask.at(addr), topic)

    async def delete_topic_in_namesrv(self, topic: str, cluster: str | None = None) -> None:
        """Delete the topic's route from every NameServer (only in ``cluster``, if given)."""
        answers = await self._ask.each_namesrv(lambda at: namesrv_api.delete_topic(at, topic, cluster))
        answers.all()

    async def topic_list(self) -> list[str]:
        """All topics, as the NameServer lists them."""
        return list((await self._ask.namesrv(namesrv_api.topic_list)).topic_list)

    async def topics_by_cluster(self, cluster: str) -> list[str]:
        """The topics of a cluster."""
        return list((await self._ask.namesrv(lambda at: namesrv_api.topics_by_cluster(at, cluster))).topic_list)

    async def system_topics(self) -> list[str]:
        """The topics that NameServers and brokers created for themselves."""
        listed = await self._ask.namesrv(namesrv_api.system_topics)
        topics = list(listed.topic_list)
        if listed.broker_addr:
            own = await self.system_topics_of_broker(listed.broker_addr)
            topics += [topic for topic in own if topic not in topics]
        return topics

    async def system_topics_of_broker(self, addr: str) -> list[str]:
        """The topics that the broker created for itself."""
        return list((await api.system_topics(self._ask.at(addr))).topic_list)

    async def topic_config(self, addr: str, topic: str) -> TopicConfig:
        """One topic of the broker; BrokerError 17 when it has no such topic."""
        return await api.topic_config(self._ask.at(addr), topic)

    async def all_topic_config(self, addr: str) -> TopicConfigTable:
        """Every topic of the broker."""
        return await api.all_topic_config(self._ask.at(addr))

    async def topic_stats(self, topic: str, cluster: str | None = None) -> TopicStatsTable:
        """Offsets and last update of each queue of the topic; ``cluster`` chooses other brokers than its route."""
        answers = await self._ask.each_of_topic(topic, lambda at: api.topic_stats(at, topic), cluster)
        return merge_topic_stats(answers.all(ignore=_NO_SUCH_TOPIC))

    async def groups_of_topic(self, topic: str) -> list[str]:
        """The groups that consume the topic."""
        answers = await self._ask.each_of_topic(topic, lambda at: api.groups_of_topic(at, topic))
        return sorted({group for groups in answers.any() for group in groups.group_list})

    # --- groups

    async def create_group(self, addr: str, config: SubscriptionGroupConfig) -> None:
        """Create the subscription group on the broker, or change it to ``config``."""
        await api.create_group(self._ask.at(addr), config)

    async def create_groups(self, addr: str, configs: Sequence[SubscriptionGroupConfig]) -> None:
        """Create or change several subscription groups on the broker; see `create_topics`."""
        await api.create_groups(self._ask.at(addr), configs)

    async def set_consume_mode(
        self, addr: str, topic: str, group: str, mode: Literal["PULL", "POP"], pop_share_queue_num: int = 0
    ) -> None:
        """Set how members of the group that let the broker assign queues consume the topic: by pull, or by pop."""
        await api.set_consume_mode(self._ask.at(addr), MessageRequestMode(group, topic, mode, pop_share_queue_num))

    async def delete_group(self, addr: str, group: str, clean_offset: bool = False) -> None:
        """Delete the subscription group from the broker, and its offsets if ``clean_offset``."""
        await api.delete_group(self._ask.at(addr), group, clean_offset=clean_offset)

    async def all_groups(self, addr: str) -> SubscriptionGroupTable:
        """Every subscription group of the broker."""
        return await api.all_groups(self._ask.at(addr))

    async def group_exists(self, group: str) -> bool:
        """Whether any broker knows the group."""
        answers = await self._ask.each(await self._ask.all_readers(), api.all_groups)
        if any(group in table.subscription_group_table for table in answers.values.values()):
            return True
        answers.all()  # raises if a broker did not answer, since that one may know the group
        return False

    async def consume_stats(self, group: str, topic: str | None = None, cluster: str | None = None) -> ConsumeStats:
        """The group's offsets and lag in each queue of ``topic``, or of all its topics.

        ``cluster`` chooses other brokers than the topic's route.
        """
        answers = await self._ask.each_of_group(group, topic, lambda at: api.consume_stats(at, group, topic), cluster)
        return merge_consume_stats(answers.all(ignore=(*_NO_SUCH_TOPIC, *_NO_SUCH_GROUP)))

    async def consumer_connection(self, group: str, addr: str | None = None) -> ConsumerConnection:
        """The group's consumers connected to the broker at ``addr``, or to any broker; BrokerError 206 when none is."""
        if addr is not None:
            return merge_consumers([await api.consumer_connection(self._ask.at(addr), group)])
        answers = await self._ask.each_of_group(group, None, lambda at: api.consumer_connection(at, group))
        return merge_consumers(answers.any())

    async def consumer_running_info(self, group: str, client_id: str, *, jstack: bool = False) -> ConsumerRunningInfo:
        """The status of one consumer of the group; the broker that it is connected to asks it."""
        answers = await self._ask.each_of_group(
            group, None, lambda at: api.consumer_running_info(at, group, client_id, jstack=jstack)
        )
        return answers.any()[0]

    async def producer_connection(self, group: str, topic: str) -> ProducerConnection:
        """The group's producers connected to the brokers of ``topic``; BrokerError 1 when there is none."""
        answers = await self._ask.each_of_topic(topic, lambda at: api.producer_connection(at, group))
        return merge_producers(answers.any())

    # --- messages and offsets

    async def query_message_by_key(
        self,
        topic: str,
        key: str,
        max_num: Count = 64,
        begin: int = 0,
        end: int = LONG_MAX,
        cluster: str | None = None,
    ) -> list[MessageExt]:
        """Messages of ``topic`` with ``key`` among their keys, stored from ``begin`` to ``end`` (ms), oldest first.

        ``cluster`` chooses other brokers than the topic's route.
        """
        found = await self._query(topic, key, max_num, begin, end, cluster=cluster)
        matching = [message for message in found if key in (message.keys or "").split(" ")]
        return matching[:max_num]

    async def query_by_unique_key(self, topic: str, key: str, *, strict: bool = False) -> list[MessageExt]:
        """Messages of ``topic`` with the unique key ``key``, oldest first; more than one when a send was retried.

        With ``strict``, raises the error of a broker that does not answer, even if others do.
        """
        found = await self._query(topic, key, UNIQUE_KEY_MAX_NUM, 0, LONG_MAX, unique=True, strict=strict)
        return [message for message in found if message.msg_id == key]

    async def view_message(self, offset_msg_id: str) -> MessageExt:
        """The message with this offset message id, which contains the broker's address; of an inner batch the first."""
        return (await self.view_messages(offset_msg_id))[0]

    async def view_messages(self, offset_msg_id: str) -> list[MessageExt]:
        """As `view_message`, with all messages of an inner batch, which share the id."""
        try:
            host, port, offset = parse_offset_msg_id(offset_msg_id)
        except ValueError as error:
            raise InvalidArgument(str(error)) from None
        return await broker_api.view_messages(self._ask.at(format_address(host, port)), offset)

    async def consume_message_directly(
        self, group: str, client_id: str, message: MessageExt
    ) -> ConsumeMessageDirectlyResult:
        """Send a message through its broker to one push consumer of the group, even if it has consumed it before."""
        at = self._ask.at(message.store_host)
        topic = self.names.topic(message.topic)
        return await api.consume_message_directly(at, group, client_id, topic, message.offset_msg_id)

    async def max_offset(self, mq: MessageQueue) -> int:
        """The offset that the queue's next message will get."""
        return await self._client.ask_master(mq, lambda at: broker_api.max_offset(at, mq.topic, mq.queue_id))

    async def min_offset(self, mq: MessageQueue) -> int:
        """The offset of the queue's oldest message."""
        return await self._client.ask_master(mq, lambda at: broker_api.min_offset(at, mq.topic, mq.queue_id))

    async def search_offset(
        self, mq: MessageQueue, timestamp_ms: int, boundary: Literal["LOWER", "UPPER"] = "LOWER"
    ) -> int:
        """The offset of the queue's first message stored at or after ``timestamp_ms``.

        With ``boundary`` UPPER: of its last message stored at or before it.
        """
        return await self._client.ask_master(
            mq, lambda at: broker_api.search_offset(at, mq.topic, mq.queue_id, timestamp_ms, boundary=boundary)
        )

    async def earliest_store_time(self, mq: MessageQueue) -> int | None:
        """The store time of the queue's oldest message (ms); None when the queue is empty."""
        return await self._client.ask_master(mq, lambda at: broker_api.earliest_store_time(at, mq.topic, mq.queue_id))

    async def query_consume_queue(
        self, addr: str, topic: str, queue_id: NotNegative, index: Offset, count: Count = 10, group: str | None = None
    ) -> ConsumeQueueEntries:
        """Consume queue entries of a broker from offset ``index`` on, and whether ``group`` subscribes to them.

        Brokers limit the number of entries. BrokerError 1 when there is no such queue.
        """
        return await api.query_consume_queue(self._ask.at(addr), topic, queue_id, index, count, group)

    # --- brokers

    async def delete_expired_commit_log(self, addr: str) -> None:
        """Delete the broker's commit log files that are older than its fileReservedTime, at any hour."""
        await api.delete_expired_commit_log(self._ask.at(addr))

    async def clean_expired_consume_queue(self, addr: str) -> None:
        """Delete the broker's consume queue files whose messages have been deleted."""
        await api.clean_expired_consume_queue(self._ask.at(addr))

    async def clean_unused_topic(self, addr: str) -> None:
        """Delete the broker's consume queues of topics that it no longer has."""
        await api.clean_unused_topic(self._ask.at(addr))

    async def broker_runtime_info(self, addr: str) -> dict[str, str]:
        """Counters and state of the broker, all as text."""
        return await api.runtime_info(self._ask.at(addr))

    async def broker_config(self, addr: str) -> dict[str, str]:
        """The current values of all options of the broker."""
        return await api.broker_config(self._ask.at(addr))

    async def update_broker_config(self, addr: str, values: Mapping[str, str]) -> None:
        """Change options of the broker while it runs."""
        await api.update_broker_config(self._ask.at(addr), values)

    async def broker_ha_status(self, addr: str) -> HARuntimeInfo:
        """The replication state: of a master, how far its slaves are; of a slave, how far it has copied."""
        return await api.ha_status(self._ask.at(addr))

    async def reset_master_flush_offset(self, addr: str, offset: int) -> None:
        """Set the offset up to which a slave takes its master's log as flushed."""
        await api.reset_master_flush_offset(self._ask.at(addr), offset)

    async def broker_stats(self, addr: str, name: str, key: str) -> BrokerStatsData:
        """A rate of the broker (TOPIC_PUT_NUMS of a topic, ...); BrokerError 1 when it is unknown."""
        return await api.broker_stats(self._ask.at(addr), name, key)

    async def wipe_write_perm(self, broker_name: str) -> dict[str, int]:
        """Take the write permission from the broker's topics; returns NameServer address → topics changed."""
        answers = await self._ask.each_namesrv(lambda at: namesrv_api.wipe_write_perm(at, broker_name))
        answers.all()
        return answers.values

    async def add_write_perm(self, broker_name: str) -> dict[str, int]:
        """Give the write permission back to the broker's topics; returns NameServer address → topics changed."""
        answers = await self._ask.each_namesrv(lambda at: namesrv_api.add_write_perm(at, broker_name))
        answers.all()
        return answers.values

    # --- internals

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
    ) -> list[MessageExt]:
        names = await self._ask.readers_of(topic, cluster)

        async def query(addr: str) -> list[MessageExt]:
            return await broker_api.query_messages(
                self._ask.at(addr),
                topic,
                key,
                max_num=max_num,
                begin_ms=begin,
                end_ms=end,
                unique=unique,
                broker_name=names[addr],
            )

        answers = await ask_all(names, query)
        listed = answers.all() if strict else answers.any()
        found = [message for messages in listed for message in messages if message.topic == topic]
        return sorted(found, key=lambda message: message.store_timestamp)
