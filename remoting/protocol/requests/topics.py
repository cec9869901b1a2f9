"""Topics of a broker: 17, 18, 21, 202, 215, 300, 305, 351, 513, 5002."""

from typing import Final

from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.message.queue import MessageQueue
from skylark.mqcommon.names import perm_text
from skylark.remoting.protocol.body import (
    FLAG,
    INT,
    LONG,
    REAL,
    TEXT,
    Body,
    DataVersion,
    body_of,
    choice,
    list_of,
    map_by_int,
    map_by_queue,
    map_of,
    member,
)
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.header import Header, optional, required
from skylark.remoting.protocol.request import NOTHING, Request, SlaveAnswer
from skylark.remoting.protocol.rights import CREATE, DELETE, GET, GET_CLUSTER, Need, need_topic, of_body, on_topic
from skylark.remoting.protocol.scalars import read_flag, read_int, read_text


@lazy_dataclass(slots=True)
class TopicQueueMappingInfo(Body):
    """A broker's part in a static topic."""

    topic: str = member(TEXT, "")
    scope: str = member(TEXT, "__global__")
    total_queues: int = member(INT, 0)
    bname: str = member(TEXT, "")
    epoch: int = member(LONG, 0)
    dirty: bool = member(FLAG, False)
    curr_id_map: dict[int, int] = member(map_by_int(INT))


@lazy_dataclass(slots=True)
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


@lazy_dataclass(slots=True)
class TopicQueueMappingDetail(Body):
    """A broker's part in a static topic, with the stretches of each queue."""

    topic: str = member(TEXT, "")
    scope: str = member(TEXT, "__global__")
    total_queues: int = member(INT, 0)
    bname: str = member(TEXT, "")
    epoch: int = member(LONG, 0)
    dirty: bool = member(FLAG, False)
    curr_id_map: dict[int, int] = member(map_by_int(INT))
    hosted_queues: dict[int, list[LogicQueueMappingItem]] = member(map_by_int(list_of(body_of(LogicQueueMappingItem))))


@lazy_dataclass(slots=True)
class StaticTopicTable(Body):
    """All static topics of a broker, as RocketMQ writes them to topicQueueMapping.json."""

    data_version: DataVersion = member(body_of(DataVersion))
    topic_queue_mapping_info_map: dict[str, TopicQueueMappingDetail] = member(map_of(body_of(TopicQueueMappingDetail)))


TOPIC_FILTER_TYPE = choice("SINGLE_TAG", "MULTI_TAG")

#: Bits of ``topic_sys_flag`` for RocketMQ's units, which are clusters that mirror each other.
TOPIC_UNIT: Final = 1
TOPIC_UNIT_SUB: Final = 2


@lazy_dataclass(slots=True)
class TopicConfig(Body):
    """How a broker keeps a topic.

    ``created_ms``, Skylark's own: when this broker's topic of the name was made, which tells it from an earlier topic
    of this name. None: not known, as in stores of RocketMQ and of older versions. The stamp is no setting: two brokers
    keep a topic alike although each has made it at its own time.
    """

    topic_name: str = member(TEXT, "")
    read_queue_nums: int = member(INT, 16)
    write_queue_nums: int = member(INT, 16)
    perm: int = member(INT, 6)
    topic_filter_type: str = member(TOPIC_FILTER_TYPE, "SINGLE_TAG")
    topic_sys_flag: int = member(INT, 0)
    order: bool = member(FLAG, False)
    attributes: dict[str, str] = member(map_of(TEXT))
    created_ms: int | None = member(LONG, None, compare=False)

    def __str__(self) -> str:
        """RocketMQ's ``TopicConfig.toString``: its tools print it, and so do refusals and logs."""
        attributes = ", ".join(f"{name}={value}" for name, value in self.attributes.items())
        return (
            f"TopicConfig [topicName={self.topic_name}, readQueueNums={self.read_queue_nums},"
            f" writeQueueNums={self.write_queue_nums}, perm={perm_text(self.perm)},"
            f" topicFilterType={self.topic_filter_type}, topicSysFlag={self.topic_sys_flag},"
            f" order={str(self.order).lower()}, attributes={{{attributes}}}]"
        )


@lazy_dataclass(slots=True)
class TopicConfigAndMapping(TopicConfig):
    """A topic, and for a static one the broker's part in it (351)."""

    mapping_detail: TopicQueueMappingDetail | None = member(body_of(TopicQueueMappingDetail), None)

    @classmethod
    def of(cls, config: TopicConfig, mapping: TopicQueueMappingDetail | None) -> "TopicConfigAndMapping":
        """``config`` with ``mapping``."""
        return cls(
            config.topic_name,
            config.read_queue_nums,
            config.write_queue_nums,
            config.perm,
            config.topic_filter_type,
            config.topic_sys_flag,
            config.order,
            config.attributes,
            config.created_ms,
            mapping,
        )

    @property
    def config(self) -> TopicConfig:
        """The topic without the mapping."""
        return TopicConfig(
            self.topic_name,
            self.read_queue_nums,
            self.write_queue_nums,
            self.perm,
            self.topic_filter_type,
            self.topic_sys_flag,
            self.order,
            self.attributes,
            self.created_ms,
        )


@lazy_dataclass(slots=True)
class TopicConfigList(Body):
    """Topics to create or change (18). Their attributes are changes: ``+name``: value, ``-name``: ""."""

    topic_config_list: list[TopicConfig] = member(list_of(body_of(TopicConfig)))


@lazy_dataclass(slots=True)
class TopicConfigTable(Body):
    """All topics of a broker (21, and within 103). The mapping members are of 5.x: details in 21, infos in 103.

    Two members are for Skylark slaves. ``topic_deletions``: topic -> end of the log when its last deletion was done.
    ``drain``: when a drain of the master began and when it refuses sends, ms since 1970; zeros when it is not drained.
    """

    data_version: DataVersion = member(body_of(DataVersion))
    topic_config_table: dict[str, TopicConfig] = member(map_of(body_of(TopicConfig)))
    mapping_data_version: DataVersion = member(body_of(DataVersion))
    topic_queue_mapping_detail_map: dict[str, TopicQueueMappingDetail] = member(
        map_of(body_of(TopicQueueMappingDetail))
    )
    topic_queue_mapping_info_map: dict[str, TopicQueueMappingInfo] = member(map_of(body_of(TopicQueueMappingInfo)))
    topic_deletions: dict[str, int] | None = member(map_of(LONG), None)
    drain: list[int] | None = member(list_of(LONG), None)


@lazy_dataclass(slots=True)
class TopicList(Body):
    """Names of topics (206, 224, 304, 5002).

    ``absent_topics``, Skylark's own, in 206: topics that only absent brokers have.
    """

    topic_list: list[str] = member(list_of(TEXT))
    broker_addr: str | None = member(TEXT, None)
    absent_topics: list[str] | None = member(list_of(TEXT), None)


@lazy_dataclass(slots=True)
class TopicOffset(Body):
    """The offsets of one queue."""

    min_offset: int = member(LONG, 0)
    max_offset: int = member(LONG, 0)
    last_update_timestamp: int = member(LONG, 0)


@lazy_dataclass(slots=True)
class TopicStatsTable(Body):
    """All queues of a topic on one broker (202)."""

    offset_table: dict[MessageQueue, TopicOffset] = member(map_by_queue(body_of(TopicOffset)))
    topic_put_tps: float = member(REAL, 0.0)


@lazy_dataclass(slots=True)
class GroupList(Body):
    """Names of groups (300)."""

    group_list: list[str] = member(list_of(TEXT))


@lazy_dataclass(slots=True)
class CreateTopicRequestHeader(Header):
    """17: create or change a topic. ``attributes`` is like "+k=v,-k"."""

    topic: str = required(read_text)
    default_topic: str = required(read_text)
    read_queue_nums: int = required(read_int)
    write_queue_nums: int = required(read_int)
    perm: int = required(read_int)
    topic_filter_type: str = required(read_text)
    order: bool = required(read_flag)
    topic_sys_flag: int | None = optional(read_int)
    attributes: str | None = optional(read_text)
    force: bool | None = optional(read_flag)


@lazy_dataclass(slots=True)
class GetAllTopicConfigRequestHeader(Header):
    """21: all topics of a broker, or some by number. Older callers send no header, and get all."""

    topic_seq: int | None = optional(read_int)
    data_version: str | None = optional(read_text)
    max_topic_num: int | None = optional(read_int)


@lazy_dataclass(slots=True)
class GetAllTopicConfigResponseHeader(Header):
    """How many topics there are."""

    total_topic_num: int | None = optional(read_int)


@lazy_dataclass(slots=True)
class TopicRequestHeader(Header):
    """202, 215, 217, 300: about one topic."""

    topic: str = required(read_text)


@lazy_dataclass(slots=True)
class GetTopicConfigRequestHeader(Header):
    """351: the settings of a topic.

    ``lo`` True: the configuration on this broker only, for static topics, which span several brokers.
    """

    topic: str = required(read_text)
    lo: bool | None = optional(read_flag)


#: What a slave answers to changes of topics and groups, which it copies from its master.
NO_CHANGE_ON_SLAVE = SlaveAnswer(
    ResponseCode.SYSTEM_ERROR,
    "Can't modify topic or subscription group from slave broker, please execute it from master broker.",
)
#: mqadmin deletes a topic on masters and slaves, and stops at the first refusal. A slave follows its master.
_DELETED_BY_MASTER = SlaveAnswer(ResponseCode.SUCCESS)


def _create_topics_needs(body: TopicConfigList) -> list[Need]:
    return [need_topic(config.topic_name, CREATE) for config in body.topic_config_list]


def _delete_topics_needs(body: TopicList) -> list[Need]:
    return [need_topic(name, DELETE) for name in body.topic_list]


UPDATE_AND_CREATE_TOPIC = Request(
    17,
    CreateTopicRequestHeader,
    NOTHING,
    NOTHING,
    NOTHING,
    right=on_topic(CREATE),
    on_slave=NO_CHANGE_ON_SLAVE,
)
UPDATE_AND_CREATE_TOPIC_LIST = Request(
    18,
    NOTHING,
    TopicConfigList,
    NOTHING,
    NOTHING,
    right=of_body(_create_topics_needs, like=on_topic(CREATE)),
    on_slave=NO_CHANGE_ON_SLAVE,
)
GET_ALL_TOPIC_CONFIG = Request(
    21,
    GetAllTopicConfigRequestHeader,
    NOTHING,
    GetAllTopicConfigResponseHeader,
    TopicConfigTable,
    right=GET_CLUSTER,
)
GET_TOPIC_STATS_INFO = Request(
    202,
    TopicRequestHeader,
    NOTHING,
    NOTHING,
    TopicStatsTable,
    right=on_topic(GET),
)
DELETE_TOPIC_IN_BROKER = Request(
    215,
    TopicRequestHeader,
    NOTHING,
    NOTHING,
    NOTHING,
    right=on_topic(DELETE),
    on_slave=_DELETED_BY_MASTER,
)
DELETE_TOPIC_IN_BROKER_LIST = Request(
    5002,
    NOTHING,
    TopicList,
    NOTHING,
    NOTHING,
    right=of_body(_delete_topics_needs, like=on_topic(DELETE)),
    on_slave=_DELETED_BY_MASTER,
)
QUERY_TOPIC_CONSUME_BY_WHO = Request(
    300,
    TopicRequestHeader,
    NOTHING,
    NOTHING,
    GroupList,
    right=on_topic(GET),
)
GET_SYSTEM_TOPIC_LIST_FROM_BROKER = Request(
    305,
    NOTHING,
    NOTHING,
    NOTHING,
    TopicList,
    right=GET_CLUSTER,
)
GET_TOPIC_CONFIG = Request(
    351,
    GetTopicConfigRequestHeader,
    NOTHING,
    NOTHING,
    TopicConfigAndMapping,
    right=on_topic(GET),
)
UPDATE_AND_CREATE_STATIC_TOPIC = Request(
    513,
    CreateTopicRequestHeader,
    TopicQueueMappingDetail,
    NOTHING,
    NOTHING,
    right=on_topic(CREATE),
    on_slave=NO_CHANGE_ON_SLAVE,
)
