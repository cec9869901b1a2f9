"""Controllers: replicas, masters and SyncStateSets of broker sets (1001 - 1006, 1008, 1011 - 1013), options (1009,
1010), and the members of the group of Controllers (7120, Skylark's own). Their heartbeat 904 is in registrations.py.
"""

from remoting.protocol.bodies.controller import BrokerReplicasInfo, ControllerMembers, ElectMasterAnswer, SyncStateSet
from remoting.protocol.codes import RequestCode
from remoting.protocol.headers.controller import (
    AlterSyncStateSetRequestHeader,
    AlterSyncStateSetResponseHeader,
    ApplyBrokerIdRequestHeader,
    ApplyBrokerIdResponseHeader,
    CleanBrokerDataRequestHeader,
    ControllerMembersRequestHeader,
    ElectMasterRequestHeader,
    GetMetaDataResponseHeader,
    GetNextBrokerIdRequestHeader,
    GetNextBrokerIdResponseHeader,
    GetReplicaInfoRequestHeader,
    MasterHeader,
    RegisterBrokerToControllerRequestHeader,
    RegisterBrokerToControllerResponseHeader,
)
from remoting.protocol.requests.request import NOTHING, Request

CONTROLLER_ALTER_SYNC_STATE_SET = Request(
    RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET, AlterSyncStateSetRequestHeader, SyncStateSet,
    AlterSyncStateSetResponseHeader, SyncStateSet,
)  # fmt: skip
CONTROLLER_ELECT_MASTER = Request(
    RequestCode.CONTROLLER_ELECT_MASTER, ElectMasterRequestHeader, NOTHING, MasterHeader, ElectMasterAnswer
)
CONTROLLER_REGISTER_BROKER = Request(
    RequestCode.CONTROLLER_REGISTER_BROKER, RegisterBrokerToControllerRequestHeader, NOTHING,
    RegisterBrokerToControllerResponseHeader, SyncStateSet,
)  # fmt: skip
CONTROLLER_GET_REPLICA_INFO = Request(
    RequestCode.CONTROLLER_GET_REPLICA_INFO, GetReplicaInfoRequestHeader, NOTHING, MasterHeader, SyncStateSet
)
CONTROLLER_GET_METADATA_INFO = Request(
    RequestCode.CONTROLLER_GET_METADATA_INFO, NOTHING, NOTHING, GetMetaDataResponseHeader, NOTHING
)
# A JSON array of broker names.
CONTROLLER_GET_SYNC_STATE_DATA = Request(
    RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, NOTHING, bytes, NOTHING, BrokerReplicasInfo
)
# A Controller tells the brokers of a set.
NOTIFY_BROKER_ROLE_CHANGED = Request(
    RequestCode.NOTIFY_BROKER_ROLE_CHANGED, MasterHeader, SyncStateSet, NOTHING, NOTHING, may_be_oneway=True
)
# Properties text.
UPDATE_CONTROLLER_CONFIG = Request(RequestCode.UPDATE_CONTROLLER_CONFIG, NOTHING, bytes, NOTHING, NOTHING)
GET_CONTROLLER_CONFIG = Request(RequestCode.GET_CONTROLLER_CONFIG, NOTHING, NOTHING, NOTHING, bytes)
CLEAN_BROKER_DATA = Request(RequestCode.CLEAN_BROKER_DATA, CleanBrokerDataRequestHeader, NOTHING, NOTHING, NOTHING)
CONTROLLER_GET_NEXT_BROKER_ID = Request(
    RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, GetNextBrokerIdRequestHeader, NOTHING,
    GetNextBrokerIdResponseHeader, NOTHING,
)  # fmt: skip
CONTROLLER_APPLY_BROKER_ID = Request(
    RequestCode.CONTROLLER_APPLY_BROKER_ID, ApplyBrokerIdRequestHeader, NOTHING, ApplyBrokerIdResponseHeader, NOTHING
)
CONTROLLER_MEMBERS = Request(
    RequestCode.CONTROLLER_MEMBERS, ControllerMembersRequestHeader, NOTHING, NOTHING, ControllerMembers
)
