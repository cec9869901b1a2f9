"""Clients: heartbeats (34, 35), checks of subscriptions (46), members of groups (38, 203, 204, 328) and their offsets
(223), requests of brokers (40, 220, 221, 307, 309), challenges (7103).
"""

from remoting.protocol.bodies.connections import ConsumerConnection, ProducerConnection, ProducerTableInfo
from remoting.protocol.bodies.consume_result import ConsumeMessageDirectlyResult
from remoting.protocol.bodies.group import ConsumerIdList
from remoting.protocol.bodies.heartbeat import CheckClientRequestBody, HeartbeatData
from remoting.protocol.bodies.reset_offset import GetConsumerStatusBody, ResetOffsetBody
from remoting.protocol.bodies.running_info import ConsumerRunningInfo
from remoting.protocol.codes import RequestCode
from remoting.protocol.headers.client import (
    ChallengeHeader,
    ConsumeMessageDirectlyRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    GetConsumerStatusRequestHeader,
    HeartbeatResponseHeader,
    ResetOffsetRequestHeader,
    UnregisterClientRequestHeader,
)
from remoting.protocol.headers.groups import (
    ConsumerGroupRequestHeader,
    NotifyConsumerIdsChangedRequestHeader,
    ProducerGroupRequestHeader,
)
from remoting.protocol.requests.request import NOTHING, Request

# Asked before a client signs anything. Each connection has another challenge.
CHALLENGE = Request(RequestCode.CHALLENGE, NOTHING, NOTHING, ChallengeHeader, NOTHING)
HEART_BEAT = Request(RequestCode.HEART_BEAT, NOTHING, HeartbeatData, HeartbeatResponseHeader, NOTHING)
CHECK_CLIENT_CONFIG = Request(RequestCode.CHECK_CLIENT_CONFIG, NOTHING, CheckClientRequestBody, NOTHING, NOTHING)
UNREGISTER_CLIENT = Request(RequestCode.UNREGISTER_CLIENT, UnregisterClientRequestHeader, NOTHING, NOTHING, NOTHING)
GET_CONSUMER_LIST_BY_GROUP = Request(
    RequestCode.GET_CONSUMER_LIST_BY_GROUP, ConsumerGroupRequestHeader, NOTHING, NOTHING, ConsumerIdList
)
NOTIFY_CONSUMER_IDS_CHANGED = Request(
    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, NotifyConsumerIdsChangedRequestHeader, NOTHING, NOTHING, NOTHING,
    may_be_oneway=True,
)  # fmt: skip
GET_CONSUMER_CONNECTION_LIST = Request(
    RequestCode.GET_CONSUMER_CONNECTION_LIST, ConsumerGroupRequestHeader, NOTHING, NOTHING, ConsumerConnection
)
GET_PRODUCER_CONNECTION_LIST = Request(
    RequestCode.GET_PRODUCER_CONNECTION_LIST, ProducerGroupRequestHeader, NOTHING, NOTHING, ProducerConnection
)
GET_ALL_PRODUCER_INFO = Request(RequestCode.GET_ALL_PRODUCER_INFO, NOTHING, NOTHING, NOTHING, ProducerTableInfo)
# C++ clients get a ResetOffsetBodyForC.
RESET_CONSUMER_CLIENT_OFFSET = Request(
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET, ResetOffsetRequestHeader, ResetOffsetBody, NOTHING, NOTHING,
    may_be_oneway=True,
)  # fmt: skip
GET_CONSUMER_STATUS_FROM_CLIENT = Request(
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, GetConsumerStatusRequestHeader, NOTHING,
    NOTHING, GetConsumerStatusBody,
)  # fmt: skip
INVOKE_BROKER_TO_GET_CONSUMER_STATUS = Request(
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, GetConsumerStatusRequestHeader, NOTHING,
    NOTHING, GetConsumerStatusBody,
)  # fmt: skip
GET_CONSUMER_RUNNING_INFO = Request(
    RequestCode.GET_CONSUMER_RUNNING_INFO, GetConsumerRunningInfoRequestHeader, NOTHING, NOTHING, ConsumerRunningInfo
)
# The body is the stored message. mqadmin sends none: the broker adds it.
CONSUME_MESSAGE_DIRECTLY = Request(
    RequestCode.CONSUME_MESSAGE_DIRECTLY, ConsumeMessageDirectlyRequestHeader, bytes,
    NOTHING, ConsumeMessageDirectlyResult,
)  # fmt: skip
