"""Tables that slaves copy, of features that only RocketMQ's brokers have: timers (61)."""

from dataclasses import dataclass

from remoting.protocol.bodies.body import Body, member
from remoting.protocol.bodies.data_version import DataVersion
from remoting.protocol.bodies.kinds import LONG, body_of, map_of


@dataclass(slots=True)
class TimerCount(Body):
    """Timed messages of a topic that are not due yet."""

    count: int = member(LONG, 0)
    time_stamp: int = member(LONG, 0)


@dataclass(slots=True)
class TimerMetrics(Body):
    """61: by topic."""

    timing_count: dict[str, TimerCount] = member(map_of(body_of(TimerCount)))
    data_version: DataVersion = member(body_of(DataVersion))
