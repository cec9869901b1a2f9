"""Static topics: which broker holds which logical queue. Only read and passed on: Skylark has no static topics."""

from dataclasses import dataclass

from remoting.protocol.bodies.body import Body, member
from remoting.protocol.bodies.kinds import FLAG, INT, LONG, TEXT, body_of, list_of, map_by_int


@dataclass(slots=True)
class TopicQueueMappingInfo(Body):
    """A broker's part in a static topic."""

    topic: str = member(TEXT, "")
    scope: str = member(TEXT, "__global__")
    total_queues: int = member(INT, 0)
    bname: str = member(TEXT, "")
    epoch: int = member(LONG, 0)
    dirty: bool = member(FLAG, False)
    curr_id_map: dict[int, int] = member(map_by_int(INT))


@dataclass(slots=True)
class LogicQueueMappingItem(Body):
    """A stretch of a logical queue on one broker."""

    gen: int = member(INT, 0)
    queue_id: int = member(INT, 0)
    bname: str = member(TEXT, "")
    logic_offset: int = member(LONG, 0)
    start_offset: int = member(LONG, 0)
    end_offset: int = member(LONG, -1)
    time_of_start: int = member(LONG, -1)
    time_of_end: int = member(LONG, -1)


@dataclass(slots=True)
class TopicQueueMappingDetail(Body):
    """The same, with the stretches of each queue."""

    topic: str = member(TEXT, "")
    scope: str = member(TEXT, "__global__")
    total_queues: int = member(INT, 0)
    bname: str = member(TEXT, "")
    epoch: int = member(LONG, 0)
    dirty: bool = member(FLAG, False)
    curr_id_map: dict[int, int] = member(map_by_int(INT))
    hosted_queues: dict[int, list[LogicQueueMappingItem]] = member(map_by_int(list_of(body_of(LogicQueueMappingItem))))
