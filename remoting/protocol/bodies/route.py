"""The route of a topic: the answer to 105, and the body of 217."""

from dataclasses import dataclass

from remoting.protocol.bodies.body import Body, member
from remoting.protocol.bodies.kinds import FLAG, INT, TEXT, body_of, list_of, map_by_int, map_of
from remoting.protocol.bodies.mapping import TopicQueueMappingInfo


@dataclass(slots=True)
class BrokerData(Body):
    """The brokers of one name: id (0 is the master) to address."""

    cluster: str = member(TEXT, "")
    broker_name: str = member(TEXT, "")
    broker_addrs: dict[int, str] = member(map_by_int(TEXT))
    zone_name: str | None = member(TEXT, None)
    enable_acting_master: bool = member(FLAG, False)


@dataclass(slots=True)
class QueueData(Body):
    """The queues that one broker name has of the topic."""

    broker_name: str = member(TEXT, "")
    read_queue_nums: int = member(INT, 0)
    write_queue_nums: int = member(INT, 0)
    perm: int = member(INT, 0)
    topic_sys_flag: int = member(INT, 0)


@dataclass(slots=True)
class TopicRouteData(Body):
    """The route of a topic. ``order_topic_conf`` is like "broker-a:4;broker-b:4"."""

    queue_datas: list[QueueData] = member(list_of(body_of(QueueData)))
    broker_datas: list[BrokerData] = member(list_of(body_of(BrokerData)))
    order_topic_conf: str | None = member(TEXT, None)
    filter_server_table: dict[str, list[str]] = member(map_of(list_of(TEXT)))
    topic_queue_mapping_by_broker: dict[str, TopicQueueMappingInfo] | None = member(
        map_of(body_of(TopicQueueMappingInfo)), None
    )
