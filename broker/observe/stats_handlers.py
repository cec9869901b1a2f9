"""The offsets of queues, topics of groups and groups of topics, and rates: 202, 300, 315, 343."""

from functools import partial

from broker.cold_reads import reading
from broker.meta.clients import Clients
from broker.meta.consumer_offsets import ConsumerOffsets
from broker.meta.topics import Topics
from broker.observe.stats import BrokerStats
from broker.part import Part
from broker.store.store import MessageStore
from mqcommon.errors import RequestRefused
from mqcommon.message.queue import MessageQueue
from remoting.net.answers import answer_steps, answer_with
from remoting.net.channel import Channel
from remoting.net.server import Handler
from remoting.net.steps import StepHandler, Steps
from remoting.protocol.codes import ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.requests.brokers import VIEW_BROKER_STATS_DATA
from remoting.protocol.requests.groups import QUERY_TOPICS_BY_CONSUMER
from remoting.protocol.requests.topics import (
    GET_TOPIC_STATS_INFO,
    QUERY_TOPIC_CONSUME_BY_WHO,
    GroupList,
    TopicList,
    TopicOffset,
    TopicStatsTable,
)

# Queues that one step handles: each costs about 10 µs.
QUEUES = 100


class StatsHandlers(Part):
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
            VIEW_BROKER_STATS_DATA.code: self.counter,
        }

    def step_handlers(self) -> dict[int, StepHandler]:
        return {
            GET_TOPIC_STATS_INFO.code: self.topic_stats,
            QUERY_TOPIC_CONSUME_BY_WHO.code: self.groups_of_topic,
            QUERY_TOPICS_BY_CONSUMER.code: self.topics_of_group,
        }

    def topic_stats(self, channel: Channel, request: Command) -> Steps[Command]:
        """202: the first and the next offset of each queue."""
        topic = GET_TOPIC_STATS_INFO.header(request).topic
        config = self._topics.get(topic)
        if config is None:
            raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist")
        table = {}
        for queue_id in range(config.write_queue_nums):
            if queue_id % QUEUES == QUEUES - 1:
                yield None
            row = yield from reading(partial(self._topic_offset, topic, queue_id))
            table[MessageQueue(topic, self._broker_name, queue_id)] = row
        body = TopicStatsTable(table, self._stats.topic_put_tps(topic))
        return (yield from answer_steps(GET_TOPIC_STATS_INFO, request, body, channel.max_frame_bytes))

    def groups_of_topic(self, channel: Channel, request: Command) -> Steps[Command]:
        """300: groups that subscribe to a topic now, or have consumed it."""
        topic = QUERY_TOPIC_CONSUME_BY_WHO.header(request).topic
        consumed = yield from self._offsets.groups_of(topic)
        groups = GroupList(list(dict.fromkeys([*self._clients.consumers_of(topic), *consumed])))
        return (yield from answer_steps(QUERY_TOPIC_CONSUME_BY_WHO, request, groups, channel.max_frame_bytes))

    def topics_of_group(self, channel: Channel, request: Command) -> Steps[Command]:
        """343: topics that a group has consumed."""
        group = QUERY_TOPICS_BY_CONSUMER.header(request).group
        topics = TopicList((yield from self._offsets.topics_of(group)), self._broker_addr)
        return (yield from answer_steps(QUERY_TOPICS_BY_CONSUMER, request, topics, channel.max_frame_bytes))

    def counter(self, channel: Channel, request: Command) -> Command:
        """315: one counter over the last minute, hour and day."""
        header = VIEW_BROKER_STATS_DATA.header(request)
        data = self._stats.view(header.stats_name, header.stats_key)
        if data is None:
            text = f"The stats <{header.stats_name}> <{header.stats_key}> not exist"
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, text)
        return answer_with(VIEW_BROKER_STATS_DATA, request, data)

    def _topic_offset(self, topic: str, queue_id: int) -> TopicOffset:
        end = self._store.max_offset(topic, queue_id)
        last_ms = self._store.store_time(topic, queue_id, end - 1) if end > 0 else 0
        return TopicOffset(self._store.min_offset(topic, queue_id), end, max(last_ms, 0))
