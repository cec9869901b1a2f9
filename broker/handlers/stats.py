"""What stands in queues, who has consumed how much, and how fast: 202, 208, 300, 315, 343."""

from broker.delivery.pulled import furthest_pulled
from broker.handlers.admin_groups import GroupRequestHeader
from broker.handlers.bodies import answer_with
from broker.meta.clients import Clients
from broker.meta.consumer_offsets import ConsumerOffsets
from broker.meta.topics import Topics
from broker.observe.stats import BrokerStats
from broker.store.store import MessageStore
from mqcommon.errors import RequestRefused
from mqcommon.message.queue import MessageQueue
from remoting.net.channel import Channel
from remoting.net.server import Handler
from remoting.protocol.bodies.stats import ConsumeOffset, ConsumeStats
from remoting.protocol.bodies.topic import GroupList, TopicList, TopicOffset, TopicStatsTable
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.headers.admin import ViewBrokerStatsDataRequestHeader
from remoting.protocol.headers.groups import GetConsumeStatsRequestHeader
from remoting.protocol.headers.topics import TopicRequestHeader


class StatsHandlers:
    """See the module."""

    def __init__(
        self,
        broker_name: str,
        broker_addr: str,
        store: MessageStore,
        topics: Topics,
        offsets: ConsumerOffsets,
        clients: Clients,
        stats: BrokerStats,
    ) -> None:
        self._broker_name = broker_name
        self._broker_addr = broker_addr
        self._store = store
        self._topics = topics
        self._offsets = offsets
        self._clients = clients
        self._stats = stats

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.GET_TOPIC_STATS_INFO: self.topic_stats,
            RequestCode.GET_CONSUME_STATS: self.consume_stats,
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: self.groups_of_topic,
            RequestCode.VIEW_BROKER_STATS_DATA: self.counter,
            RequestCode.QUERY_TOPICS_BY_CONSUMER: self.topics_of_group,
        }

    def topic_stats(self, channel: Channel, request: Command) -> Command:
        """202: the first and the next offset of each queue."""
        topic = TopicRequestHeader.from_ext(request.ext).topic
        config = self._topics.get(topic)
        if config is None:
            raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist")
        table = {}
        for queue_id in range(config.write_queue_nums):
            end = self._store.max_offset(topic, queue_id)
            last_ms = self._store.store_time(topic, queue_id, end - 1) if end > 0 else 0
            row = TopicOffset(self._store.min_offset(topic, queue_id), end, max(last_ms, 0))
            table[MessageQueue(topic, self._broker_name, queue_id)] = row
        return answer_with(request, TopicStatsTable(table, self._stats.topic_put_tps(topic)))

    def consume_stats(self, channel: Channel, request: Command) -> Command:
        """208: how far a group is, in one topic or in all that it has consumed."""
        header = GetConsumeStatsRequestHeader.from_ext(request.ext)
        group = header.consumer_group
        topics = [topic for topic in (header.topic_list or "").split(";") if topic.strip()]
        if header.topic and header.topic.strip():
            topics.append(header.topic)
        answer = ConsumeStats()
        for topic in topics or self._offsets.topics_of(group):
            if self._is_unsubscribed(group, topic):
                continue
            answer.offset_table.update(self._progress(group, topic))
            answer.consume_tps += self._stats.group_get_tps(group, topic)
        return answer_with(request, answer)

    def groups_of_topic(self, channel: Channel, request: Command) -> Command:
        """300: groups that subscribe to a topic now, or have consumed it."""
        topic = TopicRequestHeader.from_ext(request.ext).topic
        groups = dict.fromkeys([*self._clients.consumers_of(topic), *self._offsets.groups_of(topic)])
        return answer_with(request, GroupList(list(groups)))

    def topics_of_group(self, channel: Channel, request: Command) -> Command:
        """343: topics that a group has consumed."""
        group = GroupRequestHeader.from_ext(request.ext).group
        return answer_with(request, TopicList(self._offsets.topics_of(group), self._broker_addr))

    def counter(self, channel: Channel, request: Command) -> Command:
        """315: one counter over the last minute, hour and day."""
        header = ViewBrokerStatsDataRequestHeader.from_ext(request.ext)
        data = self._stats.view(header.stats_name, header.stats_key)
        if data is None:
            text = f"The stats <{header.stats_name}> <{header.stats_key}> not exist"
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, text)
        return answer_with(request, data)

    def _is_unsubscribed(self, group: str, topic: str) -> bool:
        """Whether members of the group are connected, and want other topics now."""
        connected = self._clients.consumer_group(group)
        return connected is not None and bool(connected.subscriptions) and topic not in connected.subscriptions

    def _progress(self, group: str, topic: str) -> dict[MessageQueue, ConsumeOffset]:
        config = self._topics.get(topic)
        members = self._clients.consumer_group(group)
        pulled = furthest_pulled(members.members, group, topic) if members else {}
        rows = {}
        for queue_id in range(config.read_queue_nums if config else 0):
            consumed = max(self._offsets.query(group, topic, queue_id), 0)
            last_ms = self._store.store_time(topic, queue_id, consumed - 1) if consumed > 0 else 0
            end = self._store.max_offset(topic, queue_id)
            row = ConsumeOffset(end, consumed, max(consumed, pulled.get(queue_id, 0)), max(last_ms, 0))
            rows[MessageQueue(topic, self._broker_name, queue_id)] = row
        return rows
