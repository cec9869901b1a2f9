"""Controllers: replicas, masters and SyncStateSets of broker sets (1001 - 1006, 1008, 1011 - 1013), options (1009,
1010), and the members of the group of Controllers (7120, Skylark's own). Their heartbeat 904 is in registrations.py.
"""

from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.remoting.protocol.body import FLAG, INT, LONG, TEXT, Body, body_of, list_of, map_of, member
from skylark.remoting.protocol.header import Header, optional, required
from skylark.remoting.protocol.request import NOTHING, Request
from skylark.remoting.protocol.requests.routes import BrokerMemberGroup
from skylark.remoting.protocol.rights import UPDATE_CLUSTER
from skylark.remoting.protocol.scalars import read_flag, read_int, read_long, read_text


@lazy_dataclass(slots=True)
class AlterSyncStateSetRequestHeader(Header):
    """1001: the master of a set has another SyncStateSet."""

    broker_name: str = required(read_text)
    master_broker_id: int = required(read_long)
    master_epoch: int = required(read_int)
    invoke_time: int | None = optional(read_long)


@lazy_dataclass(slots=True)
class AlterSyncStateSetResponseHeader(Header):
    """The answer to 1001; 0 when refused."""

    new_sync_state_set_epoch: int = required(read_int)


@lazy_dataclass(slots=True)
class ElectMasterRequestHeader(Header):
    """1002: elect a master.

    ``broker_id``: the broker that asks, or, with ``designate_elect``, the broker to be elected.
    """

    broker_name: str = required(read_text)
    cluster_name: str | None = optional(read_text)
    broker_id: int | None = optional(read_long)
    designate_elect: bool = optional(read_flag, False)
    invoke_time: int | None = optional(read_long)


@lazy_dataclass(slots=True)
class MasterHeader(Header):
    """The master of a set: the answers of 1002 and 1004, and the notice 1008; 1004 has no ``...set_epoch``.

    ``registered_replicas``: how many brokers of the set are registered. Only Skylark's answer to 1004 has it.
    """

    master_broker_id: int | None = optional(read_long)
    master_address: str | None = optional(read_text)
    master_epoch: int | None = optional(read_int)
    sync_state_set_epoch: int | None = optional(read_int)
    registered_replicas: int | None = optional(read_int)


@lazy_dataclass(slots=True)
class RegisterBrokerToControllerRequestHeader(Header):
    """1003: a broker that has an id tells its address."""

    cluster_name: str = required(read_text)
    broker_name: str = required(read_text)
    broker_id: int = required(read_long)
    broker_address: str = required(read_text)
    invoke_time: int | None = optional(read_long)


@lazy_dataclass(slots=True)
class RegisterBrokerToControllerResponseHeader(Header):
    """The answer to 1003, with the master when the set has a living master."""

    cluster_name: str | None = optional(read_text)
    broker_name: str | None = optional(read_text)
    master_broker_id: int | None = optional(read_long)
    master_address: str | None = optional(read_text)
    master_epoch: int | None = optional(read_int)
    sync_state_set_epoch: int | None = optional(read_int)


@lazy_dataclass(slots=True)
class GetReplicaInfoRequestHeader(Header):
    """1004: the set whose master is asked for."""

    broker_name: str = required(read_text)


@lazy_dataclass(slots=True)
class GetMetaDataResponseHeader(Header):
    """1005: the leader of the Controllers. ``peers``: ``"n0:ip:port;n1:ip:port;"``."""

    group: str | None = optional(read_text)
    controller_leader_id: str | None = optional(read_text)
    controller_leader_address: str | None = optional(read_text)
    is_leader: bool = optional(read_flag, False)
    peers: str | None = optional(read_text)


@lazy_dataclass(slots=True)
class CleanBrokerDataRequestHeader(Header):
    """1011: forget replicas. ``broker_controller_ids_to_clean``: ``"1;2"``; absent: the whole set."""

    broker_name: str = required(read_text)
    cluster_name: str | None = optional(read_text)
    broker_controller_ids_to_clean: str | None = optional(read_text)
    is_clean_living_broker: bool = optional(read_flag, False)
    invoke_time: int | None = optional(read_long)


@lazy_dataclass(slots=True)
class GetNextBrokerIdRequestHeader(Header):
    """1012: the set that a new broker joins."""

    cluster_name: str = required(read_text)
    broker_name: str = required(read_text)


@lazy_dataclass(slots=True)
class GetNextBrokerIdResponseHeader(Header):
    """The answer to 1012: the lowest id that was never given in this set."""

    next_broker_id: int = required(read_long)
    cluster_name: str | None = optional(read_text)
    broker_name: str | None = optional(read_text)


@lazy_dataclass(slots=True)
class ApplyBrokerIdRequestHeader(Header):
    """1013: a broker takes an id of its set.

    ``register_check_code`` identifies the holder of an id: with the same code a broker gets the same id again.
    """

    cluster_name: str = required(read_text)
    broker_name: str = required(read_text)
    applied_broker_id: int = required(read_long)
    register_check_code: str = required(read_text)


@lazy_dataclass(slots=True)
class ApplyBrokerIdResponseHeader(Header):
    """The answer to 1013: the set in which the broker has the id now."""

    cluster_name: str | None = optional(read_text)
    broker_name: str | None = optional(read_text)


@lazy_dataclass(slots=True)
class SyncStateSet(Body):
    """The replicas that have every acknowledged message, by id."""

    sync_state_set: list[int] = member(list_of(LONG))
    sync_state_set_epoch: int = member(INT, 0)


@lazy_dataclass(slots=True)
class ElectMasterAnswer(Body):
    """The answer to 1002: the addresses of all replicas, and the new SyncStateSet."""

    broker_member_group: BrokerMemberGroup = member(body_of(BrokerMemberGroup))
    sync_state_set: list[int] = member(list_of(LONG))


@lazy_dataclass(slots=True)
class ReplicaIdentity(Body):
    """One replica of a set, as 1006 shows it."""

    broker_name: str = member(TEXT, "")
    broker_id: int = member(LONG, 0)
    broker_address: str = member(TEXT, "")
    alive: bool = member(FLAG, False)


@lazy_dataclass(slots=True)
class InSyncStateData(Body):
    """A set, as 1006 shows it."""

    master_broker_id: int | None = member(LONG, None)
    master_address: str | None = member(TEXT, None)
    master_epoch: int = member(INT, 0)
    sync_state_set_epoch: int = member(INT, 0)
    in_sync_replicas: list[ReplicaIdentity] = member(list_of(body_of(ReplicaIdentity)))
    not_in_sync_replicas: list[ReplicaIdentity] = member(list_of(body_of(ReplicaIdentity)))


@lazy_dataclass(slots=True)
class BrokerReplicasInfo(Body):
    """The answer to 1006, by broker name."""

    replicas_info_table: dict[str, InSyncStateData] = member(map_of(body_of(InSyncStateData)))


CONTROLLER_ALTER_SYNC_STATE_SET = Request(
    1001,
    AlterSyncStateSetRequestHeader,
    SyncStateSet,
    AlterSyncStateSetResponseHeader,
    SyncStateSet,
)
CONTROLLER_ELECT_MASTER = Request(1002, ElectMasterRequestHeader, NOTHING, MasterHeader, ElectMasterAnswer)
CONTROLLER_REGISTER_BROKER = Request(
    1003,
    RegisterBrokerToControllerRequestHeader,
    NOTHING,
    RegisterBrokerToControllerResponseHeader,
    SyncStateSet,
)
CONTROLLER_GET_REPLICA_INFO = Request(1004, GetReplicaInfoRequestHeader, NOTHING, MasterHeader, SyncStateSet)
CONTROLLER_GET_METADATA_INFO = Request(1005, NOTHING, NOTHING, GetMetaDataResponseHeader, NOTHING)
# A JSON array of broker names.
CONTROLLER_GET_SYNC_STATE_DATA = Request(1006, NOTHING, bytes, NOTHING, BrokerReplicasInfo)
# A Controller tells the brokers of a set.
NOTIFY_BROKER_ROLE_CHANGED = Request(
    1008,
    MasterHeader,
    SyncStateSet,
    NOTHING,
    NOTHING,
    may_be_oneway=True,
    right=UPDATE_CLUSTER,
)
# Properties text.
UPDATE_CONTROLLER_CONFIG = Request(1009, NOTHING, bytes, NOTHING, NOTHING)
GET_CONTROLLER_CONFIG = Request(1010, NOTHING, NOTHING, NOTHING, bytes)
CLEAN_BROKER_DATA = Request(1011, CleanBrokerDataRequestHeader, NOTHING, NOTHING, NOTHING)
CONTROLLER_GET_NEXT_BROKER_ID = Request(
    1012,
    GetNextBrokerIdRequestHeader,
    NOTHING,
    GetNextBrokerIdResponseHeader,
    NOTHING,
)
CONTROLLER_APPLY_BROKER_ID = Request(1013, ApplyBrokerIdRequestHeader, NOTHING, ApplyBrokerIdResponseHeader, NOTHING)
