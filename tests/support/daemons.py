"""Clusters of real processes for tests: small files, free ports, killed by their own process ids at the end.

`running` has brokers with different names, `broker_set` a master and its slaves; `started` is for daemons that a test
makes itself. scripts/controller_set.py has sets with Controllers. Where no process has to die, `in_threads` is cheaper.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from scripts.daemons import Daemon, broker_daemon, namesrv_daemon, reserve
from skylark import Admin, testing
from skylark.broker.replication.master_api import MasterClient as BrokerTables
from skylark.mqcommon.errors import BrokerError, RemotingError, RouteNotFound
from skylark.remoting.net.client import open_client
from skylark.remoting.protocol.requests.brokers import HARuntimeInfo
from skylark.remoting.protocol.requests.topics import TopicConfig
from tests.support.waiting import until

# Files so small that a test fills several of them.
SMALL = (
    "--mapped-file-size-commit-log", str(1024 * 1024),
    "--max-message-size", "1000000",
    "--mapped-file-size-consume-queue", str(500 * 20),
    "--max-hash-slot-num", "1000",
    "--max-index-num", "4000",
)  # fmt: skip


async def start(*daemons: Daemon, timeout_s: float = 60) -> None:
    """Start them, and wait until all of them serve."""
    for daemon in daemons:
        daemon.start()
    for daemon in daemons:
        await until(daemon.ready, f"{daemon.name} serves", timeout_s)


@asynccontextmanager
async def started(*daemons: Daemon, timeout_s: float = 60) -> AsyncIterator[None]:
    """Daemons that serve when the block begins; daemons that run at its end are killed."""
    try:
        await start(*daemons, timeout_s=timeout_s)
        yield
    finally:
        for daemon in reversed(daemons):
            if daemon.runs:
                daemon.kill()


def logged_in_order(daemon: Daemon, *lines: bytes) -> bool:
    """Whether the daemon has logged all ``lines``, given as parts of lines, one after the other."""
    at = 0
    for line in lines:
        at = daemon.logged.find(line, at) + 1
        if not at:
            return False
    return True


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
    async with started(namesrv, *cluster.brokers):
        await until_registered(cluster, names)
        yield cluster


@dataclass(frozen=True)
class Thread:
    """A NameServer or a broker in a thread of this process."""

    name: str
    addr: str

    @property
    def port(self) -> int:
        return int(self.addr.rpartition(":")[2])


@asynccontextmanager
async def in_threads(
    home: Path, brokers: int = 1, options: Mapping[str, object] | None = None
) -> AsyncIterator[Cluster]:
    """As `running`, with servers in threads of this process; ``options`` are keys of broker.conf."""
    async with testing.Cluster(brokers, options=options, home=home) as made:
        nodes = [[Thread(node.name, node.address) for node in kind] for kind in (made.nameservers, made.brokers)]
        yield Cluster(home, *cast(Any, nodes))


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


NAME = "broker-a"


@dataclass(frozen=True)
class BrokerSet:
    """One NameServer, one master, its slaves."""

    home: Path
    namesrv: Daemon
    master: Daemon
    slaves: list[Daemon]

    @property
    def nameserver(self) -> str:
        return self.namesrv.addr

    @property
    def slave(self) -> Daemon:
        (only,) = self.slaves
        return only

    @property
    def cluster(self) -> Cluster:
        """A cluster for any tests."""
        return Cluster(self.home, [self.namesrv], [self.master])

    def store_of(self, daemon: Daemon) -> Path:
        return self.home / daemon.name

    async def make_topic(self, name: str, queues: int = 4) -> None:
        """Make a topic on the master, and wait for its slaves: a slave without it does not serve its messages."""
        async with Admin(self.nameserver) as admin:
            await admin.create_topic(self.master.addr, TopicConfig(name, queues, queues))
        await until_route(self.cluster, name, [NAME])
        async with open_client() as client:
            for slave in self.slaves:

                async def known(addr: str = slave.addr) -> bool:
                    return name in (await BrokerTables(client, addr).topics()).topic_config_table

                await until(known, f"{slave.name} has topic {name}")

    async def ha_status(self, daemon: Daemon | None = None) -> HARuntimeInfo:
        async with Admin(self.nameserver) as admin:
            return await admin.broker_ha_status((daemon or self.master).addr)

    async def until_caught_up(self) -> None:
        """Every slave has all that the master has."""

        async def nothing_missing() -> bool:
            rows = (await self.ha_status()).ha_connection_info
            return len(rows) == len(self.slaves) and not any(row.diff for row in rows)

        await until(nothing_missing, "slaves have all")

    async def until_in_sync(self, slaves: int) -> None:
        """Wait until the master says that ``slaves`` slaves follow closely."""

        async def so_many() -> bool:
            try:
                return (await self.ha_status()).in_sync_slave_nums == slaves
            except (RemotingError, BrokerError):
                return False

        await until(so_many, f"{slaves} slaves in sync")


@asynccontextmanager
async def broker_set(
    home: Path,
    role: str = "SYNC_MASTER",
    slaves: int = 1,
    options: Sequence[str] = (),
    master_options: Sequence[str] = (),
    program: Sequence[str] = (),
) -> AsyncIterator[BrokerSet]:
    """A set that is registered, its slaves in sync. ``program`` runs instead of the command ``broker``."""
    namesrv = namesrv_daemon(home)
    ha_port = reserve()
    common = (*SMALL, "--broker-name", NAME, *options)
    master = broker_daemon(
        home, "master", namesrv.addr, 0, *common, "--broker-role", role, "--ha-listen-port", str(ha_port.number),
        *master_options,
    )  # fmt: skip
    made = BrokerSet(home, namesrv, master, [
        broker_daemon(
            home, f"slave-{number}", namesrv.addr, 0, *common, "--broker-role", "SLAVE", "--broker-id", str(number)
        )
        for number in range(1, slaves + 1)
    ])  # fmt: skip
    for broker in (master, *made.slaves) if program else ():
        broker.command = [*program, *broker.command[1:]]
    async with started(namesrv, master, *made.slaves):
        await until_registered(made.cluster, [NAME])
        await made.until_in_sync(slaves)
        yield made
