"""Tables that slaves copy, of features that only RocketMQ's brokers have: timers (61), modes of consumption (402)."""

from dataclasses import dataclass

from remoting.protocol.bodies.body import Body, member
from remoting.protocol.bodies.data_version import DataVersion
from remoting.protocol.bodies.kinds import INT, LONG, TEXT, body_of, map_of


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


@dataclass(slots=True)
class MessageRequestMode(Body):
    """How a group consumes a topic: PULL or POP."""

    consumer_group: str = member(TEXT, "")
    topic: str = member(TEXT, "")
    mode: str = member(TEXT, "PULL")
    pop_share_queue_num: int = member(INT, 0)


@dataclass(slots=True)
class MessageRequestModes(Body):
    """402: by topic and group."""

    message_request_mode_map: dict[str, dict[str, MessageRequestMode]] = member(
        map_of(map_of(body_of(MessageRequestMode)))
    )
