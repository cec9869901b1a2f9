"""Brokers and administrators ask Controllers: 1001 - 1005, 1008, 1011 - 1013, 7120.

Fields that are absent when a set has no master are optional. ``invoke_time``: milliseconds, of the asker's clock.
"""

from dataclasses import dataclass

from remoting.protocol.headers.header import Header, optional, required
from remoting.protocol.scalars import read_flag, read_int, read_long, read_text


@dataclass(slots=True)
class AlterSyncStateSetRequestHeader(Header):
    """1001: the master of a set has another SyncStateSet."""

    broker_name: str = required(read_text)
    master_broker_id: int = required(read_long)
    master_epoch: int = required(read_int)
    invoke_time: int | None = optional(read_long)


@dataclass(slots=True)
class AlterSyncStateSetResponseHeader(Header):
    """Its answer; 0 when refused."""

    new_sync_state_set_epoch: int = required(read_int)


@dataclass(slots=True)
class ElectMasterRequestHeader(Header):
    """1002. ``broker_id``: who asks, or, with ``designate_elect``, who is to be the master."""

    broker_name: str = required(read_text)
    cluster_name: str | None = optional(read_text)
    broker_id: int | None = optional(read_long)
    designate_elect: bool = optional(read_flag, False)
    invoke_time: int | None = optional(read_long)


@dataclass(slots=True)
class MasterHeader(Header):
    """Who is the master of a set. The answers of 1002 and 1004, and the notice 1008; 1004 has no ``...set_epoch``.

    ``registered_replicas``: how many brokers of the set are registered. Only Skylark's answer to 1004 has it.
    """

    master_broker_id: int | None = optional(read_long)
    master_address: str | None = optional(read_text)
    master_epoch: int | None = optional(read_int)
    sync_state_set_epoch: int | None = optional(read_int)
    registered_replicas: int | None = optional(read_int)


@dataclass(slots=True)
class RegisterBrokerToControllerRequestHeader(Header):
    """1003: a broker that has an id tells its address."""

    cluster_name: str = required(read_text)
    broker_name: str = required(read_text)
    broker_id: int = required(read_long)
    broker_address: str = required(read_text)
    invoke_time: int | None = optional(read_long)


@dataclass(slots=True)
class RegisterBrokerToControllerResponseHeader(Header):
    """Its answer, with the master when the set has one that is alive."""

    cluster_name: str | None = optional(read_text)
    broker_name: str | None = optional(read_text)
    master_broker_id: int | None = optional(read_long)
    master_address: str | None = optional(read_text)
    master_epoch: int | None = optional(read_int)
    sync_state_set_epoch: int | None = optional(read_int)


@dataclass(slots=True)
class GetReplicaInfoRequestHeader(Header):
    """1004."""

    broker_name: str = required(read_text)


@dataclass(slots=True)
class GetMetaDataResponseHeader(Header):
    """1005: the leader of the Controllers. ``peers``: ``"n0:ip:port;n1:ip:port;"``."""

    group: str | None = optional(read_text)
    controller_leader_id: str | None = optional(read_text)
    controller_leader_address: str | None = optional(read_text)
    is_leader: bool = optional(read_flag, False)
    peers: str | None = optional(read_text)


@dataclass(slots=True)
class CleanBrokerDataRequestHeader(Header):
    """1011: forget replicas. ``broker_controller_ids_to_clean``: ``"1;2"``; absent: the whole set."""

    broker_name: str = required(read_text)
    cluster_name: str | None = optional(read_text)
    broker_controller_ids_to_clean: str | None = optional(read_text)
    is_clean_living_broker: bool = optional(read_flag, False)
    invoke_time: int | None = optional(read_long)


@dataclass(slots=True)
class GetNextBrokerIdRequestHeader(Header):
    """1012."""

    cluster_name: str = required(read_text)
    broker_name: str = required(read_text)


@dataclass(slots=True)
class GetNextBrokerIdResponseHeader(Header):
    """Its answer: the lowest id that was never given in this set."""

    next_broker_id: int = required(read_long)
    cluster_name: str | None = optional(read_text)
    broker_name: str | None = optional(read_text)


@dataclass(slots=True)
class ApplyBrokerIdRequestHeader(Header):
    """1013. ``register_check_code`` tells who holds an id: one that asks again with the same code gets it again."""

    cluster_name: str = required(read_text)
    broker_name: str = required(read_text)
    applied_broker_id: int = required(read_long)
    register_check_code: str = required(read_text)


@dataclass(slots=True)
class ApplyBrokerIdResponseHeader(Header):
    """Its answer."""

    cluster_name: str | None = optional(read_text)
    broker_name: str | None = optional(read_text)


@dataclass(slots=True)
class ControllerMembersRequestHeader(Header):
    """7120. ``action``: list, add (``address``), remove or transfer (``node``)."""

    action: str = required(read_text)
    node: str | None = optional(read_text)
    address: str | None = optional(read_text)
