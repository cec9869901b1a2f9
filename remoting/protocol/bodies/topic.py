"""Topics: their configuration, lists of names, and the offsets of their queues."""

from dataclasses import dataclass
from typing import Final

from mqcommon.message.queue import MessageQueue
from mqcommon.names import perm_text
from remoting.protocol.bodies.body import Body, member
from remoting.protocol.bodies.data_version import DataVersion
from remoting.protocol.bodies.kinds import (
    FLAG,
    INT,
    LONG,
    REAL,
    TEXT,
    body_of,
    choice,
    list_of,
    map_by_queue,
    map_of,
)
from remoting.protocol.bodies.mapping import TopicQueueMappingDetail, TopicQueueMappingInfo

TOPIC_FILTER_TYPE = choice("SINGLE_TAG", "MULTI_TAG")

#: Bits of ``topic_sys_flag`` for RocketMQ's units, which are clusters that mirror each other.
TOPIC_UNIT: Final = 1
TOPIC_UNIT_SUB: Final = 2


@dataclass(slots=True)
class TopicConfig(Body):
    """How a broker keeps a topic."""

    topic_name: str = member(TEXT, "")
    read_queue_nums: int = member(INT, 16)
    write_queue_nums: int = member(INT, 16)
    perm: int = member(INT, 6)
    topic_filter_type: str = member(TOPIC_FILTER_TYPE, "SINGLE_TAG")
    topic_sys_flag: int = member(INT, 0)
    order: bool = member(FLAG, False)
    attributes: dict[str, str] = member(map_of(TEXT))

    def __str__(self) -> str:
        """RocketMQ's ``TopicConfig.toString``: its tools print it, and so do refusals and logs."""
        attributes = ", ".join(f"{name}={value}" for name, value in self.attributes.items())
        return (
            f"TopicConfig [topicName={self.topic_name}, readQueueNums={self.read_queue_nums},"
            f" writeQueueNums={self.write_queue_nums}, perm={perm_text(self.perm)},"
            f" topicFilterType={self.topic_filter_type}, topicSysFlag={self.topic_sys_flag},"
            f" order={str(self.order).lower()}, attributes={{{attributes}}}]"
        )


@dataclass(slots=True)
class TopicConfigList(Body):
    """Topics to create or change (18). Their attributes are changes: ``+name``: value, ``-name``: ""."""

    topic_config_list: list[TopicConfig] = member(list_of(body_of(TopicConfig)))


@dataclass(slots=True)
class TopicConfigTable(Body):
    """All topics of a broker (21, and within 103). The mapping members are of 5.x and stay empty."""

    data_version: DataVersion = member(body_of(DataVersion))
    topic_config_table: dict[str, TopicConfig] = member(map_of(body_of(TopicConfig)))
    mapping_data_version: DataVersion = member(body_of(DataVersion))
    topic_queue_mapping_detail_map: dict[str, TopicQueueMappingDetail] = member(
        map_of(body_of(TopicQueueMappingDetail))
    )
    topic_queue_mapping_info_map: dict[str, TopicQueueMappingInfo] = member(map_of(body_of(TopicQueueMappingInfo)))


@dataclass(slots=True)
class TopicList(Body):
    """Names of topics (206, 224, 304)."""

    topic_list: list[str] = member(list_of(TEXT))
    broker_addr: str | None = member(TEXT, None)


@dataclass(slots=True)
class TopicOffset(Body):
    """The offsets of one queue."""

    min_offset: int = member(LONG, 0)
    max_offset: int = member(LONG, 0)
    last_update_timestamp: int = member(LONG, 0)


@dataclass(slots=True)
class TopicStatsTable(Body):
    """All queues of a topic on one broker (202)."""

    offset_table: dict[MessageQueue, TopicOffset] = member(map_by_queue(body_of(TopicOffset)))
    topic_put_tps: float = member(REAL, 0.0)


@dataclass(slots=True)
class GroupList(Body):
    """Names of groups (300)."""

    group_list: list[str] = member(list_of(TEXT))
