"""A NameServer and a DLedger group of brokers, or another set without Controllers: processes on loopback.

The quickstart, the end-to-end tests and a bench kill and freeze them, and ask who leads.
"""

from collections.abc import Sequence
from pathlib import Path

from scripts.controller_set import NAME, NOT_YET, ControllerSet, until
from scripts.daemons import HOST, Daemon, reserve
from skylark import Admin
from skylark.mqcommon.names import MASTER_ID


class UncontrolledSet(ControllerSet):
    """The processes of one set of ``brokers`` without Controllers: the NameServer says which of them leads."""

    def __init__(self, home: Path, brokers: int, options: Sequence[str] = (), name: str = NAME) -> None:
        super().__init__(home, brokers, options, controllers=0, name=name)

    async def until_master(self, admin: Admin, but: Daemon | None = None) -> Daemon:
        """The master that the NameServer knows; another broker than ``but``."""
        found: list[Daemon] = []

        async def is_there() -> bool:
            try:
                routed = (await admin.cluster_info()).broker_addr_table[self.name].broker_addrs.get(MASTER_ID)
            except (*NOT_YET, KeyError):
                return False
            found[:] = [each for each in self.brokers if each.addr == routed and each is not but]
            return bool(found)

        await until(is_there, f"{self.name} has a{'nother' if but else ''} master")
        return found[0]

    async def until_in_sync(self, admin: Admin, count: int | None = None) -> Daemon:
        """Wait until ``count`` members, by default all brokers, have the whole log; returns the master."""
        wanted = len(self.brokers) if count is None else count

        async def is_reached() -> bool:
            try:
                running = [each for each in self.brokers if each.runs]
                ends = [(await admin.broker_runtime_info(each.addr))["commitLogMaxOffset"] for each in running]
            except NOT_YET:
                return False
            return ends.count(max(ends, key=int)) >= wanted

        master = await self.until_master(admin)
        await until(is_reached, f"{wanted} brokers have the same log")
        return master


class DLedgerSet(UncontrolledSet):
    """The processes of one group. All ``brokers`` are equal: `until_master` says which of them leads.

    ``options`` go to each broker's command line.
    """

    def __init__(self, home: Path, brokers: int = 3, options: Sequence[str] = (), name: str = NAME) -> None:
        self._reserved = [reserve() for _ in range(brokers)]
        self.group_ports = [port.number for port in self._reserved]
        super().__init__(home, brokers, options, name)

    @property
    def peers(self) -> str:
        return ";".join(f"n{number}-{HOST}:{port}" for number, port in enumerate(self.group_ports))

    def mode_options(self, number: int) -> tuple[str, ...]:
        return (
            "--broker-name",
            self.name,
            "--enable-dleger-commit-log",
            "true",
            "--d-leger-peers",
            self.peers,
            "--d-leger-self-id",
            f"n{number}",
        )

    async def epoch(self, admin: Admin) -> str:
        leader = (await admin.dledger_members((await self.until_master(admin)).addr)).leader
        return f"its group, as {leader}"
