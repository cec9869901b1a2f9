"""Registrations for tests, and what a whole route table has of them."""

from collections.abc import Mapping, Sequence
from typing import Any

from skylark.namesrv.registration import DEFAULT_HEARTBEAT_TIMEOUT_MS, Queues, Registration
from skylark.namesrv.routes import RouteTable
from skylark.remoting.protocol.body import DataVersion
from skylark.remoting.protocol.requests.topics import TopicConfig


def version(counter: int, state_version: int = 0) -> DataVersion:
    return DataVersion(state_version=state_version, timestamp=1, counter=counter)


def topics_of(*names: str, perm: int = 6) -> dict[str, Queues]:
    return dict.fromkeys(names, Queues(4, 4, perm))


def configs_of(*names: str, perm: int = 6) -> dict[str, TopicConfig]:
    """The same as brokers tell them."""
    return {name: TopicConfig(topic_name=name, read_queue_nums=4, write_queue_nums=4, perm=perm) for name in names}


def registration(
    *,
    addr: str,
    name: str = "broker-a",
    cluster: str = "DefaultCluster",
    broker_id: int = 0,
    topics: Sequence[str] | Mapping[str, Queues] = ("t1", "t2"),
    perm: int = 6,
    counter: int = 0,
    state_version: int = 0,
    ha: str = "",
    timeout_ms: int = DEFAULT_HEARTBEAT_TIMEOUT_MS,
    acting_master: bool | None = False,
    filter_servers: tuple[str, ...] = (),
) -> Registration:
    return Registration(
        cluster=cluster,
        broker_name=name,
        broker_id=broker_id,
        broker_addr=addr,
        ha_server_addr=ha,
        data_version=version(counter, state_version),
        topics=topics if isinstance(topics, Mapping) else topics_of(*topics, perm=perm),
        filter_servers=filter_servers,
        heartbeat_timeout_ms=timeout_ms,
        enable_acting_master=acting_master,
    )


def all_topics(table: RouteTable[Any], cluster: str | None = None) -> set[str]:
    """The names of all topics, or of those with queues in ``cluster``."""
    return set().union(*table.tables(cluster))


def live_addrs(table: RouteTable[Any]) -> list[str]:
    """The addresses of all brokers."""
    sets = table.cluster_info().broker_addr_table.values()
    return sorted(addr for one in sets for addr in one.broker_addrs.values())
