"""A cluster as the fakes know it: what Admin, Producer and PullConsumer would answer, and what they were asked."""

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

from click.testing import CliRunner, Result

from skylark.mqadmin.cli import mqadmin
from skylark.mqadmin.session import Settings
from skylark.mqcommon.errors import BrokerError, RouteNotFound, SkylarkError
from skylark.mqcommon.message.queue import MessageQueue
from skylark.remoting.protocol.body import DataVersion
from skylark.remoting.protocol.requests.brokers import BrokerStatsData, HARuntimeInfo
from skylark.remoting.protocol.requests.clients import (
    ConsumeMessageDirectlyResult,
    ConsumerConnection,
    ConsumerRunningInfo,
    ProducerConnection,
    ProducerInfo,
    ProducerTableInfo,
)
from skylark.remoting.protocol.requests.groups import (
    ConsumeStats,
    ConsumeStatsList,
    GroupMembers,
    QueueTimeSpan,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
    Traffic,
)
from skylark.remoting.protocol.requests.query import ConsumeQueueEntries
from skylark.remoting.protocol.requests.routes import AbsentBroker, BrokerData, ClusterInfo, QueueData, TopicRouteData
from skylark.remoting.protocol.requests.topics import TopicConfig, TopicConfigTable, TopicStatsTable
from skylark.sdk.admin.client import Admin, Rollback

NAMESRV = "127.0.0.1:29877"
MASTER = "127.0.0.1:30921"
SLAVE = "127.0.0.1:30951"
# What the fake broker gives of a queue in one answer.
MAX_ENTRIES = 5
# How many messages the fake broker looks at in one pull.
PULL_COUNT = 32


@dataclass
class World:
    """What the fakes answer; a key of ``errors`` is (method,) or (method, address or name).

    ``is_rocketmq``: brokers tell nothing that only Skylark's do.
    """

    brokers: dict[str, dict[int, str]] = field(default_factory=lambda: {"broker-a": {0: MASTER, 1: SLAVE}})
    topics: list[str] = field(default_factory=list)
    routes: dict[str, TopicRouteData] = field(default_factory=dict)
    absent: list[AbsentBroker] = field(default_factory=list)
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
    is_rocketmq: bool = False
    errors: dict[tuple[str, ...], SkylarkError] = field(default_factory=dict)
    #: Why a broker does not search all messages for a key; "" if it does.
    cut: str = ""
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


def _topic_config(world: World, addr: str, topic: str) -> TopicConfig:
    if topic not in world.topic_configs:
        raise BrokerError(17, f"No topic in this broker. topic: {topic}", addr)
    return world.topic_configs[topic]


def _group_config(world: World, addr: str, group: str) -> SubscriptionGroupConfig:
    if group not in world.group_configs:
        raise BrokerError(26, "no such group", addr)
    return world.group_configs[group]


def _searched(world: World, name: str, key: str, on_partial: Callable[[str], None]) -> list[Any]:
    if world.cut:
        on_partial(world.cut)
    return [one for one in world.messages if getattr(one, name) == key]


def _topic_route(world: World, topic: str) -> TopicRouteData:
    if topic not in world.routes:
        raise RouteNotFound(topic)
    return world.routes[topic]


def _broker_stats(world: World, addr: str, name: str, key: str) -> BrokerStatsData:
    if (name, key) not in world.counters:
        raise BrokerError(1, f"The stats <{name}> <{key}> not exist", addr)
    return world.counters[name, key]


def _consumer_connection(world: World, group: str, addr: str | None) -> ConsumerConnection:
    if group not in world.consumers:
        raise BrokerError(206, f"the consumer group[{group}] not online", MASTER)
    return world.consumers[group]


def _all_producers(world: World, addr: str) -> ProducerTableInfo:
    infos = {group: [ProducerInfo(one.client_id, one.client_addr, one.language, one.version, 5)
                     for one in found.connection_set] for group, found in world.producers.items()}  # fmt: skip
    return ProducerTableInfo(infos)


def _cluster_info(world: World) -> ClusterInfo:
    table = {name: BrokerData("DefaultCluster", name, dict(addrs)) for name, addrs in world.brokers.items()}
    return ClusterInfo(table, {"DefaultCluster": list(world.brokers)}, world.contested, world.absent or None)


def _entries(world: World, addr: str, topic: str, queue_id: int, index: int, count: int, *_: Any) -> Any:
    stored = world.entries[addr]
    return replace(stored, queue_data=stored.queue_data[index : index + min(count, MAX_ENTRIES)])


def _progress_of_all(world: World, addr: str, only_ordered: bool, members: bool, traffic: bool) -> ConsumeStatsList:
    answer = ConsumeStatsList([{group: [one]} for group, one in world.consume_stats.items()], addr, 3)
    if members and not world.is_rocketmq:
        answer.members = {
            group: GroupMembers(
                {one.client_id: one.version for one in found.connection_set}, found.consume_type, found.message_model
            )
            for group, found in world.consumers.items()
        }
    if traffic and not world.is_rocketmq:
        answer.readers = world.groups
        answer.traffic = [
            Traffic(*key.partition("@")[::2], data.stats_minute.tps, data.stats_day.sum)
            for (_, key), data in world.counters.items()
        ]
    return answer


#: What methods of `Admin` return, from the World and their arguments; None of those that are not here.
ANSWERS: dict[str, Callable[..., Any]] = {
    "cluster_info": _cluster_info,
    "topic_route": _topic_route,
    "broker_stats": _broker_stats,
    "topic_list": lambda world, *_: world.topics,
    "topic_config": _topic_config,
    "topic_stats": lambda world, topic, cluster: world.topic_stats[topic],
    "groups_of_topic": lambda world, topic: world.groups.get(topic, []),
    "all_topic_config": lambda world, addr: TopicConfigTable(
        DataVersion(0, 5, 7), {name: replace(one) for name, one in world.topic_configs.items()}
    ),
    "system_topics_of_broker": lambda world, addr: ["DefaultCluster", "broker-a"],
    "all_groups": lambda world, addr: SubscriptionGroupTable(
        dict(world.group_configs), {"g": {"T": 1}}, DataVersion(0, 5, 8)
    ),
    "group_config": _group_config,
    "group_exists": lambda world, group: group in world.group_configs,
    "consume_stats": lambda world, group, *_: world.consume_stats.get(group, ConsumeStats()),
    "consumer_connection": _consumer_connection,
    "consumer_running_info": lambda world, group, client_id, jstack: world.running[client_id],
    "consumer_status": lambda world, *_: dict.fromkeys(world.running, world.offsets),
    "producer_connection": lambda world, group, topic: world.producers[group],
    "all_producers": _all_producers,
    "reset_offsets": lambda world, *_: world.offsets,
    "reset_queue": lambda world, addr, group, topic, queue_id, *_: {
        mq: at for mq, at in world.offsets.items() if mq.queue_id == queue_id
    },
    "roll_back_offsets": lambda world, *_: [Rollback(mq, 9, 8, at, at) for mq, at in world.offsets.items()],
    "consume_time_spans": lambda world, *_: world.spans,
    "broker_consume_stats": _progress_of_all,
    "query_message_by_key": lambda world, topic, key, *more: _searched(world, "keys", key, more[-1]),
    "query_by_unique_key": lambda world, topic, key, *more: _searched(world, "msg_id", key, more[-1]),
    "view_messages": lambda world, found: [one for one in world.messages if one.offset_msg_id == found],
    "query_consume_queue": _entries,
    "consume_message_directly": lambda world, *_: ConsumeMessageDirectlyResult(
        consume_result="CR_LATER", remark="\x1b[2J", spent_time_mills=5
    ),
    "broker_runtime_info": lambda world, addr: world.infos.get(addr, {}),
    "broker_ha_status": lambda world, addr: world.ha_statuses[addr],
    "broker_config": lambda world, addr: world.configs[addr],
    "namesrv_config": lambda world, addrs: {addr: world.configs.get(addr, {}) for addr in addrs or ()},
    "kv_list": lambda world, namespace: {key: value for (own, key), value in world.kv.items() if own == namespace},
    "get_kv": lambda world, namespace, key: world.kv.get((namespace, key)),
}
# Of these the World notes which NameServers were given.
_AT_NAMESERVERS = (
    "delete_topic_in_namesrv", "forget_broker", "wipe_write_perm", "add_write_perm", "update_namesrv_config",
    "put_kv", "delete_kv",
)  # fmt: skip


class FakeAdmin:
    """Answers from the World; its methods have the same parameters as `Admin`'s."""

    def __init__(self, world: World, settings: Settings) -> None:
        self.world = world
        self.namesrv = settings.namesrv

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        signature = inspect.signature(getattr(Admin, name))

        async def call(*args: Any, **named: Any) -> Any:
            bound = signature.bind(self, *args, **named)
            bound.apply_defaults()
            _, *arguments = bound.arguments.values()
            self.world.asked(name, *([self.namesrv] if name in _AT_NAMESERVERS else []), *arguments)
            if name in ("wipe_write_perm", "add_write_perm"):
                return {self.namesrv: 20}
            return ANSWERS[name](self.world, *arguments) if name in ANSWERS else None

        return call


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
    """The clients that commands open in place of the SDK's clients."""

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
