"""What a whole route table holds."""

from typing import Any

from namesrv.routes import RouteTable


def all_topics(table: RouteTable[Any], cluster: str | None = None) -> set[str]:
    """The names of all topics, or of those with queues in ``cluster``."""
    return set().union(*table.tables(cluster))


def live_addrs(table: RouteTable[Any]) -> list[str]:
    """The addresses of all brokers."""
    sets = table.cluster_info().broker_addr_table.values()
    return sorted(addr for one in sets for addr in one.broker_addrs.values())
