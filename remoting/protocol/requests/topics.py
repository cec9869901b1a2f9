"""Topics of a broker: 17, 18, 21, 202, 215, 300, 305, 351."""

from remoting.protocol.bodies.topic import (
    GroupList,
    TopicConfig,
    TopicConfigList,
    TopicConfigTable,
    TopicList,
    TopicStatsTable,
)
from remoting.protocol.codes import RequestCode
from remoting.protocol.headers.topics import (
    CreateTopicRequestHeader,
    GetAllTopicConfigRequestHeader,
    GetAllTopicConfigResponseHeader,
    GetTopicConfigRequestHeader,
    TopicRequestHeader,
)
from remoting.protocol.requests.request import NOTHING, Request

UPDATE_AND_CREATE_TOPIC = Request(
    RequestCode.UPDATE_AND_CREATE_TOPIC, CreateTopicRequestHeader, NOTHING, NOTHING, NOTHING
)
UPDATE_AND_CREATE_TOPIC_LIST = Request(
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, NOTHING, TopicConfigList, NOTHING, NOTHING
)
GET_ALL_TOPIC_CONFIG = Request(
    RequestCode.GET_ALL_TOPIC_CONFIG, GetAllTopicConfigRequestHeader, NOTHING,
    GetAllTopicConfigResponseHeader, TopicConfigTable,
)  # fmt: skip
GET_TOPIC_STATS_INFO = Request(RequestCode.GET_TOPIC_STATS_INFO, TopicRequestHeader, NOTHING, NOTHING, TopicStatsTable)
DELETE_TOPIC_IN_BROKER = Request(RequestCode.DELETE_TOPIC_IN_BROKER, TopicRequestHeader, NOTHING, NOTHING, NOTHING)
QUERY_TOPIC_CONSUME_BY_WHO = Request(
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, TopicRequestHeader, NOTHING, NOTHING, GroupList
)
GET_SYSTEM_TOPIC_LIST_FROM_BROKER = Request(
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, NOTHING, NOTHING, NOTHING, TopicList
)
GET_TOPIC_CONFIG = Request(RequestCode.GET_TOPIC_CONFIG, GetTopicConfigRequestHeader, NOTHING, NOTHING, TopicConfig)
