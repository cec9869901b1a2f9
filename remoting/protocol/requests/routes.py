"""NameServers: routes and topics (105, 106, 205, 206, 216, 217, 224, 304, 311 - 313, 327), key-value pairs (100 - 102,
219), options (318, 319), and Skylark's own: changes of routes (7104), a broker that is gone for good (7106). The
requests of brokers are in registrations.py.
"""

from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.remoting.protocol.body import (
    FLAG,
    INT,
    LONG,
    TEXT,
    Body,
    KVTable,
    body_of,
    list_of,
    map_by_int,
    map_of,
    member,
)
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.header import Header, optional, required
from skylark.remoting.protocol.request import NOTHING, Request
from skylark.remoting.protocol.requests.topics import TopicList, TopicQueueMappingInfo, TopicRequestHeader
from skylark.remoting.protocol.scalars import read_flag, read_int, read_long, read_text


@lazy_dataclass(slots=True)
class PutKVConfigRequestHeader(Header):
    """100: a key of a namespace, and its new value."""

    namespace: str = required(read_text)
    key: str = required(read_text)
    value: str = required(read_text)


@lazy_dataclass(slots=True)
class KVConfigRequestHeader(Header):
    """101 and 102: one key."""

    namespace: str = required(read_text)
    key: str = required(read_text)


@lazy_dataclass(slots=True)
class GetKVConfigResponseHeader(Header):
    """The answer to 101."""

    value: str | None = optional(read_text)


@lazy_dataclass(slots=True)
class NamespaceRequestHeader(Header):
    """219: all keys of a namespace."""

    namespace: str = required(read_text)


@lazy_dataclass(slots=True)
class RegisterBrokerRequestHeader(Header):
    """103: register a broker and its topics. ``body_crc32`` 0 or absent is not checked.

    Between Skylark and Skylark it may come in parts, which have a number; the last one is marked. With a base the
    topics are those that have changed since that version. ``advertised_addresses``, also Skylark's own, has the form
    that `parse_advertised` reads: the addresses that clients are given by their network, in place of ``broker_addr``.
    """

    broker_name: str = required(read_text)
    broker_addr: str = required(read_text)
    cluster_name: str = required(read_text)
    ha_server_addr: str = required(read_text)
    broker_id: int = required(read_long)
    heartbeat_timeout_millis: int | None = optional(read_long)
    enable_acting_master: bool | None = optional(read_flag)
    compressed: bool | None = optional(read_flag)
    body_crc32: int | None = optional(read_int)
    part: int | None = optional(read_int)
    is_last_part: bool | None = optional(read_flag)
    base_state_version: int | None = optional(read_long)
    base_timestamp: int | None = optional(read_long)
    base_counter: int | None = optional(read_long)
    advertised_addresses: str | None = optional(read_text)


@lazy_dataclass(slots=True)
class RegisterBrokerResponseHeader(Header):
    """The answer to 103: for a slave, the addresses of its master. The other fields are Skylark's own.

    ``contested_by``: the address of another broker that registers with the same name and id. ``takes_parts``: this
    NameServer accepts registrations in parts. ``whole_needed``: it lacks what the part or the change is based on.
    ``known_brokers`` and ``gone_brokers``: see `QueryDataVersionResponseHeader`.
    """

    ha_server_addr: str | None = optional(read_text)
    master_addr: str | None = optional(read_text)
    contested_by: str | None = optional(read_text)
    takes_parts: bool | None = optional(read_flag)
    whole_needed: bool | None = optional(read_flag)
    known_brokers: str | None = optional(read_text)
    gone_brokers: str | None = optional(read_text)


@lazy_dataclass(slots=True)
class BrokerRequestHeader(Header):
    """104 and 322: one broker.

    ``known_crc``, Skylark's own, in 322: the `names_crc` of all brokers of its cluster that the broker knows, itself
    included.
    """

    broker_name: str = required(read_text)
    broker_addr: str = required(read_text)
    cluster_name: str = required(read_text)
    broker_id: int = required(read_long)
    known_crc: int | None = optional(read_int)


@lazy_dataclass(slots=True)
class QueryDataVersionResponseHeader(Header):
    """The answer to 322: whether the broker must register fully.

    ``known_brokers`` and ``gone_brokers``, Skylark's own, come when the NameServer and the broker know different
    brokers of the cluster: the names that the NameServer knows, and the names of brokers that are gone for good, one
    name a line.
    """

    changed: bool = required(read_flag)
    takes_parts: bool | None = optional(read_flag)
    known_brokers: str | None = optional(read_text)
    gone_brokers: str | None = optional(read_text)


@lazy_dataclass(slots=True)
class GetRouteInfoRequestHeader(Header):
    """105: the topic whose route is asked for."""

    topic: str = required(read_text)
    accept_standard_json_only: bool | None = optional(read_flag)


@lazy_dataclass(slots=True)
class WatchRoutesRequestHeader(Header):
    """7104, Skylark's own: watch routes. The body names the topics; ``version``: of the routes that the client has."""

    version: str = optional(read_text, "")


@lazy_dataclass(slots=True)
class WatchRoutesResponseHeader(Header):
    """The answer to 7104, whose body has the changed topics. It comes with a change, or when the wait ends.

    ``whole``: any of the client's topics may have changed. ``held`` false: too many wait, so ask for routes instead.
    """

    version: str = required(read_text)
    whole: bool | None = optional(read_flag)
    held: bool | None = optional(read_flag)


@lazy_dataclass(slots=True)
class BrokerNameRequestHeader(Header):
    """205 and 327: take the write permission from all topics of a broker name, or give it back.

    7106, Skylark's own: the broker is away, and will not come back.
    """

    broker_name: str = required(read_text)


@lazy_dataclass(slots=True)
class WipeWritePermResponseHeader(Header):
    """The answer to 205: from how many topics the permission was taken."""

    wipe_topic_count: int = required(read_int)


@lazy_dataclass(slots=True)
class AddWritePermResponseHeader(Header):
    """The answer to 327: to how many topics the permission was given back."""

    add_topic_count: int = required(read_int)


@lazy_dataclass(slots=True)
class DeleteTopicFromNamesrvRequestHeader(Header):
    """216: delete a topic's route, in one cluster or everywhere."""

    topic: str = required(read_text)
    cluster_name: str | None = optional(read_text)


@lazy_dataclass(slots=True)
class ClusterRequestHeader(Header):
    """224: topics of a cluster."""

    cluster: str = required(read_text)


@lazy_dataclass(slots=True)
class BrokerData(Body):
    """The brokers of one name: id (0 is the master) to address."""

    cluster: str = member(TEXT, "")
    broker_name: str = member(TEXT, "")
    broker_addrs: dict[int, str] = member(map_by_int(TEXT))
    zone_name: str | None = member(TEXT, None)
    enable_acting_master: bool = member(FLAG, False)


@lazy_dataclass(slots=True)
class QueueData(Body):
    """The queues that one broker name has of the topic.

    ``topic_created_ms``, Skylark's own: the creation stamp of the topic there, see `TopicConfig`.
    """

    broker_name: str = member(TEXT, "")
    read_queue_nums: int = member(INT, 0)
    write_queue_nums: int = member(INT, 0)
    perm: int = member(INT, 0)
    topic_sys_flag: int = member(INT, 0)
    topic_created_ms: int | None = member(LONG, None)


#: Why a broker is away: its connection ended, or nothing was heard from it for long.
LOST = "lost"
#: The broker has unregistered, as brokers do when they are stopped.
STOPPED = "stopped"
#: Other brokers name the broker; it has not registered since the NameServer was started.
UNHEARD = "unheard"
#: The broker has registered, but its topics have not arrived in full.
NOT_WHOLE = "notWhole"


#: In the refusal of 105, before the names of the brokers: the topic is known, and all its brokers are away.
TOPIC_IS_AWAY = "It is on brokers that are away: "


@lazy_dataclass(slots=True)
class AbsentBroker(Body):
    """Skylark's own: a broker whose queues are in no route now. ``has_topic``: it has the topic, else it may have it.

    ``reason`` is one of the constants above.
    """

    broker_name: str = member(TEXT, "")
    cluster: str = member(TEXT, "")
    reason: str = member(TEXT, "")
    has_topic: bool = member(FLAG, False)


@lazy_dataclass(slots=True)
class TopicRouteData(Body):
    """The route of a topic. ``order_topic_conf`` is like "broker-a:4;broker-b:4".

    ``absent_brokers``, Skylark's own: brokers whose queues of the topic are missing here; None: none is known.
    """

    queue_datas: list[QueueData] = member(list_of(body_of(QueueData)))
    broker_datas: list[BrokerData] = member(list_of(body_of(BrokerData)))
    order_topic_conf: str | None = member(TEXT, None)
    filter_server_table: dict[str, list[str]] = member(map_of(list_of(TEXT)))
    topic_queue_mapping_by_broker: dict[str, TopicQueueMappingInfo] | None = member(
        map_of(body_of(TopicQueueMappingInfo)), None
    )
    absent_brokers: list[AbsentBroker] | None = member(list_of(body_of(AbsentBroker)), None)


@lazy_dataclass(slots=True)
class ClusterInfo(Body):
    """Brokers by name, broker names by cluster.

    ``contested``, Skylark's own: by name and id, the address of another broker that registers with the same ones.
    ``absent_brokers``, Skylark's own: brokers that are known and away; their ``has_topic`` here says whether the
    NameServer knows their topics.
    """

    broker_addr_table: dict[str, BrokerData] = member(map_of(body_of(BrokerData)))
    cluster_addr_table: dict[str, list[str]] = member(map_of(list_of(TEXT)))
    contested: dict[str, dict[int, str]] | None = member(map_of(map_by_int(TEXT)), None)
    absent_brokers: list[AbsentBroker] | None = member(list_of(body_of(AbsentBroker)), None)


@lazy_dataclass(slots=True)
class BrokerMemberGroup(Body):
    """The living members of a broker set, by id."""

    broker_addrs: dict[int, str] = member(map_by_int(TEXT))
    broker_name: str = member(TEXT, "")
    cluster: str = member(TEXT, "")


@lazy_dataclass(slots=True)
class MemberGroupAnswer(Body):
    """The answer to 901."""

    broker_member_group: BrokerMemberGroup = member(body_of(BrokerMemberGroup))


# --- routes and topics

GET_ROUTEINFO_BY_TOPIC = Request(105, GetRouteInfoRequestHeader, NOTHING, NOTHING, TopicRouteData)
WATCH_ROUTES = Request(7104, WatchRoutesRequestHeader, TopicList, WatchRoutesResponseHeader, TopicList)
#: In the greeting of a server that answers 7104.
WATCHES_ROUTES = "watchesRoutes"
#: In the greeting of a NameServer that takes registrations only from users that its conf file names.
GUARDS_REGISTRATIONS = "guardsRegistrations"
GET_BROKER_CLUSTER_INFO = Request(106, NOTHING, NOTHING, NOTHING, ClusterInfo)
WIPE_WRITE_PERM_OF_BROKER = Request(205, BrokerNameRequestHeader, NOTHING, WipeWritePermResponseHeader, NOTHING)
ADD_WRITE_PERM_OF_BROKER = Request(327, BrokerNameRequestHeader, NOTHING, AddWritePermResponseHeader, NOTHING)
FORGET_BROKER = Request(7106, BrokerNameRequestHeader, NOTHING, NOTHING, NOTHING)
GET_ALL_TOPIC_LIST_FROM_NAMESERVER = Request(206, NOTHING, NOTHING, NOTHING, TopicList)
DELETE_TOPIC_IN_NAMESRV = Request(216, DeleteTopicFromNamesrvRequestHeader, NOTHING, NOTHING, NOTHING)
REGISTER_TOPIC_IN_NAMESRV = Request(217, TopicRequestHeader, TopicRouteData, NOTHING, NOTHING)
GET_TOPICS_BY_CLUSTER = Request(224, ClusterRequestHeader, NOTHING, NOTHING, TopicList)
GET_SYSTEM_TOPIC_LIST_FROM_NS = Request(304, NOTHING, NOTHING, NOTHING, TopicList)
GET_UNIT_TOPIC_LIST = Request(311, NOTHING, NOTHING, NOTHING, TopicList)
GET_HAS_UNIT_SUB_TOPIC_LIST = Request(312, NOTHING, NOTHING, NOTHING, TopicList)
GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST = Request(313, NOTHING, NOTHING, NOTHING, TopicList)

# --- key-value pairs and options

PUT_KV_CONFIG = Request(100, PutKVConfigRequestHeader, NOTHING, NOTHING, NOTHING)
# QUERY_NOT_FOUND: the key or the namespace does not exist.
GET_KV_CONFIG = Request(
    101,
    KVConfigRequestHeader,
    NOTHING,
    GetKVConfigResponseHeader,
    NOTHING,
    accepts=(ResponseCode.QUERY_NOT_FOUND,),
)
DELETE_KV_CONFIG = Request(102, KVConfigRequestHeader, NOTHING, NOTHING, NOTHING)
GET_KVLIST_BY_NAMESPACE = Request(
    219,
    NamespaceRequestHeader,
    NOTHING,
    NOTHING,
    KVTable,
    accepts=(ResponseCode.QUERY_NOT_FOUND,),
)
# Properties text.
UPDATE_NAMESRV_CONFIG = Request(318, NOTHING, bytes, NOTHING, NOTHING)
GET_NAMESRV_CONFIG = Request(319, NOTHING, NOTHING, NOTHING, bytes)
