"""The lowest member of a broker set, which acts for a master that is away, and who is told when it changes. Pure.

RocketMQ calls it the min broker. Neighbours: routes.py asks after each change, notices.py tells (905).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from mqcommon.names import MASTER_ID

#: Id and address.
MinBroker = tuple[int, str]


@dataclass(frozen=True, slots=True)
class MinBrokerChange:
    """A set has another lowest member. ``tell``: the addresses of all its slaves."""

    broker_name: str
    min_broker_id: int
    min_broker_addr: str
    #: The former lowest member's, when it is gone.
    offline_broker_addr: str | None
    #: The HA address of a master that has come.
    ha_broker_addr: str | None
    tell: tuple[str, ...]


def min_broker(addrs: Mapping[int, str]) -> MinBroker:
    """Of the members of a set that has some."""
    lowest = min(addrs)
    return lowest, addrs[lowest]


def change_of(name: str, before: MinBroker, addrs: Mapping[int, str], ha_addr: str) -> MinBrokerChange | None:
    """What slaves need to be told when ``before`` was the lowest of what now are ``addrs``; None: nothing.

    ``ha_addr`` is that of the lowest member now.
    """
    now = min_broker(addrs)
    if now == before:
        return None
    slaves = tuple(addr for broker_id, addr in sorted(addrs.items()) if broker_id != MASTER_ID)
    gone = before[1] if before[1] not in addrs.values() else None
    return MinBrokerChange(name, *now, gone, ha_addr if now[0] == MASTER_ID else None, slaves)
