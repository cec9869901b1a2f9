"""The lowest member of a broker set: the one that acts as the master while the master is away. Pure.

RocketMQ calls it the min broker. Neighbours: routes.py asks after each change, min_broker_notices.py tells slaves.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from mqcommon.names import MASTER_ID

#: Id and address.
MinBroker = tuple[int, str]


@dataclass(frozen=True, slots=True)
class MinBrokerChange:
    """A set has a new lowest member. ``tell``: the addresses of all its slaves."""

    broker_name: str
    min_broker_id: int
    min_broker_addr: str
    #: The address of the former lowest member, when that has left.
    offline_broker_addr: str | None
    #: The HA address of the master, when the new lowest member is a master.
    ha_broker_addr: str | None
    tell: tuple[str, ...]


def min_broker(addrs: Mapping[int, str]) -> MinBroker:
    """The lowest member of a set that is not empty."""
    lowest = min(addrs)
    return lowest, addrs[lowest]


def change_of(name: str, before: MinBroker, addrs: Mapping[int, str], ha_addr: str) -> MinBrokerChange | None:
    """The change to tell slaves of, when ``before`` was the lowest member and ``addrs`` are the members now, or None.

    ``ha_addr`` is the HA address of the present lowest member.
    """
    now = min_broker(addrs)
    if now == before:
        return None
    slaves = tuple(addr for broker_id, addr in sorted(addrs.items()) if broker_id != MASTER_ID)
    gone = before[1] if before[1] not in addrs.values() else None
    return MinBrokerChange(name, *now, gone, ha_addr if now[0] == MASTER_ID else None, slaves)
