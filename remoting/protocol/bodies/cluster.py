"""All brokers that a NameServer knows (106)."""

from dataclasses import dataclass

from remoting.protocol.bodies.body import Body, member
from remoting.protocol.bodies.kinds import TEXT, body_of, list_of, map_of
from remoting.protocol.bodies.route import BrokerData


@dataclass(slots=True)
class ClusterInfo(Body):
    """Brokers by name, broker names by cluster."""

    broker_addr_table: dict[str, BrokerData] = member(map_of(body_of(BrokerData)))
    cluster_addr_table: dict[str, list[str]] = member(map_of(list_of(TEXT)))
