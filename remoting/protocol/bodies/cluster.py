"""Brokers that a NameServer knows: all (106), and those of one set (901)."""

from dataclasses import dataclass

from remoting.protocol.bodies.body import Body, member
from remoting.protocol.bodies.kinds import TEXT, body_of, list_of, map_by_int, map_of
from remoting.protocol.bodies.route import BrokerData


@dataclass(slots=True)
class ClusterInfo(Body):
    """Brokers by name, broker names by cluster.

    ``contested``, Skylark's own: by name and id, the address of another broker that registers with the same ones.
    """

    broker_addr_table: dict[str, BrokerData] = member(map_of(body_of(BrokerData)))
    cluster_addr_table: dict[str, list[str]] = member(map_of(list_of(TEXT)))
    contested: dict[str, dict[int, str]] | None = member(map_of(map_by_int(TEXT)), None)


@dataclass(slots=True)
class BrokerMemberGroup(Body):
    """The living members of a broker set, by id."""

    broker_addrs: dict[int, str] = member(map_by_int(TEXT))
    broker_name: str = member(TEXT, "")
    cluster: str = member(TEXT, "")


@dataclass(slots=True)
class MemberGroupAnswer(Body):
    """The answer to 901."""

    broker_member_group: BrokerMemberGroup = member(body_of(BrokerMemberGroup))
