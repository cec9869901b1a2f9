"""The state of replication, as a master or a slave reports it (907)."""

from dataclasses import dataclass

from remoting.protocol.bodies.body import Body, member
from remoting.protocol.bodies.kinds import FLAG, INT, LONG, TEXT, body_of, list_of


@dataclass(slots=True)
class HAConnectionRuntimeInfo(Body):
    """A slave that is connected to the master."""

    addr: str = member(TEXT, "")
    slave_ack_offset: int = member(LONG, 0)
    diff: int = member(LONG, 0)
    in_sync: bool = member(FLAG, False)
    transferred_byte_in_second: int = member(LONG, 0)
    transfer_from_where: int = member(LONG, 0)


@dataclass(slots=True)
class HAClientRuntimeInfo(Body):
    """A slave's own state; ``master_addr`` is the address of the master's HA port."""

    master_addr: str | None = member(TEXT, None)
    transferred_byte_in_second: int = member(LONG, 0)
    max_offset: int = member(LONG, 0)
    last_read_timestamp: int = member(LONG, 0)
    last_write_timestamp: int = member(LONG, 0)
    master_flush_offset: int = member(LONG, 0)


@dataclass(slots=True)
class HARuntimeInfo(Body):
    """The master's part or the slave's part is filled, as ``master`` says."""

    master: bool = member(FLAG, False)
    master_commit_log_max_offset: int = member(LONG, 0)
    in_sync_slave_nums: int = member(INT, 0)
    ha_connection_info: list[HAConnectionRuntimeInfo] = member(list_of(body_of(HAConnectionRuntimeInfo)))
    ha_client_runtime_info: HAClientRuntimeInfo = member(body_of(HAClientRuntimeInfo))
