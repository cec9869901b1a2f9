"""Figures for tools: queues and rates of topics, and how far groups have consumed the topics.

Topics: 202 (offsets), 300 (groups), 315 (one counter), 343 (topics of a group). Progress of groups: 208 (one), 317
(all), 303 (in time), 308 (the lowest offset of several).
The part also samples the counters: the whole broker's each second, each topic's and group's every ten seconds.
As in RocketMQ, an hour then has samples ten minutes apart, and a day one per hour (meter.py).
"""

from collections.abc import Mapping
from functools import partial

import trio

from skylark.broker.cold_reads import reading
from skylark.broker.identity import Identity
from skylark.broker.meta.clients import Clients
from skylark.broker.meta.metadata import Metadata
from skylark.broker.meta.proxied_clients import ProxiedClients
from skylark.broker.meta.pull_positions import furthest_pulled
from skylark.broker.observe.group_overview import members_of_groups, readers_of_topics, traffic_of_topics
from skylark.broker.observe.stats import BrokerStats
from skylark.broker.part import Part
from skylark.broker.store.store import MessageStore
from skylark.mqcommon.arguments import as_long
from skylark.mqcommon.clock import Clock
from skylark.mqcommon.errors import RequestRefused
from skylark.mqcommon.message.queue import MessageQueue
from skylark.remoting.net.answers import answer_steps, answer_with
from skylark.remoting.net.channel import Channel
from skylark.remoting.net.server import Handler
from skylark.remoting.net.steps import StepHandler, Steps, run_slices
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.requests.brokers import VIEW_BROKER_STATS_DATA
from skylark.remoting.protocol.requests.groups import (
    GET_BROKER_CONSUME_STATS,
    GET_CONSUME_STATS,
    QUERY_CONSUME_TIME_SPAN,
    QUERY_TOPICS_BY_CONSUMER,
    ConsumeOffset,
    ConsumeStats,
    ConsumeStatsList,
    QueryConsumeTimeSpanBody,
    QueueTimeSpan,
)
from skylark.remoting.protocol.requests.offsets import QUERY_CORRECTION_OFFSET, CorrectionOffsets
from skylark.remoting.protocol.requests.topics import (
    GET_TOPIC_STATS_INFO,
    QUERY_TOPIC_CONSUME_BY_WHO,
    GroupList,
    TopicConfig,
    TopicList,
    TopicOffset,
    TopicStatsTable,
)

# Queues, topics or groups that one step handles: each costs about 10 µs.
QUEUES = 100
TOPICS = 100
# The answer for a queue in which the compared group lags, or that no other group consumes: Java's Long.MAX_VALUE.
NO_CORRECTION = 2**63 - 1
ROWS_INTERVAL_S = 10.0


class StatsHandlers(Part):
    """Handles tools' requests for figures, and samples the counters."""

    tick_interval_ms = 1_000

    def __init__(
        self,
        identity: Identity,
        store: MessageStore,
        metadata: Metadata,
        clients: Clients,
        proxied: ProxiedClients,
        stats: BrokerStats,
        clock: Clock,
    ) -> None:
        self._identity = identity
        self._store = store
        self._topics = metadata.topics
        self._groups = metadata.groups
        self._offsets = metadata.consumer_offsets
        self._clients = clients
        self._proxied = proxied
        self._stats = stats
        self._clock = clock

    def handlers(self) -> dict[int, Handler]:
        return {VIEW_BROKER_STATS_DATA.code: self.counter}

    def step_handlers(self) -> dict[int, StepHandler]:
        return {
            GET_TOPIC_STATS_INFO.code: self.topic_stats,
            QUERY_TOPIC_CONSUME_BY_WHO.code: self.groups_of_topic,
            QUERY_TOPICS_BY_CONSUMER.code: self.topics_of_group,
            GET_CONSUME_STATS.code: self.consume_stats,
            GET_BROKER_CONSUME_STATS.code: self.all_consume_stats,
            QUERY_CONSUME_TIME_SPAN.code: self.time_span,
            QUERY_CORRECTION_OFFSET.code: self.correction_offsets,
        }

    # --- sampling

    def tick(self) -> None:
        """Sample the rates of the whole broker."""
        self._stats.sample()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Sample the counters of topics and groups, until cancelled. Counters of deleted ones are dropped."""
        task_status.started()
        while True:
            await trio.sleep(ROWS_INTERVAL_S)
            await run_slices(self._stats.sample_rows(self._topics.get, self._groups.get))

    # --- topics

    def topic_stats(self, channel: Channel, request: Command) -> Steps[Command]:
        """202: the first and the next offset of each queue."""
        topic = GET_TOPIC_STATS_INFO.header(request).topic
        config = self._existing(topic)
        table = {}
        for queue_id in range(config.write_queue_nums):
            if queue_id % QUEUES == QUEUES - 1:
                yield None
            row = yield from reading(partial(self._topic_offset, topic, queue_id))
            table[MessageQueue(topic, self._identity.broker_name, queue_id)] = row
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
        topics = TopicList((yield from self._offsets.topics_of(group)), self._identity.addr)
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
        # The same end as in the answer to 30. If it counted unconfirmed messages, a reader would ask for messages that
        # it does not get.
        end = self._store.visible_end(topic, queue_id)
        last_ms = self._store.store_time(topic, queue_id, end - 1) if end > 0 else 0
        return TopicOffset(self._store.min_offset(topic, queue_id), end, max(last_ms, 0))

    # --- progress of groups

    def consume_stats(self, channel: Channel, request: Command) -> Steps[Command]:
        """208: the progress of a group, in one topic or in all that it has consumed."""
        header = GET_CONSUME_STATS.header(request)
        group = header.consumer_group
        topics = [topic for topic in (header.topic_list or "").split(";") if topic.strip()]
        if header.topic and header.topic.strip():
            topics.append(header.topic)
        wanted = list(dict.fromkeys(topics)) or (yield from self._offsets.topics_of(group))
        answer = ConsumeStats()
        for number, topic in enumerate(wanted, 1):
            if number % TOPICS == 0:
                yield None
            if self._clients.has_left(group, topic):
                continue
            yield from self._progress(group, topic, answer.offset_table)
            answer.consume_tps += self._stats.group_get_tps(group, topic)
        return (yield from answer_steps(GET_CONSUME_STATS, request, answer, channel.max_frame_bytes))

    def all_consume_stats(self, channel: Channel, request: Command) -> Steps[Command]:
        """317: each group, with the progress in each topic; ``is_order``: in ordered topics only.

        If the answer has the additions to RocketMQ's answer and does not fit into a frame, the request is refused: the
        caller asks again without the additions.
        """
        header = GET_BROKER_CONSUME_STATS.header(request)
        topics_of = yield from self._offsets.topics_by_group()
        answer = ConsumeStatsList(broker_addr=self._identity.addr)
        for number, group in enumerate(self._groups.names(), 1):
            if number % TOPICS == 0:
                yield None
            found: list[ConsumeStats] = []
            for topic in topics_of.get(group, ()):
                config = self._topics.get(topic)
                if config is None or (header.is_order and not config.order) or self._clients.has_left(group, topic):
                    continue
                stats = ConsumeStats(consume_tps=self._stats.group_get_tps(group, topic))
                yield from self._progress(group, topic, stats.offset_table)
                yield None
                rows = stats.offset_table.values()
                answer.total_diff += sum(row.broker_offset - row.consumer_offset for row in rows)
                answer.total_inflight_diff += sum(row.pull_offset - row.consumer_offset for row in rows)
                found.append(stats)
            answer.consume_stats_list.append({group: found})
        # Groups may have committed any offset, so the sum may exceed 64 bits, the most that the body can hold.
        answer.total_diff = as_long(answer.total_diff)
        answer.total_inflight_diff = as_long(answer.total_inflight_diff)
        if header.members:
            answer.members = yield from members_of_groups(self._clients, self._proxied)
        if header.traffic:
            answer.readers = yield from readers_of_topics(self._clients, self._offsets)
            answer.traffic = yield from traffic_of_topics(self._stats)
        remedy = "ask for one group or topic at a time" if header.members or header.traffic else ""
        return (
            yield from answer_steps(GET_BROKER_CONSUME_STATS, request, answer, channel.max_frame_bytes, remedy=remedy)
        )

    def time_span(self, channel: Channel, request: Command) -> Steps[Command]:
        """303: store times in each queue: of the first message, the last message, and the last consumed message."""
        header = QUERY_CONSUME_TIME_SPAN.header(request)
        config = self._existing(header.topic)
        answer = QueryConsumeTimeSpanBody()
        for queue_id in range(config.write_queue_nums):
            if queue_id % QUEUES == QUEUES - 1:
                yield None
            span = yield from reading(partial(self._span, header.group, header.topic, queue_id))
            answer.consume_time_span_set.append(span)
        return (yield from answer_steps(QUERY_CONSUME_TIME_SPAN, request, answer, channel.max_frame_bytes))

    def correction_offsets(self, channel: Channel, request: Command) -> Steps[Command]:
        """308: the lowest offset of all groups in each queue; `NO_CORRECTION` where ``compare_group`` is behind it."""
        header = QUERY_CORRECTION_OFFSET.header(request)
        topic = header.topic
        self._existing(topic)
        left_out = {group.strip() for group in (header.filter_groups or "").split(",")}
        lowest: dict[int, int] = {}
        groups = yield from self._offsets.groups_of(topic)
        for number, group in enumerate(groups, 1):
            if number % TOPICS == 0:
                yield None
            if group not in left_out:
                self._lower(lowest, topic, self._offsets.queues_of(group, topic))
        for queue_id, offset in self._offsets.queues_of(header.compare_group, topic).items():
            if lowest.get(queue_id, NO_CORRECTION) > offset:
                lowest[queue_id] = NO_CORRECTION
        return answer_with(QUERY_CORRECTION_OFFSET, request, CorrectionOffsets(lowest))

    def _lower(self, lowest: dict[int, int], topic: str, offsets: Mapping[int, int]) -> None:
        """Lower ``lowest`` to ``offsets``, ignoring offsets of messages that are no longer stored."""
        for queue_id, offset in offsets.items():
            if offset >= self._store.shown_min_offset(topic, queue_id):
                lowest[queue_id] = min(offset, lowest.get(queue_id, offset))

    def _existing(self, topic: str) -> TopicConfig:
        config = self._topics.get(topic)
        if config is None:
            raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist")
        return config

    def _progress(self, group: str, topic: str, rows: dict[MessageQueue, ConsumeOffset]) -> Steps[None]:
        """Add the topic's queues to ``rows``."""
        config = self._topics.get(topic)
        members = self._clients.consumer_group(group)
        pulled = furthest_pulled(members.members, group, topic) if members else {}
        for queue_id in range(config.read_queue_nums if config else 0):
            # The rows of earlier topics count, too: many topics with one queue take as long as one topic with many.
            if len(rows) % QUEUES == QUEUES - 1:
                yield None
            row = yield from reading(partial(self._consume_offset, group, topic, queue_id, pulled.get(queue_id, 0)))
            rows[MessageQueue(topic, self._identity.broker_name, queue_id)] = row

    def _consume_offset(self, group: str, topic: str, queue_id: int, pulled: int) -> ConsumeOffset:
        consumed = max(self._offsets.query(group, topic, queue_id), 0)
        last_ms = self._store.store_time(topic, queue_id, consumed - 1) if consumed > 0 else 0
        end = self._store.readable_end(topic, queue_id)
        return ConsumeOffset(end, consumed, max(consumed, pulled), max(last_ms, 0))

    def _span(self, group: str, topic: str, queue_id: int) -> QueueTimeSpan:
        store, end = self._store, self._store.max_offset(topic, queue_id)
        first_ms = store.first_store_time(topic, queue_id)
        consumed = self._offsets.query(group, topic, queue_id)
        delay_ms = 0
        if consumed < end:
            # A group without an offset, or whose next message was deleted, lags from the first stored message on.
            next_ms = store.store_time(topic, queue_id, max(consumed, store.min_offset(topic, queue_id)))
            delay_ms = max(self._clock.now_ms() - next_ms, 0) if next_ms >= 0 else 0
        return QueueTimeSpan(
            MessageQueue(topic, self._identity.broker_name, queue_id),
            min_time_stamp=first_ms,
            max_time_stamp=store.store_time(topic, queue_id, end - 1) if end > 0 else -1,
            consume_time_stamp=store.store_time(topic, queue_id, consumed - 1) if consumed > 0 else first_ms,
            delay_time=delay_ms,
        )
