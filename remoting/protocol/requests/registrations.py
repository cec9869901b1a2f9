"""Brokers register with NameServers (103, 104, 322, 904); the members of a set (901, 905)."""

from remoting.protocol.bodies.cluster import MemberGroupAnswer
from remoting.protocol.bodies.data_version import DataVersion
from remoting.protocol.bodies.kvtable import KVTable
from remoting.protocol.bodies.register import RegisterBrokerBody
from remoting.protocol.codes import RequestCode
from remoting.protocol.headers.controller import MasterHeader
from remoting.protocol.headers.members import (
    BrokerHeartbeatRequestHeader,
    GetBrokerMemberGroupRequestHeader,
    NotifyMinBrokerIdChangeRequestHeader,
)
from remoting.protocol.headers.namesrv import (
    BrokerRequestHeader,
    QueryDataVersionResponseHeader,
    RegisterBrokerRequestHeader,
    RegisterBrokerResponseHeader,
)
from remoting.protocol.requests.request import NOTHING, Request

# The body may be encoded already: compressed, or in the JSON of old NameServers. The answer may have no body.
REGISTER_BROKER: Request[
    RegisterBrokerRequestHeader, RegisterBrokerBody | bytes, RegisterBrokerResponseHeader, KVTable
] = Request(
    RequestCode.REGISTER_BROKER, RegisterBrokerRequestHeader, RegisterBrokerBody,
    RegisterBrokerResponseHeader, KVTable, may_be_oneway=True,
)  # fmt: skip
UNREGISTER_BROKER = Request(RequestCode.UNREGISTER_BROKER, BrokerRequestHeader, NOTHING, NOTHING, NOTHING)
# An answer without a body means that the NameServer does not know the broker.
QUERY_DATA_VERSION = Request(
    RequestCode.QUERY_DATA_VERSION, BrokerRequestHeader, DataVersion, QueryDataVersionResponseHeader, DataVersion
)
# Skylark's Controllers name the master in the answer. NameServers say nothing, and RocketMQ's brokers want no answer.
BROKER_HEARTBEAT = Request(
    RequestCode.BROKER_HEARTBEAT, BrokerHeartbeatRequestHeader, NOTHING, MasterHeader, NOTHING, may_be_oneway=True
)
GET_BROKER_MEMBER_GROUP = Request(
    RequestCode.GET_BROKER_MEMBER_GROUP, GetBrokerMemberGroupRequestHeader, NOTHING, NOTHING, MemberGroupAnswer
)
NOTIFY_MIN_BROKER_ID_CHANGE = Request(
    RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, NotifyMinBrokerIdChangeRequestHeader, NOTHING, NOTHING, NOTHING,
    may_be_oneway=True,
)  # fmt: skip
