"""The broker sets of all modes, with links that can be cut, and machines that can be made worse."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

import trio

from scripts.controller_set import NOT_YET, ControllerSet, until
from scripts.daemons import Daemon
from scripts.dledger_set import UncontrolledSet
from skylark import Admin
from tests.e2e.switches import NOTHING_LOST, LinkedSet, Switching, under_load
from tests.e2e.test_dledger import LinkedGroup
from tests.support.bad_machine import BadMachine
from tests.support.daemons import SMALL
from tests.support.links import Link

SINGLE, SET, CONTROLLER, DLEDGER = MODES = ("single", "master-slave", "controller", "dledger")
# A slave that is silent is away soon, and so is a master to its slave.
SOON = ("--ha-housekeeping-interval", "2000", "--ha-send-heartbeat-interval", "500", "--slave-timeout", "1000")


class Openable(Protocol):
    async def open(self, nursery: trio.Nursery) -> None: ...


class SingleBroker(UncontrolledSet):
    """One broker alone."""

    def __init__(self, home: Path) -> None:
        super().__init__(home, 1, SMALL)

    def mode_options(self, number: int) -> tuple[str, ...]:
        return ("--broker-name", self.name, "--flush-disk-type", "SYNC_FLUSH")

    async def open(self, nursery: trio.Nursery) -> None:
        """There are no links."""


class MasterAndSlave(UncontrolledSet):
    """A SYNC_MASTER and its slave, which copies through a link."""

    def __init__(self, home: Path) -> None:
        super().__init__(home, 2, (*SMALL, *SOON))
        # At the same port of another address of loopback.
        self.to_slave = Link(self.ha_ports[0], "127.0.0.10", self.ha_ports[0])

    def mode_options(self, number: int) -> tuple[str, ...]:
        role = ("--broker-role", "SLAVE", "--broker-id", "1") if number else ("--broker-role", "SYNC_MASTER")
        ports = ("--ha-listen-port", str(self.ha_ports[number]))
        return ("--broker-name", self.name, *role, *ports)

    async def open(self, nursery: trio.Nursery) -> None:
        """Before the brokers start."""
        await nursery.start(self.to_slave.run)
        self.brokers[0].command = [*self.brokers[0].command, "--broker-ip2", self.to_slave.addr.partition(":")[0]]

    async def until_in_sync(self, admin: Admin, count: int | None = None) -> Daemon:
        """Wait until the slave follows closely; returns the master."""
        master = await self.until_master(admin)

        async def is_reached() -> bool:
            try:
                return (await admin.broker_ha_status(master.addr)).in_sync_slave_nums == 1
            except NOT_YET:
                return False

        await until(is_reached, "the slave is in sync")
        return master


MADE: dict[str, Callable[[Path], ControllerSet]] = {
    SINGLE: SingleBroker,
    SET: MasterAndSlave,
    CONTROLLER: lambda home: LinkedSet(home, NOTHING_LOST),
    DLEDGER: LinkedGroup,
}

Now = Switching[ControllerSet]


async def open_links(at: ControllerSet, nursery: trio.Nursery) -> None:
    """Open the links of a set of `MADE`, before its brokers start."""
    openable: Openable = at  # type: ignore[assignment]  # all sets of MADE are Openable; no type says both
    await openable.open(nursery)


class Machines:
    """A machine for each broker, whose disk and clock tests make worse."""

    def __init__(self, home: Path, at: ControllerSet) -> None:
        self._of: dict[str, BadMachine] = {}
        for broker in at.brokers:
            directory = home / f"machine-{broker.name}"
            directory.mkdir()
            self._of[broker.name] = machine = BadMachine(directory)
            broker.command = machine.holding(broker).command

    def of(self, broker: Daemon) -> BadMachine:
        return self._of[broker.name]


class Trial:
    """A set of a mode under load, for the faults that it gets."""

    def __init__(self, mode: str, now: Now, machines: Machines | None) -> None:
        self.mode = mode
        self.now = now
        self.at = now.at
        self.load = now.load
        self._machines = machines

    def machine_of(self, broker: Daemon) -> BadMachine:
        assert self._machines is not None, "this fault needs machines"
        return self._machines.of(broker)

    async def roles(self) -> tuple[Daemon, list[Daemon]]:
        """The master and the other brokers, when all follow."""
        master = await self.at.until_in_sync(self.now.admin)
        return master, [broker for broker in self.at.brokers if broker is not master]

    async def leading_controller(self) -> Daemon:
        return await self.at.leading_controller(self.now.admin) or self.at.controllers[0]

    def links_between_brokers(self, broker: Daemon) -> Sequence[tuple[Link, bool]]:
        """The links between this broker and the others, and whether this broker is the near side of each."""
        match self.at:
            case LinkedGroup() as group:
                own = group.brokers.index(broker)
                near = [(link, True) for number, link in enumerate(group.links[own]) if number != own]
                return [*near, *((links[own], False) for number, links in enumerate(group.links) if number != own)]
            case LinkedSet() as linked:
                return [(linked.slaves_link_of(broker), False)]
            case MasterAndSlave() as pair:
                return [(pair.to_slave, broker is not pair.brokers[0])]
        return []

    def links_to_controllers(self, broker: Daemon) -> Sequence[tuple[Link, bool]]:
        """As above. Empty when the broker asks a Controller at an address of which others told: no link is between."""
        if isinstance(self.at, LinkedSet) and self.at.asks_through_links(broker):
            return [(link, True) for link in self.at.links_of(broker)]
        return []

    def mend_all(self) -> None:
        """Mend all links of the set."""
        for broker in self.at.brokers:
            to_controllers = self.at.links_of(broker) if isinstance(self.at, LinkedSet) else []
            for link in [*(link for link, _ in self.links_between_brokers(broker)), *to_controllers]:
                link.mend()


@asynccontextmanager
async def trial(
    mode: str, home: Path, *, machines: bool = False, options: Sequence[str] = (), is_stopped: bool = False
) -> AsyncIterator[Trial]:
    """A set in sync, under load until the block ends; then all is checked. ``options``: more for all brokers."""
    at = MADE[mode](home)
    for broker in at.brokers:
        broker.command = [*broker.command, *options]
    made = Machines(home, at) if machines else None
    async with trio.open_nursery() as links:
        await open_links(at, links)
        async with under_load(at, is_stopped=is_stopped) as now:
            yield Trial(mode, now, made)
        links.cancel_scope.cancel()
