"""The progress of consumers (208, 303, 317) and a broker's counters (315)."""

from dataclasses import dataclass

from mqcommon.message.queue import MessageQueue
from remoting.protocol.bodies.body import Body, member
from remoting.protocol.bodies.kinds import (
    LONG,
    REAL,
    TEXT,
    Kind,
    body_of,
    list_of,
    map_by_queue,
    map_of,
    read_queue,
    write_queue,
)


@dataclass(slots=True)
class ConsumeOffset(Body):
    """A group's progress in one queue."""

    broker_offset: int = member(LONG, 0)
    consumer_offset: int = member(LONG, 0)
    pull_offset: int = member(LONG, 0)
    last_timestamp: int = member(LONG, 0)


@dataclass(slots=True)
class ConsumeStats(Body):
    """A group's progress in all its queues (208)."""

    offset_table: dict[MessageQueue, ConsumeOffset] = member(map_by_queue(body_of(ConsumeOffset)))
    consume_tps: float = member(REAL, 0.0)


@dataclass(slots=True)
class ConsumeStatsList(Body):
    """All groups of a broker (317): for each a map with one key, the group, to its progress in each topic."""

    consume_stats_list: list[dict[str, list[ConsumeStats]]] = member(list_of(map_of(list_of(body_of(ConsumeStats)))))
    broker_addr: str = member(TEXT, "")
    total_diff: int = member(LONG, 0)
    total_inflight_diff: int = member(LONG, 0)


@dataclass(slots=True)
class QueueTimeSpan(Body):
    """Store times in one queue: of its first and last message, and of the last one that the group has consumed.

    ``delay_time``: how long the group's next message has been waiting.
    """

    message_queue: MessageQueue | None = member(Kind(read_queue, write_queue), None)
    min_time_stamp: int = member(LONG, 0)
    max_time_stamp: int = member(LONG, 0)
    consume_time_stamp: int = member(LONG, 0)
    delay_time: int = member(LONG, 0)


@dataclass(slots=True)
class QueryConsumeTimeSpanBody(Body):
    """A group's progress in time, in each queue of a topic (303)."""

    consume_time_span_set: list[QueueTimeSpan] = member(list_of(body_of(QueueTimeSpan)))


@dataclass(slots=True)
class BrokerStatsItem(Body):
    """One counter over one span: sum, per second, and average value per call."""

    sum: int = member(LONG, 0)
    tps: float = member(REAL, 0.0)
    avgpt: float = member(REAL, 0.0)


@dataclass(slots=True)
class BrokerStatsData(Body):
    """One counter over the last minute, hour and day (315)."""

    stats_minute: BrokerStatsItem = member(body_of(BrokerStatsItem))
    stats_hour: BrokerStatsItem = member(body_of(BrokerStatsItem))
    stats_day: BrokerStatsItem = member(body_of(BrokerStatsItem))
