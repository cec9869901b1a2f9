"""A NameServer, Controllers, and one set of brokers whose master the Controllers choose: processes on loopback.

The quickstart, the end-to-end tests and a bench kill and freeze them, and ask who leads.
"""

import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import trio

from scripts.daemons import (
    BIN,
    HOST,
    POLL_S,
    Daemon,
    DaemonFailed,
    broker_daemon,
    namesrv_daemon,
    reserve,
    stop,
    wait_ready,
)
from skylark import Admin
from skylark.mqcommon.errors import BrokerError, RemotingError, RouteNotFound, UserError
from skylark.mqcommon.names import MASTER_ID
from skylark.remoting.protocol.requests.controller import InSyncStateData
from skylark.remoting.protocol.requests.topics import TopicConfig

NAME = "broker-a"
TIMEOUT_S = 60
# The errors of a broker or a Controller while another one takes over.
NOT_YET = (RemotingError, BrokerError, RouteNotFound, UserError)
CUT_DIR = "cut"

AnySet = TypeVar("AnySet", bound="ControllerSet")


async def until(reached: Callable[[], bool | Awaitable[bool]], what: str, timeout_s: float = TIMEOUT_S) -> None:
    """Ask again and again; DaemonFailed, with ``what`` in its text, when the answer does not come in time."""
    with trio.move_on_after(timeout_s):
        while True:
            answer = reached()
            if answer if isinstance(answer, bool) else await answer:
                return
            await trio.sleep(POLL_S)
    raise DaemonFailed(f"not within {timeout_s:.0f} s: {what}")


def controller_daemon(home: Path, name: str, peers: str, port: int, *options: str) -> Daemon:
    """A Controller whose files are in ``home``; ``port`` is its own in ``peers``."""
    command = [
        str(BIN / "controller"),
        "--controller-d-leger-peers",
        peers,
        "--controller-d-leger-self-id",
        name,
        "--controller-store-path",
        str(home / f"controller-{name}"),
        *options,
    ]
    return Daemon(f"controller-{name}", command, port, home / f"controller-{name}.log")


class ControllerSet:
    """The processes of one set. All ``brokers`` are equal: `master` says which of them leads.

    ``options`` go to each broker's command line.
    """

    def __init__(
        self,
        home: Path,
        brokers: int = 3,
        options: Sequence[str] = (),
        controllers: int = 3,
        controller_options: Sequence[str] = (),
        name: str = NAME,
    ) -> None:
        self.home = home
        self.name = name
        self.namesrv = namesrv_daemon(home)
        self._ports = [reserve() for _ in range(controllers + brokers)]
        ports = [port.number for port in self._ports]
        peers = ";".join(f"n{number}-{HOST}:{port}" for number, port in enumerate(ports[:controllers]))
        self.controllers = [
            controller_daemon(home, f"n{number}", peers, port, *controller_options)
            for number, port in enumerate(ports[:controllers])
        ]
        self.ha_ports = ports[controllers:]
        self.brokers = [
            broker_daemon(home, f"replica-{number}", self.nameserver, 0, *self.mode_options(number), *options)
            for number in range(brokers)
        ]

    @property
    def nameserver(self) -> str:
        return self.namesrv.addr

    @property
    def controller_addrs(self) -> list[str]:
        return [controller.addr for controller in self.controllers]

    @property
    def daemons(self) -> list[Daemon]:
        """All daemons, in the order in which they are started."""
        return [self.namesrv, *self.controllers, *self.brokers]

    def mode_options(self, number: int) -> tuple[str, ...]:
        """The options that make broker ``number`` a member of the set in Controller mode."""
        return (
            "--broker-name",
            self.name,
            "--broker-id",
            "-1",
            "--enable-controller-mode",
            "true",
            "--controller-addr",
            ";".join(self.controller_addrs),
            "--ha-listen-port",
            str(self.ha_ports[number]),
        )

    # --- start and stop

    def start(self) -> None:
        """Start all daemons, and wait until they serve; `until_in_sync` waits for the set."""
        for daemon in self.daemons:
            daemon.start()
        wait_ready(self.daemons)

    def stop(self) -> list[str]:
        """Stop all gracefully, brokers first; returns the problems."""
        return stop(self.brokers) + stop(self.controllers) + stop([self.namesrv])

    def end(self) -> None:
        """Kill the daemons that still run."""
        for daemon in reversed(self.daemons):
            if daemon.runs:
                daemon.kill()

    async def start_broker(self, broker: Daemon) -> None:
        """Start a broker that is down, and wait until it serves."""
        broker.start()
        await until(broker.ready, f"{broker.name} serves")

    # --- files

    def store_of(self, broker: Daemon) -> Path:
        return self.home / broker.name

    def lose_disk(self, broker: Daemon) -> None:
        """Remove a broker's store, with the broker's id in it."""
        shutil.rmtree(self.store_of(broker))

    def id_of(self, broker: Daemon) -> int:
        """The id that the Controllers gave a broker, from its store."""
        _, _, broker_id = (self.store_of(broker) / "brokerIdentity").read_text(encoding="utf-8").split("#")
        return int(broker_id)

    def cut_tails(self) -> list[Path]:
        """The files with tails that brokers cut from their logs."""
        return [path for broker in self.brokers for path in (self.store_of(broker) / CUT_DIR).glob("**/*")]

    # --- who leads

    async def known(self, admin: Admin) -> InSyncStateData:
        """The state of the set, from the Controllers. Raises one of `NOT_YET` while they cannot say."""
        found = (await admin.sync_state_sets(self.controller_addrs, [self.name])).replicas_info_table
        if self.name not in found:
            raise UserError(f"the Controllers do not know {self.name}")
        return found[self.name]

    async def epoch(self, admin: Admin) -> str:
        """The epoch in which the present master was elected."""
        return f"epoch {(await self.known(admin)).master_epoch}"

    async def leading_controller(self, admin: Admin) -> Daemon | None:
        """The Controller that leads."""
        for each in self.controllers:
            if each.runs:
                try:
                    if (await admin.controller_metadata(each.addr)).is_leader:
                        return each
                except NOT_YET:
                    continue
        return None

    async def until_master(self, admin: Admin, but: Daemon | None = None) -> Daemon:
        """The master that the Controllers name and whose route the NameServer has; another broker than ``but``."""
        found: list[Daemon] = []

        async def is_there() -> bool:
            try:
                named = (await self.known(admin)).master_address
                routed = (await admin.cluster_info()).broker_addr_table[self.name].broker_addrs.get(MASTER_ID)
            except (*NOT_YET, KeyError):
                return False
            found[:] = [each for each in self.brokers if each.addr == named == routed and each is not but]
            return bool(found)

        await until(is_there, f"{self.name} has a{'nother' if but else ''} master")
        return found[0]

    async def until_in_sync(self, admin: Admin, count: int | None = None) -> Daemon:
        """Wait until ``count`` replicas, by default all brokers, are in the SyncStateSet; returns the master."""
        wanted = len(self.brokers) if count is None else count

        async def is_reached() -> bool:
            try:
                known = await self.known(admin)
            except NOT_YET:
                return False
            alive = [each for each in known.in_sync_replicas if each.alive]
            return len(alive) == len(known.in_sync_replicas) == wanted

        await until(is_reached, f"{wanted} replicas are in sync")
        return await self.until_master(admin)

    async def in_sync_addresses(self, admin: Admin) -> list[str]:
        """The addresses of the replicas in the SyncStateSet, dead or alive, as soon as the Controllers can say."""
        found: list[str] = []

        async def is_known() -> bool:
            try:
                found[:] = [each.broker_address for each in (await self.known(admin)).in_sync_replicas]
            except NOT_YET:
                return False
            return bool(found)

        await until(is_known, "the Controllers know the SyncStateSet")
        return found

    async def until_no_master(self, admin: Admin) -> None:
        """Wait until the Controllers name no master."""

        async def none() -> bool:
            try:
                return (await self.known(admin)).master_broker_id is None
            except NOT_YET:
                return False

        await until(none, f"{self.name} has no master")

    async def make_topic(self, admin: Admin, topic: str, queues: int = 4) -> None:
        """Make a topic at the master, and wait for its route and for the copies of all running slaves."""
        master = await self.until_master(admin)
        await admin.create_topic(master.addr, TopicConfig(topic, queues, queues))

        async def everywhere() -> bool:
            try:
                await admin.topic_route(topic)
                tables = [await admin.all_topic_config(each.addr) for each in self.brokers if each.runs]
            except NOT_YET:
                return False
            return all(topic in table.topic_config_table for table in tables)

        await until(everywhere, f"all have topic {topic}")


@asynccontextmanager
async def running(made: AnySet) -> AsyncIterator[AnySet]:
    """Run the set in the block; daemons that still run at its end are killed."""
    try:
        await trio.to_thread.run_sync(made.start)
        yield made
    finally:
        made.end()
