"""Clusters of real processes for tests: small files, free ports, killed by their own process ids at the end."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from mqcommon.errors import BrokerError, RemotingError, RouteNotFound
from remoting.protocol.requests.topics import TopicConfig
from scripts.daemons import Daemon, broker_daemon, namesrv_daemon
from sdk import Admin
from tests.support.waiting import until

# Files so small that a test fills several of them.
SMALL = (
    "--mapped-file-size-commit-log", str(1024 * 1024),
    "--max-message-size", "1000000",
    "--mapped-file-size-consume-queue", str(500 * 20),
    "--max-hash-slot-num", "1000",
    "--max-index-num", "4000",
)  # fmt: skip


@dataclass(frozen=True)
class Cluster:
    """NameServers and brokers that run."""

    home: Path
    namesrvs: list[Daemon]
    brokers: list[Daemon]

    @property
    def nameserver(self) -> str:
        return ";".join(namesrv.addr for namesrv in self.namesrvs)

    def broker(self, name: str) -> Daemon:
        return next(broker for broker in self.brokers if broker.name == name)


@asynccontextmanager
async def running(home: Path, brokers: int = 1, options: Sequence[str] = SMALL) -> AsyncIterator[Cluster]:
    """A NameServer and brokers ``broker-a``, ``broker-b``, ... that are registered with it."""
    namesrv = namesrv_daemon(home)
    names = [f"broker-{'abcdefgh'[number]}" for number in range(brokers)]
    cluster = Cluster(home, [namesrv], [broker_daemon(home, name, namesrv.addr, 0, *options) for name in names])
    try:
        for daemon in [namesrv, *cluster.brokers]:
            daemon.start()
        for daemon in [namesrv, *cluster.brokers]:
            await until(daemon.ready, f"{daemon.name} is ready")
        await until_registered(cluster, names)
        yield cluster
    finally:
        for daemon in [*cluster.brokers, namesrv]:
            if daemon.runs:
                daemon.kill()


async def until_registered(cluster: Cluster, names: Sequence[str]) -> None:
    """Every NameServer knows exactly these brokers."""
    for namesrv in cluster.namesrvs:
        async with Admin(namesrv.addr) as admin:

            async def known(admin: Admin = admin) -> bool:
                try:
                    return sorted((await admin.cluster_info()).broker_addr_table) == sorted(names)
                except RemotingError:
                    return False

            await until(known, f"NameServer {namesrv.addr} knows {names}")


async def make_topic(cluster: Cluster, config: TopicConfig) -> None:
    """The topic on every broker, with its route at every NameServer."""
    async with Admin(cluster.nameserver) as admin:
        for broker in cluster.brokers:
            await admin.create_topic(broker.addr, replace(config))
    await until_route(cluster, config.topic_name, [broker.name for broker in cluster.brokers])


async def until_route(cluster: Cluster, topic: str, names: Sequence[str]) -> None:
    """Every NameServer has a route for the topic to exactly these brokers."""
    for namesrv in cluster.namesrvs:
        async with Admin(namesrv.addr) as admin:

            async def known(admin: Admin = admin) -> bool:
                try:
                    route = await admin.topic_route(topic)
                except (RemotingError, RouteNotFound, BrokerError):
                    return False
                return sorted(data.broker_name for data in route.broker_datas) == sorted(names)

            await until(known, f"NameServer {namesrv.addr} has a route for {topic} to {names}")
