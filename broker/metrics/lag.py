"""How far each group is behind in each topic, from the tables of offsets and the ends of queues.

There may be a hundred thousand pairs, so the labels of a pair are kept from one collection to the next, and so is the
store time of the message that a group has to consume next: mostly neither has changed.
"""

from dataclasses import field
from functools import partial

from skylark.broker.cold_reads import reading
from skylark.broker.meta.clients import Clients
from skylark.broker.meta.consumer_offsets import ConsumerOffsets
from skylark.broker.meta.pull_positions import furthest_pulled
from skylark.broker.metrics.table import INFLIGHT, LAG, LAG_LATENCY, QUEUEING_LATENCY, READY
from skylark.broker.store.queue.consumequeue import ConsumeQueue
from skylark.broker.store.store import MessageStore
from skylark.mqcommon.clock import Clock
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.metrics.metric import Column, flag
from skylark.mqcommon.names import SYSTEM_GROUP_PREFIX, is_retry_topic, is_system_topic
from skylark.remoting.net.steps import Steps

# Pairs that one step handles: about two milliseconds.
PAIRS = 200
# The most store times that one collection asks a bucket for. Instead of the time of a further message in the bucket,
# the time of the first message in the log counts.
MAX_ASKED = 16
_SYSTEM_GROUP_PREFIX = SYSTEM_GROUP_PREFIX.lower()

_Place = tuple[str, int, int]


@lazy_dataclass(slots=True)
class Lags:
    """The columns of all lag metrics, with a row for each pair of group and topic."""

    labels: list[tuple[str, ...]] = field(default_factory=list)
    lag: list[int] = field(default_factory=list)
    latency_ms: list[int] = field(default_factory=list)
    inflight: list[int] = field(default_factory=list)
    ready: list[int] = field(default_factory=list)
    queueing_ms: list[int] = field(default_factory=list)
    #: Sums over the queues in which the group has offsets.
    ends: list[int] = field(default_factory=list)
    consumed: list[int] = field(default_factory=list)

    def columns(self) -> list[Column]:
        return [
            Column(LAG, self.labels, self.lag),
            Column(LAG_LATENCY, self.labels, self.latency_ms),
            Column(INFLIGHT, self.labels, self.inflight),
            Column(READY, self.labels, self.ready),
            Column(QUEUEING_LATENCY, self.labels, self.queueing_ms),
        ]


def is_system(topic: str, group: str = "") -> str:
    """The label ``is_system``."""
    return flag(is_system_topic(topic) or group.lower().startswith(_SYSTEM_GROUP_PREFIX))


class LagReader:
    """Reads all lags, in steps."""

    def __init__(self, store: MessageStore, offsets: ConsumerOffsets, clients: Clients, clock: Clock) -> None:
        self._store = store
        self._offsets = offsets
        self._clients = clients
        self._clock = clock
        self._labels: dict[str, tuple[str, ...]] = {}
        # Store times of messages that groups have to consume next.
        self._times: dict[_Place, int] = {}
        # How many store times this collection has asked the bucket for.
        self._asked = 0

    def read(self) -> Steps[Lags]:
        """The present lags."""
        lags = Lags()
        labels: dict[str, tuple[str, ...]] = {}
        times: dict[_Place, int] = {}
        queues: dict[str, dict[int, ConsumeQueue | None]] = {}
        table, now_ms = self._offsets.table(), self._clock.now_ms()
        self._asked = 0
        for number, key in enumerate(list(table), 1):
            if number % PAIRS == 0:
                yield None
            offsets = table.get(key)
            topic, _, group = key.partition("@")
            if not offsets or self._clients.has_left(group, topic):
                continue
            row = labels[key] = self._labels.get(key) or _labels(topic, group)
            of_topic = queues.setdefault(topic, {})
            pulled = self._pulled(group, topic)
            # Store times of the pair's oldest message that is not consumed, and of its oldest message that is not even
            # pulled. Without such a message the time is "now", so that its age is 0.
            lag = inflight = ends = consumed = 0
            oldest_ms = queueing_ms = now_ms
            for queue_id, offset in offsets.items():
                if queue_id not in of_topic:
                    of_topic[queue_id] = self._store.queues.find(topic, queue_id)
                queue = of_topic[queue_id]
                end = offset if queue is None else queue.next_offset
                ends += end
                consumed += offset
                next_pull = max(pulled.get(queue_id, 0), offset)
                inflight += next_pull - offset
                if queue is None or end <= offset:
                    continue
                lag += end - offset
                # Messages that retention has deleted do not count: the first remaining message counts.
                first = self._store.shown_min_offset(topic, queue_id)
                stored_ms = yield from self._stored_ms(times, queue, max(offset, first))
                if 0 < stored_ms < oldest_ms:
                    oldest_ms = stored_ms
                if next_pull > offset:
                    stored_ms = now_ms
                    if next_pull < end:
                        stored_ms = yield from self._stored_ms(times, queue, max(next_pull, first))
                if 0 < stored_ms < queueing_ms:
                    queueing_ms = stored_ms
            lags.labels.append(row)
            lags.lag.append(lag)
            lags.latency_ms.append(now_ms - oldest_ms)
            lags.inflight.append(inflight)
            lags.ready.append(max(lag - inflight, 0))
            lags.queueing_ms.append(now_ms - queueing_ms)
            lags.ends.append(ends)
            lags.consumed.append(consumed)
        # Keep the rows of this collection only: pairs that no longer exist must not be kept for ever.
        self._labels, self._times = labels, times
        return lags

    def _stored_ms(self, times: dict[_Place, int], queue: ConsumeQueue, offset: int) -> Steps[int]:
        """When the message at ``offset`` was stored; kept in ``times`` for the next collection."""
        place = queue.topic, queue.queue_id, offset
        stored_ms = times.get(place) or self._times.get(place, 0)
        if not stored_ms:
            if is_older := offset < queue.min_offset:
                self._asked += 1
                if self._asked > MAX_ASKED:
                    return (yield from self._stored_ms(times, queue, queue.min_offset))
            stored_ms = yield from reading(partial(self._store.store_time, *place))
            if is_older and stored_ms < 0:
                return stored_ms  # the next collection asks the bucket again
        times[place] = stored_ms
        return stored_ms

    def _pulled(self, group: str, topic: str) -> dict[int, int]:
        members = self._clients.consumer_group(group)
        return {} if members is None else furthest_pulled(members.members, group, topic)


def _labels(topic: str, group: str) -> tuple[str, ...]:
    return group, topic, flag(is_retry_topic(topic)), is_system(topic, group)
