"""NameServers: routes and topics (105, 106, 205, 206, 216, 217, 224, 304, 311 - 313, 327), key-value pairs (100 - 102,
219), options (318, 319). The requests of brokers are in registrations.py.
"""

from remoting.protocol.bodies.cluster import ClusterInfo
from remoting.protocol.bodies.kvtable import KVTable
from remoting.protocol.bodies.route import TopicRouteData
from remoting.protocol.bodies.topic import TopicList
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.headers.namesrv import (
    AddWritePermResponseHeader,
    BrokerNameRequestHeader,
    ClusterRequestHeader,
    DeleteTopicFromNamesrvRequestHeader,
    GetKVConfigResponseHeader,
    GetRouteInfoRequestHeader,
    KVConfigRequestHeader,
    NamespaceRequestHeader,
    PutKVConfigRequestHeader,
    WipeWritePermResponseHeader,
)
from remoting.protocol.headers.topics import TopicRequestHeader
from remoting.protocol.requests.request import NOTHING, Request

# --- routes and topics

GET_ROUTEINFO_BY_TOPIC = Request(
    RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteInfoRequestHeader, NOTHING, NOTHING, TopicRouteData
)
GET_BROKER_CLUSTER_INFO = Request(RequestCode.GET_BROKER_CLUSTER_INFO, NOTHING, NOTHING, NOTHING, ClusterInfo)
WIPE_WRITE_PERM_OF_BROKER = Request(
    RequestCode.WIPE_WRITE_PERM_OF_BROKER, BrokerNameRequestHeader, NOTHING, WipeWritePermResponseHeader, NOTHING
)
ADD_WRITE_PERM_OF_BROKER = Request(
    RequestCode.ADD_WRITE_PERM_OF_BROKER, BrokerNameRequestHeader, NOTHING, AddWritePermResponseHeader, NOTHING
)
GET_ALL_TOPIC_LIST_FROM_NAMESERVER = Request(
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, NOTHING, NOTHING, NOTHING, TopicList
)
DELETE_TOPIC_IN_NAMESRV = Request(
    RequestCode.DELETE_TOPIC_IN_NAMESRV, DeleteTopicFromNamesrvRequestHeader, NOTHING, NOTHING, NOTHING
)
REGISTER_TOPIC_IN_NAMESRV = Request(
    RequestCode.REGISTER_TOPIC_IN_NAMESRV, TopicRequestHeader, TopicRouteData, NOTHING, NOTHING
)
GET_TOPICS_BY_CLUSTER = Request(RequestCode.GET_TOPICS_BY_CLUSTER, ClusterRequestHeader, NOTHING, NOTHING, TopicList)
GET_SYSTEM_TOPIC_LIST_FROM_NS = Request(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS, NOTHING, NOTHING, NOTHING, TopicList)
GET_UNIT_TOPIC_LIST = Request(RequestCode.GET_UNIT_TOPIC_LIST, NOTHING, NOTHING, NOTHING, TopicList)
GET_HAS_UNIT_SUB_TOPIC_LIST = Request(RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST, NOTHING, NOTHING, NOTHING, TopicList)
GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST = Request(
    RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, NOTHING, NOTHING, NOTHING, TopicList
)

# --- key-value pairs and options

PUT_KV_CONFIG = Request(RequestCode.PUT_KV_CONFIG, PutKVConfigRequestHeader, NOTHING, NOTHING, NOTHING)
# QUERY_NOT_FOUND: the key or the namespace does not exist.
GET_KV_CONFIG = Request(
    RequestCode.GET_KV_CONFIG, KVConfigRequestHeader, NOTHING, GetKVConfigResponseHeader, NOTHING,
    accepts=(ResponseCode.QUERY_NOT_FOUND,),
)  # fmt: skip
DELETE_KV_CONFIG = Request(RequestCode.DELETE_KV_CONFIG, KVConfigRequestHeader, NOTHING, NOTHING, NOTHING)
GET_KVLIST_BY_NAMESPACE = Request(
    RequestCode.GET_KVLIST_BY_NAMESPACE, NamespaceRequestHeader, NOTHING, NOTHING, KVTable,
    accepts=(ResponseCode.QUERY_NOT_FOUND,),
)  # fmt: skip
# Properties text.
UPDATE_NAMESRV_CONFIG = Request(RequestCode.UPDATE_NAMESRV_CONFIG, NOTHING, bytes, NOTHING, NOTHING)
GET_NAMESRV_CONFIG = Request(RequestCode.GET_NAMESRV_CONFIG, NOTHING, NOTHING, NOTHING, bytes)
