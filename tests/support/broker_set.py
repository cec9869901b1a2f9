"""A master and its slaves as processes of their own; each has a store, and all have one name."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from broker.replication.master_api import MasterClient as BrokerTables
from mqcommon.errors import BrokerError, RemotingError
from remoting.net.client import open_client
from remoting.protocol.requests.brokers import HARuntimeInfo
from remoting.protocol.requests.topics import TopicConfig
from scripts.daemons import Daemon, broker_daemon, namesrv_daemon
from scripts.ports import reserve
from sdk import Admin
from tests.support.cluster import SMALL, Cluster, until_registered, until_route
from tests.support.waiting import until

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
        """For tests of any cluster."""
        return Cluster(self.home, [self.namesrv], [self.master])

    def store_of(self, daemon: Daemon) -> Path:
        return self.home / daemon.name

    async def make_topic(self, name: str, queues: int = 4) -> None:
        """On the master, and copied by its slaves: what comes before a slave knows the topic cannot be read there."""
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
        """The master says that so many slaves follow closely."""

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
    daemons = [namesrv, master, *made.slaves]
    for broker in daemons[1:] if program else ():
        broker.command = [*program, *broker.command[1:]]
    try:
        for daemon in daemons:
            daemon.start()
        for daemon in daemons:
            await until(daemon.ready, f"{daemon.name} is ready")
        await until_registered(made.cluster, [NAME])
        await made.until_in_sync(slaves)
        yield made
    finally:
        for daemon in reversed(daemons):
            if daemon.runs:
                daemon.kill()
