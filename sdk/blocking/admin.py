"""`Admin`, blocking. Made by scripts/docs from sdk.admin.client: edit that, not this."""

from collections.abc import Mapping, Sequence
from typing import Literal

from mqcommon.message.message import MessageExt
from mqcommon.message.queue import MessageQueue
from remoting.protocol.bodies.cluster import ClusterInfo
from remoting.protocol.bodies.connections import ConsumerConnection, ProducerConnection
from remoting.protocol.bodies.consume_queue import ConsumeQueueEntries
from remoting.protocol.bodies.consume_result import ConsumeMessageDirectlyResult
from remoting.protocol.bodies.group import SubscriptionGroupConfig, SubscriptionGroupTable
from remoting.protocol.bodies.ha import HARuntimeInfo
from remoting.protocol.bodies.route import TopicRouteData
from remoting.protocol.bodies.running_info import ConsumerRunningInfo
from remoting.protocol.bodies.stats import BrokerStatsData, ConsumeStats
from remoting.protocol.bodies.topic import TopicConfig, TopicConfigTable, TopicStatsTable
from sdk.admin.client import LONG_MAX
from sdk.admin.client import Admin as AsyncAdmin
from sdk.blocking.client import Client, loop_of
from sdk.blocking.facade import Facade
from sdk.checked import Count, Milliseconds, NotNegative, Offset


class Admin(Facade[AsyncAdmin]):
    """Asks NameServers and brokers; ``with Admin("127.0.0.1:9876") as admin: ...``.

    ``nameserver`` is ``host:port;host:port`` or a shared `Client`, by default $NAMESRV_ADDR. Without NameServers,
    methods that take a broker's address work; the others raise UserError. ``timeout_ms`` is for each request.
    """

    def __init__(self, nameserver: str | Client | None = None, *, timeout_ms: Milliseconds = 5000) -> None:
        super().__init__(loop_of(nameserver, lambda client: AsyncAdmin(client, timeout_ms=timeout_ms)))

    # --- routes and clusters

    def topic_route(self, topic: str) -> TopicRouteData:
        """The topic's route as a NameServer gives it; RouteNotFound when none has it."""
        return self._loop.call(lambda admin: admin.topic_route(topic))

    def cluster_info(self) -> ClusterInfo:
        """Clusters, their brokers, and the addresses of each broker's master and slaves."""
        return self._loop.call(lambda admin: admin.cluster_info())

    def brokers_of_cluster(self, cluster: str) -> list[str]:
        """The masters' addresses, by broker name; UserError when there is no such cluster."""
        return self._loop.call(lambda admin: admin.brokers_of_cluster(cluster))

    def broker_addr_of(self, broker_name: str) -> str:
        """The address of the broker's master; UserError when there is none."""
        return self._loop.call(lambda admin: admin.broker_addr_of(broker_name))

    # --- topics

    def create_topic(self, addr: str, config: TopicConfig) -> None:
        """Create the topic on the broker, or change it to ``config``."""
        self._loop.call(lambda admin: admin.create_topic(addr, config))

    def delete_topic_in_broker(self, addr: str, topic: str) -> None:
        """Delete the topic and its messages from the broker."""
        self._loop.call(lambda admin: admin.delete_topic_in_broker(addr, topic))

    def delete_topic_in_namesrv(self, topic: str, cluster: str | None = None) -> None:
        """Delete the topic's route from every NameServer (only in ``cluster``, if given)."""
        self._loop.call(lambda admin: admin.delete_topic_in_namesrv(topic, cluster))

    def topic_list(self) -> list[str]:
        """All topics, as the NameServer lists them."""
        return self._loop.call(lambda admin: admin.topic_list())

    def topics_by_cluster(self, cluster: str) -> list[str]:
        """The topics of a cluster."""
        return self._loop.call(lambda admin: admin.topics_by_cluster(cluster))

    def system_topics(self) -> list[str]:
        """The topics that NameServers and brokers created for themselves."""
        return self._loop.call(lambda admin: admin.system_topics())

    def system_topics_of_broker(self, addr: str) -> list[str]:
        """The topics that the broker created for itself."""
        return self._loop.call(lambda admin: admin.system_topics_of_broker(addr))

    def topic_config(self, addr: str, topic: str) -> TopicConfig:
        """One topic of the broker; BrokerError 17 when it has no such topic."""
        return self._loop.call(lambda admin: admin.topic_config(addr, topic))

    def all_topic_config(self, addr: str) -> TopicConfigTable:
        """Every topic of the broker."""
        return self._loop.call(lambda admin: admin.all_topic_config(addr))

    def topic_stats(self, topic: str, cluster: str | None = None) -> TopicStatsTable:
        """Offsets and last update of each queue of the topic; ``cluster`` chooses other brokers than its route."""
        return self._loop.call(lambda admin: admin.topic_stats(topic, cluster))

    def groups_of_topic(self, topic: str) -> list[str]:
        """The groups that consume the topic."""
        return self._loop.call(lambda admin: admin.groups_of_topic(topic))

    # --- groups

    def create_group(self, addr: str, config: SubscriptionGroupConfig) -> None:
        """Create the subscription group on the broker, or change it to ``config``."""
        self._loop.call(lambda admin: admin.create_group(addr, config))

    def delete_group(self, addr: str, group: str, clean_offset: bool = False) -> None:
        """Delete the subscription group from the broker, and its offsets if ``clean_offset``."""
        self._loop.call(lambda admin: admin.delete_group(addr, group, clean_offset))

    def all_groups(self, addr: str) -> SubscriptionGroupTable:
        """Every subscription group of the broker."""
        return self._loop.call(lambda admin: admin.all_groups(addr))

    def group_exists(self, group: str) -> bool:
        """Whether any broker knows the group."""
        return self._loop.call(lambda admin: admin.group_exists(group))

    def consume_stats(self, group: str, topic: str | None = None, cluster: str | None = None) -> ConsumeStats:
        """The group's offsets and lag in each queue of ``topic``, or of all its topics.

        ``cluster`` chooses other brokers than the topic's route.
        """
        return self._loop.call(lambda admin: admin.consume_stats(group, topic, cluster))

    def consumer_connection(self, group: str, addr: str | None = None) -> ConsumerConnection:
        """The group's consumers connected to the broker at ``addr``, or to any broker; BrokerError 206 when none is."""
        return self._loop.call(lambda admin: admin.consumer_connection(group, addr))

    def consumer_running_info(self, group: str, client_id: str, *, jstack: bool = False) -> ConsumerRunningInfo:
        """The status of one consumer of the group; the broker that it is connected to asks it."""
        return self._loop.call(lambda admin: admin.consumer_running_info(group, client_id, jstack=jstack))

    def producer_connection(self, group: str, topic: str) -> ProducerConnection:
        """The group's producers connected to the brokers of ``topic``; BrokerError 1 when there is none."""
        return self._loop.call(lambda admin: admin.producer_connection(group, topic))

    # --- messages and offsets

    def query_message_by_key(
        self, topic: str, key: str, max_num: Count = 64, begin: int = 0, end: int = LONG_MAX, cluster: str | None = None
    ) -> list[MessageExt]:
        """Messages of ``topic`` with ``key`` among their keys, stored from ``begin`` to ``end`` (ms), oldest first.

        ``cluster`` chooses other brokers than the topic's route.
        """
        return self._loop.call(lambda admin: admin.query_message_by_key(topic, key, max_num, begin, end, cluster))

    def query_by_unique_key(self, topic: str, key: str) -> list[MessageExt]:
        """Messages of ``topic`` with the unique key ``key``, oldest first; more than one when a send was retried."""
        return self._loop.call(lambda admin: admin.query_by_unique_key(topic, key))

    def view_message(self, offset_msg_id: str) -> MessageExt:
        """The message with this offset message id, which contains the broker's address."""
        return self._loop.call(lambda admin: admin.view_message(offset_msg_id))

    def consume_message_directly(self, group: str, client_id: str, message: MessageExt) -> ConsumeMessageDirectlyResult:
        """Send a message through its broker to one push consumer of the group, even if it has consumed it before."""
        return self._loop.call(lambda admin: admin.consume_message_directly(group, client_id, message))

    def max_offset(self, mq: MessageQueue) -> int:
        """The offset that the queue's next message will get."""
        return self._loop.call(lambda admin: admin.max_offset(mq))

    def min_offset(self, mq: MessageQueue) -> int:
        """The offset of the queue's oldest message."""
        return self._loop.call(lambda admin: admin.min_offset(mq))

    def search_offset(self, mq: MessageQueue, timestamp_ms: int, boundary: Literal["LOWER", "UPPER"] = "LOWER") -> int:
        """The offset of the queue's first message stored at or after ``timestamp_ms``.

        With ``boundary`` UPPER: of its last message stored at or before it.
        """
        return self._loop.call(lambda admin: admin.search_offset(mq, timestamp_ms, boundary))

    def earliest_store_time(self, mq: MessageQueue) -> int | None:
        """The store time of the queue's oldest message (ms); None when the queue is empty."""
        return self._loop.call(lambda admin: admin.earliest_store_time(mq))

    def query_consume_queue(
        self, addr: str, topic: str, queue_id: NotNegative, index: Offset, count: Count = 10, group: str | None = None
    ) -> ConsumeQueueEntries:
        """Consume queue entries of a broker from offset ``index`` on, and whether ``group`` subscribes to them.

        Brokers limit the number of entries. BrokerError 1 when there is no such queue.
        """
        return self._loop.call(lambda admin: admin.query_consume_queue(addr, topic, queue_id, index, count, group))

    # --- brokers

    def delete_expired_commit_log(self, addr: str) -> None:
        """Delete the broker's commit log files that are older than its fileReservedTime, at any hour."""
        self._loop.call(lambda admin: admin.delete_expired_commit_log(addr))

    def clean_expired_consume_queue(self, addr: str) -> None:
        """Delete the broker's consume queue files whose messages have been deleted."""
        self._loop.call(lambda admin: admin.clean_expired_consume_queue(addr))

    def clean_unused_topic(self, addr: str) -> None:
        """Delete the broker's consume queues of topics that it no longer has."""
        self._loop.call(lambda admin: admin.clean_unused_topic(addr))

    def broker_runtime_info(self, addr: str) -> dict[str, str]:
        """Counters and state of the broker, all as text."""
        return self._loop.call(lambda admin: admin.broker_runtime_info(addr))

    def broker_config(self, addr: str) -> dict[str, str]:
        """The current values of all options of the broker."""
        return self._loop.call(lambda admin: admin.broker_config(addr))

    def update_broker_config(self, addr: str, values: Mapping[str, str]) -> None:
        """Change options of the broker while it runs."""
        self._loop.call(lambda admin: admin.update_broker_config(addr, values))

    def broker_ha_status(self, addr: str) -> HARuntimeInfo:
        """The replication state: of a master, how far its slaves are; of a slave, how far it has copied."""
        return self._loop.call(lambda admin: admin.broker_ha_status(addr))

    def reset_master_flush_offset(self, addr: str, offset: int) -> None:
        """Set the offset up to which a slave takes its master's log as flushed."""
        self._loop.call(lambda admin: admin.reset_master_flush_offset(addr, offset))

    def broker_stats(self, addr: str, name: str, key: str) -> BrokerStatsData:
        """A rate of the broker (TOPIC_PUT_NUMS of a topic, ...); BrokerError 1 when it is unknown."""
        return self._loop.call(lambda admin: admin.broker_stats(addr, name, key))

    def wipe_write_perm(self, broker_name: str) -> dict[str, int]:
        """Take the write permission from the broker's topics; returns NameServer address → topics changed."""
        return self._loop.call(lambda admin: admin.wipe_write_perm(broker_name))

    def add_write_perm(self, broker_name: str) -> dict[str, int]:
        """Give the write permission back to the broker's topics; returns NameServer address → topics changed."""
        return self._loop.call(lambda admin: admin.add_write_perm(broker_name))

    # --- NameServers

    def namesrv_config(self, addrs: Sequence[str] | None = None) -> dict[str, dict[str, str]]:
        """NameServer address → its options; of all NameServers when ``addrs`` is None."""
        return self._loop.call(lambda admin: admin.namesrv_config(addrs))

    def update_namesrv_config(self, values: Mapping[str, str], addrs: Sequence[str] | None = None) -> None:
        """Change options of the NameServers at ``addrs``, or of all."""
        self._loop.call(lambda admin: admin.update_namesrv_config(values, addrs))

    def put_kv(self, namespace: str, key: str, value: str) -> None:
        """Set a value in every NameServer's key-value store."""
        self._loop.call(lambda admin: admin.put_kv(namespace, key, value))

    def delete_kv(self, namespace: str, key: str) -> None:
        """Remove a value from every NameServer's key-value store."""
        self._loop.call(lambda admin: admin.delete_kv(namespace, key))

    def get_kv(self, namespace: str, key: str) -> str | None:
        """A value of the key-value store; None when there is none."""
        return self._loop.call(lambda admin: admin.get_kv(namespace, key))

    def kv_list(self, namespace: str) -> dict[str, str]:
        """All values of a namespace."""
        return self._loop.call(lambda admin: admin.kv_list(namespace))
