"""The progress of consumers (208) and a broker's counters (315)."""

from dataclasses import dataclass

from mqcommon.message.queue import MessageQueue
from remoting.protocol.bodies.body import Body, member
from remoting.protocol.bodies.kinds import LONG, REAL, body_of, map_by_queue


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
