"""Subscription groups of a broker: 200, 201, 207, 208, 225, 303, 317, 343, 352, 400, 401."""

from remoting.protocol.bodies.assignment import (
    MessageRequestMode,
    QueryAssignmentRequestBody,
    QueryAssignmentResponseBody,
)
from remoting.protocol.bodies.group import SubscriptionGroupConfig, SubscriptionGroupList, SubscriptionGroupTable
from remoting.protocol.bodies.stats import ConsumeStats, ConsumeStatsList, QueryConsumeTimeSpanBody
from remoting.protocol.bodies.topic import TopicList
from remoting.protocol.codes import RequestCode
from remoting.protocol.headers.groups import (
    DeleteSubscriptionGroupRequestHeader,
    GetAllSubscriptionGroupRequestHeader,
    GetAllSubscriptionGroupResponseHeader,
    GetBrokerConsumeStatsRequestHeader,
    GetConsumeStatsRequestHeader,
    GroupRequestHeader,
    QueryConsumeTimeSpanRequestHeader,
)
from remoting.protocol.requests.request import NOTHING, Request

UPDATE_AND_CREATE_SUBSCRIPTIONGROUP = Request(
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, NOTHING, SubscriptionGroupConfig, NOTHING, NOTHING
)
UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST = Request(
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, NOTHING, SubscriptionGroupList, NOTHING, NOTHING
)
GET_ALL_SUBSCRIPTIONGROUP_CONFIG = Request(
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, GetAllSubscriptionGroupRequestHeader, NOTHING,
    GetAllSubscriptionGroupResponseHeader, SubscriptionGroupTable,
)  # fmt: skip
DELETE_SUBSCRIPTIONGROUP = Request(
    RequestCode.DELETE_SUBSCRIPTIONGROUP, DeleteSubscriptionGroupRequestHeader, NOTHING, NOTHING, NOTHING
)
GET_CONSUME_STATS = Request(RequestCode.GET_CONSUME_STATS, GetConsumeStatsRequestHeader, NOTHING, NOTHING, ConsumeStats)
GET_BROKER_CONSUME_STATS = Request(
    RequestCode.GET_BROKER_CONSUME_STATS, GetBrokerConsumeStatsRequestHeader, NOTHING, NOTHING, ConsumeStatsList
)
QUERY_CONSUME_TIME_SPAN = Request(
    RequestCode.QUERY_CONSUME_TIME_SPAN, QueryConsumeTimeSpanRequestHeader, NOTHING, NOTHING, QueryConsumeTimeSpanBody
)
QUERY_TOPICS_BY_CONSUMER = Request(
    RequestCode.QUERY_TOPICS_BY_CONSUMER, GroupRequestHeader, NOTHING, NOTHING, TopicList
)
GET_SUBSCRIPTIONGROUP_CONFIG = Request(
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, GroupRequestHeader, NOTHING, NOTHING, SubscriptionGroupConfig
)
QUERY_ASSIGNMENT = Request(
    RequestCode.QUERY_ASSIGNMENT, NOTHING, QueryAssignmentRequestBody, NOTHING, QueryAssignmentResponseBody
)
SET_MESSAGE_REQUEST_MODE = Request(RequestCode.SET_MESSAGE_REQUEST_MODE, NOTHING, MessageRequestMode, NOTHING, NOTHING)
