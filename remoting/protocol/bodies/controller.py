"""SyncStateSets, and what Controllers know of broker sets (1001 - 1006, 1008) and of themselves (7120)."""

from dataclasses import dataclass

from remoting.protocol.bodies.body import Body, member
from remoting.protocol.bodies.cluster import BrokerMemberGroup
from remoting.protocol.bodies.kinds import FLAG, INT, LONG, TEXT, body_of, list_of, map_of


@dataclass(slots=True)
class SyncStateSet(Body):
    """The replicas that have all that was acknowledged, by id."""

    sync_state_set: list[int] = member(list_of(LONG))
    sync_state_set_epoch: int = member(INT, 0)


@dataclass(slots=True)
class ElectMasterAnswer(Body):
    """The answer to 1002: the addresses of all replicas, and the new SyncStateSet."""

    broker_member_group: BrokerMemberGroup = member(body_of(BrokerMemberGroup))
    sync_state_set: list[int] = member(list_of(LONG))


@dataclass(slots=True)
class ReplicaIdentity(Body):
    """One replica of a set, as 1006 shows it."""

    broker_name: str = member(TEXT, "")
    broker_id: int = member(LONG, 0)
    broker_address: str = member(TEXT, "")
    alive: bool = member(FLAG, False)


@dataclass(slots=True)
class InSyncStateData(Body):
    """A set, as 1006 shows it."""

    master_broker_id: int | None = member(LONG, None)
    master_address: str | None = member(TEXT, None)
    master_epoch: int = member(INT, 0)
    sync_state_set_epoch: int = member(INT, 0)
    in_sync_replicas: list[ReplicaIdentity] = member(list_of(body_of(ReplicaIdentity)))
    not_in_sync_replicas: list[ReplicaIdentity] = member(list_of(body_of(ReplicaIdentity)))


@dataclass(slots=True)
class BrokerReplicasInfo(Body):
    """The answer to 1006, by broker name."""

    replicas_info_table: dict[str, InSyncStateData] = member(map_of(body_of(InSyncStateData)))


@dataclass(slots=True)
class ControllerMembers(Body):
    """The answer to 7120: addresses by node."""

    leader: str = member(TEXT, "")
    voters: dict[str, str] = member(map_of(TEXT))
    learners: dict[str, str] = member(map_of(TEXT))
