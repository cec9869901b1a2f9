"""The members of a broker set, and which of them acts as the master: 901, 904, 905, 906."""

from dataclasses import dataclass

from remoting.protocol.headers.header import Header, optional, required
from remoting.protocol.scalars import read_flag, read_int, read_long, read_text


@dataclass(slots=True)
class GetBrokerMemberGroupRequestHeader(Header):
    """901: asks for the live members of a set."""

    cluster_name: str = required(read_text)
    broker_name: str = required(read_text)


@dataclass(slots=True)
class BrokerHeartbeatRequestHeader(Header):
    """904. NameServers need the names and addresses; the fields after ``broker_id`` are for Controllers.

    ``epoch`` is that of the newest stretch of the broker's log, -1 when it has none; ``max_offset`` is its end.
    """

    cluster_name: str = required(read_text)
    broker_addr: str = required(read_text)
    broker_name: str = required(read_text)
    broker_id: int | None = optional(read_long)
    epoch: int | None = optional(read_int)
    max_offset: int | None = optional(read_long)
    confirm_offset: int | None = optional(read_long)
    heartbeat_timeout_mills: int | None = optional(read_long)
    election_priority: int | None = optional(read_int)
    # Skylark's own: false when the broker is never to be the master.
    is_electable: bool | None = optional(read_flag, wire="electable")


@dataclass(slots=True)
class NotifyMinBrokerIdChangeRequestHeader(Header):
    """905: another live member now has the lowest id."""

    min_broker_id: int | None = optional(read_long)
    broker_name: str | None = optional(read_text)
    min_broker_addr: str | None = optional(read_text)
    offline_broker_addr: str | None = optional(read_text)
    ha_broker_addr: str | None = optional(read_text)


@dataclass(slots=True)
class ExchangeHAInfoHeader(Header):
    """906 and its answer: a master tells a slave its addresses, or is asked for them."""

    master_ha_address: str | None = optional(read_text)
    master_flush_offset: int | None = optional(read_long)
    master_address: str | None = optional(read_text)
