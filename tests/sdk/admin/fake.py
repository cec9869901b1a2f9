"""A cluster as the fakes know it: what Admin, Producer and PullConsumer would answer, and what they were asked."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

from click.testing import CliRunner, Result

from mqcommon.errors import BrokerError, RouteNotFound, SkylarkError
from mqcommon.message.queue import MessageQueue
from remoting.protocol.body import DataVersion
from remoting.protocol.requests.brokers import BrokerStatsData, HARuntimeInfo
from remoting.protocol.requests.clients import (
    ConsumeMessageDirectlyResult,
    ConsumerConnection,
    ConsumerRunningInfo,
    ProducerConnection,
)
from remoting.protocol.requests.groups import (
    ConsumeStats,
    QueueTimeSpan,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
)
from remoting.protocol.requests.query import ConsumeQueueEntries
from remoting.protocol.requests.routes import BrokerData, ClusterInfo, QueueData, TopicRouteData
from remoting.protocol.requests.topics import TopicConfig, TopicConfigTable, TopicStatsTable
from sdk.admin.cli import mqadmin
from sdk.admin.session import Settings
from tests.sdk.admin.fake_offsets import FakeOffsets

NAMESRV = "127.0.0.1:29877"
MASTER = "127.0.0.1:30921"
SLAVE = "127.0.0.1:30951"
# What the fake broker gives of a queue in one answer.
MAX_ENTRIES = 5
# How many messages the fake broker looks at in one pull.
PULL_COUNT = 32


@dataclass
class World:
    """What the fakes answer; a key of ``errors`` is (method,) or (method, address or name)."""

    brokers: dict[str, dict[int, str]] = field(default_factory=lambda: {"broker-a": {0: MASTER, 1: SLAVE}})
    topics: list[str] = field(default_factory=list)
    routes: dict[str, TopicRouteData] = field(default_factory=dict)
    topic_configs: dict[str, TopicConfig] = field(default_factory=dict)
    topic_stats: dict[str, TopicStatsTable] = field(default_factory=dict)
    groups: dict[str, list[str]] = field(default_factory=dict)
    group_configs: dict[str, SubscriptionGroupConfig] = field(default_factory=dict)
    consume_stats: dict[str, ConsumeStats] = field(default_factory=dict)
    consumers: dict[str, ConsumerConnection] = field(default_factory=dict)
    producers: dict[str, ProducerConnection] = field(default_factory=dict)
    running: dict[str, ConsumerRunningInfo] = field(default_factory=dict)
    offsets: dict[MessageQueue, int] = field(default_factory=dict)
    spans: list[QueueTimeSpan] = field(default_factory=list)
    infos: dict[str, dict[str, str]] = field(default_factory=dict)
    ha_statuses: dict[str, HARuntimeInfo] = field(default_factory=dict)
    configs: dict[str, dict[str, str]] = field(default_factory=dict)
    counters: dict[tuple[str, str], BrokerStatsData] = field(default_factory=dict)
    kv: dict[tuple[str, str], str] = field(default_factory=dict)
    messages: list[Any] = field(default_factory=list)
    entries: dict[str, ConsumeQueueEntries] = field(default_factory=dict)
    contested: dict[str, dict[int, str]] | None = None
    errors: dict[tuple[str, ...], SkylarkError] = field(default_factory=dict)
    calls: list[tuple[Any, ...]] = field(default_factory=list)
    opened: list[Settings] = field(default_factory=list)

    def asked(self, method: str, *arguments: Any) -> None:
        """Note a call, and fail as the test wants."""
        self.calls.append((method, *arguments))
        first = str(arguments[0]) if arguments else ""
        error = self.errors.get((method, first)) or self.errors.get((method,))
        if error is not None:
            raise error

    def called(self, method: str) -> list[tuple[Any, ...]]:
        """The arguments of each call of ``method``."""
        return [call[1:] for call in self.calls if call[0] == method]


class FakeAdmin(FakeOffsets):
    """Answers from the World; each method as in `sdk.admin.client.Admin`."""

    def __init__(self, world: World, settings: Settings) -> None:
        self.world = world
        self.namesrv = settings.namesrv

    async def cluster_info(self) -> ClusterInfo:
        self.world.asked("cluster_info")
        table = {name: BrokerData("DefaultCluster", name, dict(addrs)) for name, addrs in self.world.brokers.items()}
        return ClusterInfo(table, {"DefaultCluster": list(self.world.brokers)}, self.world.contested)

    async def topic_route(self, topic: str) -> TopicRouteData:
        self.world.asked("topic_route", topic)
        if topic not in self.world.routes:
            raise RouteNotFound(topic)
        return self.world.routes[topic]

    async def create_topic(self, addr: str, config: TopicConfig) -> None:
        self.world.asked("create_topic", addr, config)

    async def create_topics(self, addr: str, configs: Sequence[TopicConfig]) -> None:
        self.world.asked("create_topics", addr, list(configs))

    async def create_groups(self, addr: str, configs: Sequence[SubscriptionGroupConfig]) -> None:
        self.world.asked("create_groups", addr, list(configs))

    async def set_consume_mode(self, addr: str, *arguments: Any) -> None:
        self.world.asked("set_consume_mode", addr, *arguments)

    async def broker_stats(self, addr: str, name: str, key: str) -> BrokerStatsData:
        self.world.asked("broker_stats", addr, name, key)
        if (name, key) not in self.world.counters:
            raise BrokerError(1, f"The stats <{name}> <{key}> not exist", addr)
        return self.world.counters[name, key]

    async def delete_topic_in_broker(self, addr: str, topic: str) -> None:
        self.world.asked("delete_topic_in_broker", addr, topic)

    async def delete_topic_in_namesrv(self, topic: str, cluster: str | None = None) -> None:
        self.world.asked("delete_topic_in_namesrv", self.namesrv, topic)

    async def topic_list(self) -> list[str]:
        self.world.asked("topic_list")
        return self.world.topics

    async def topic_config(self, addr: str, topic: str) -> TopicConfig:
        self.world.asked("topic_config", addr, topic)
        if topic not in self.world.topic_configs:
            raise BrokerError(17, f"No topic in this broker. topic: {topic}", addr)
        return self.world.topic_configs[topic]

    async def topic_stats(self, topic: str, cluster: str | None = None) -> TopicStatsTable:
        self.world.asked("topic_stats", topic, cluster)
        return self.world.topic_stats[topic]

    async def groups_of_topic(self, topic: str) -> list[str]:
        self.world.asked("groups_of_topic", topic)
        return self.world.groups.get(topic, [])

    async def all_topic_config(self, addr: str) -> TopicConfigTable:
        self.world.asked("all_topic_config", addr)
        return TopicConfigTable(
            DataVersion(0, 5, 7), {name: replace(c) for name, c in self.world.topic_configs.items()}
        )

    async def system_topics_of_broker(self, addr: str) -> list[str]:
        self.world.asked("system_topics_of_broker", addr)
        return ["DefaultCluster", "broker-a"]

    async def all_groups(self, addr: str) -> SubscriptionGroupTable:
        self.world.asked("all_groups", addr)
        return SubscriptionGroupTable(dict(self.world.group_configs), {"g": {"T": 1}}, DataVersion(0, 5, 8))

    async def create_group(self, addr: str, config: Any) -> None:
        self.world.asked("create_group", addr, config)

    async def delete_group(self, addr: str, group: str, clean_offset: bool = False) -> None:
        self.world.asked("delete_group", addr, group, clean_offset)

    async def group_exists(self, group: str) -> bool:
        self.world.asked("group_exists", group)
        return group in self.world.group_configs

    async def consume_stats(self, group: str, topic: str | None = None, cluster: str | None = None) -> ConsumeStats:
        self.world.asked("consume_stats", group, topic, cluster)
        return self.world.consume_stats.get(group, ConsumeStats())

    async def consumer_connection(self, group: str, addr: str | None = None) -> ConsumerConnection:
        self.world.asked("consumer_connection", group, addr)
        if group not in self.world.consumers:
            raise BrokerError(206, f"the consumer group[{group}] not online", MASTER)
        return self.world.consumers[group]

    async def consumer_running_info(self, group: str, client_id: str, *, jstack: bool = False) -> ConsumerRunningInfo:
        self.world.asked("consumer_running_info", group, client_id)
        return self.world.running[client_id]

    async def producer_connection(self, group: str, topic: str) -> ProducerConnection:
        self.world.asked("producer_connection", group, topic)
        return self.world.producers[group]

    async def query_message_by_key(
        self,
        topic: str,
        key: str,
        max_num: int = 64,
        begin: int = 0,
        end: int = 2**63 - 1,
        cluster: str | None = None,
    ) -> list[Any]:
        self.world.asked("query_message_by_key", topic, key, max_num, begin, end, cluster)
        return [message for message in self.world.messages if message.keys == key]

    async def query_by_unique_key(self, topic: str, key: str) -> list[Any]:
        self.world.asked("query_by_unique_key", topic, key)
        return [message for message in self.world.messages if message.msg_id == key]

    async def view_messages(self, offset_msg_id: str) -> list[Any]:
        self.world.asked("view_messages", offset_msg_id)
        return [message for message in self.world.messages if message.offset_msg_id == offset_msg_id]

    async def query_consume_queue(
        self, addr: str, topic: str, queue_id: int, index: int, count: int = 10, group: str | None = None
    ) -> ConsumeQueueEntries:
        self.world.asked("query_consume_queue", addr, topic, queue_id, index, count, group)
        stored = self.world.entries[addr]
        given = min(count, MAX_ENTRIES)
        return replace(stored, queue_data=stored.queue_data[index : index + given])

    async def delete_expired_commit_log(self, addr: str) -> None:
        self.world.asked("delete_expired_commit_log", addr)

    async def clean_expired_consume_queue(self, addr: str) -> None:
        self.world.asked("clean_expired_consume_queue", addr)

    async def clean_unused_topic(self, addr: str) -> None:
        self.world.asked("clean_unused_topic", addr)

    async def consume_message_directly(self, group: str, client_id: str, message: Any) -> ConsumeMessageDirectlyResult:
        self.world.asked("consume_message_directly", group, client_id, message.offset_msg_id)
        return ConsumeMessageDirectlyResult(consume_result="CR_LATER", remark="\x1b[2J", spent_time_mills=5)

    async def broker_runtime_info(self, addr: str) -> dict[str, str]:
        self.world.asked("broker_runtime_info", addr)
        return self.world.infos.get(addr, {})

    async def broker_ha_status(self, addr: str) -> HARuntimeInfo:
        self.world.asked("broker_ha_status", addr)
        return self.world.ha_statuses[addr]

    async def reset_master_flush_offset(self, addr: str, offset: int) -> None:
        self.world.asked("reset_master_flush_offset", addr, offset)

    async def broker_config(self, addr: str) -> dict[str, str]:
        self.world.asked("broker_config", addr)
        return self.world.configs[addr]

    async def update_broker_config(self, addr: str, values: dict[str, str]) -> None:
        self.world.asked("update_broker_config", addr, values)

    async def wipe_write_perm(self, broker_name: str) -> dict[str, int]:
        self.world.asked("wipe_write_perm", self.namesrv, broker_name)
        return {self.namesrv: 20}

    async def add_write_perm(self, broker_name: str) -> dict[str, int]:
        self.world.asked("add_write_perm", self.namesrv, broker_name)
        return {self.namesrv: 20}

    async def namesrv_config(self, addrs: Sequence[str] | None = None) -> dict[str, dict[str, str]]:
        self.world.asked("namesrv_config", *(addrs or ()))
        return {addr: self.world.configs[addr] for addr in addrs or ()}

    async def update_namesrv_config(self, values: dict[str, str], addrs: Sequence[str] | None = None) -> None:
        self.world.asked("update_namesrv_config", self.namesrv, values)

    async def put_kv(self, namespace: str, key: str, value: str) -> None:
        self.world.asked("put_kv", self.namesrv, namespace, key, value)

    async def delete_kv(self, namespace: str, key: str) -> None:
        self.world.asked("delete_kv", self.namesrv, namespace, key)

    async def get_kv(self, namespace: str, key: str) -> str | None:
        self.world.asked("get_kv", namespace, key)
        return self.world.kv.get((namespace, key))


class FakeConsumer:
    """Reads the World's messages."""

    def __init__(self, world: World, group: str) -> None:
        self.world = world
        self.group = group

    def _of(self, mq: MessageQueue) -> list[Any]:
        return [message for message in self.world.messages if message.queue == mq]

    async def message_queues(self, topic: str) -> list[MessageQueue]:
        route = self.world.routes[topic]
        return sorted(
            MessageQueue(topic, queue.broker_name, number)
            for queue in route.queue_datas
            for number in range(queue.read_queue_nums)
        )

    async def min_offset(self, mq: MessageQueue) -> int:
        return min((message.queue_offset for message in self._of(mq)), default=0)

    async def max_offset(self, mq: MessageQueue) -> int:
        return max((message.queue_offset + 1 for message in self._of(mq)), default=0)

    async def search_offset(self, mq: MessageQueue, timestamp_ms: int, boundary: str = "LOWER") -> int:
        self.world.asked("search_offset", mq, timestamp_ms, boundary)
        if boundary == "UPPER":
            before = [message.queue_offset for message in self._of(mq) if message.store_timestamp <= timestamp_ms]
            return max(before, default=await self.min_offset(mq))
        later = [message.queue_offset for message in self._of(mq) if message.store_timestamp >= timestamp_ms]
        return min(later, default=await self.max_offset(mq))

    async def pull(self, mq: MessageQueue, offset: int, *, max_count: int = 32, expression: str = "*", **_: Any) -> Any:
        """Looks at no more than ``PULL_COUNT`` messages, of which those with the tag are given."""
        self.world.asked("pull", mq, offset, max_count)
        seen = [message for message in self._of(mq) if message.queue_offset >= offset][: min(max_count, PULL_COUNT)]
        found = [message for message in seen if expression in ("*", message.tags)]
        status = SimpleNamespace(name="FOUND" if found else "NO_MATCHED_MESSAGE" if seen else "NO_NEW_MESSAGE")
        after = seen[-1].queue_offset + 1 if seen else offset
        bounds = {"min_offset": await self.min_offset(mq), "max_offset": await self.max_offset(mq)}
        return SimpleNamespace(status=status, messages=found, next_offset=after, **bounds)


class FakeProducer:
    """Takes messages; the result is the World's."""

    def __init__(self, world: World) -> None:
        self.world = world

    async def send(self, message: Any, *, selector: Callable[..., MessageQueue] | None = None, **_: Any) -> Any:
        queues = [MessageQueue(message.topic, "broker-a", number) for number in range(4)]
        queue = selector(queues, message) if selector is not None else queues[3]
        self.world.asked("send", message, queue)
        if (error := self.world.errors.get(("send_to", message.topic))) is not None:
            raise error
        return SimpleNamespace(
            queue=queue,
            queue_offset=0,
            status=SimpleNamespace(name="SEND_OK"),
            msg_id="FD00000000000000000000000000000249904E0E2F2A67A392290000",
            offset_msg_id="7F000001000078BF0000000000001016",
        )


@dataclass
class FakeClients:
    """What commands open instead of the SDK's clients."""

    world: World

    @asynccontextmanager
    async def admin(self, settings: Settings) -> AsyncIterator[FakeAdmin]:
        self.world.opened.append(settings)
        yield FakeAdmin(self.world, settings)

    @asynccontextmanager
    async def producer(self, settings: Settings, group: str) -> AsyncIterator[FakeProducer]:
        yield FakeProducer(self.world)

    @asynccontextmanager
    async def consumer(self, settings: Settings, group: str) -> AsyncIterator[FakeConsumer]:
        yield FakeConsumer(self.world, group)


def run(world: World, *arguments: str, namesrv: str | None = NAMESRV) -> Result:
    """Run mqadmin against the fakes, with ``-n`` unless it is None."""
    given = [*arguments, *(("-n", namesrv) if namesrv is not None else ())]
    return CliRunner().invoke(mqadmin, given, obj=FakeClients(world), prog_name="mqadmin", env={"NAMESRV_ADDR": None})


def route(topic_queues: int = 4, perm: int = 6) -> TopicRouteData:
    """The route of a topic on broker-a."""
    broker = BrokerData("DefaultCluster", "broker-a", {0: MASTER, 1: SLAVE})
    return TopicRouteData([QueueData("broker-a", topic_queues, topic_queues, perm, 0)], [broker])


def message(**members: Any) -> Any:
    """A received message with the fields of golden's."""
    fields: dict[str, Any] = {
        "topic": "AdminT",
        "broker_name": "broker-a",
        "queue_id": 3,
        "store_size": 270,
        "queue_offset": 0,
        "sys_flag": 0,
        "flag": 0,
        "born_timestamp": 1795229973035,
        "born_host": "127.0.0.1:42960",
        "store_timestamp": 1795229973061,
        "store_host": "127.0.0.1:30911",
        "physical_offset": 4118,
        "reconsume_times": 0,
        "prepared_transaction_offset": 0,
        "msg_id": "FD00000000000000000000000000000249904E0E2F2A67A392290000",
        "offset_msg_id": "7F000001000078BF0000000000001016",
        "tags": "TagA",
        "keys": "adminkey",
        "body": b"hello admin",
        "body_crc": 1060310448,
        "properties": {
            "MSG_REGION": "DefaultRegion",
            "UNIQ_KEY": "FD00000000000000000000000000000249904E0E2F2A67A392290000",
            "CLUSTER": "DefaultCluster",
            "MIN_OFFSET": "0",
            "TAGS": "TagA",
            "KEYS": "adminkey",
            "WAIT": "true",
            "TRACE_ON": "true",
            "MAX_OFFSET": "1",
        },
        **members,
    }
    record = SimpleNamespace(body_crc=fields.pop("body_crc"), body=fields["body"])
    queue = MessageQueue(fields["topic"], fields["broker_name"], fields["queue_id"])
    return SimpleNamespace(**fields, record=record, queue=queue)
