"""A DLedger group in this process: memory for disks, real sockets."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio

from skylark.mqcommon.errors import RemotingError
from skylark.remoting.net.sockets import HeldPort
from skylark.remoting.protocol.codes import ResponseCode
from tests.broker.replication.sets import Running, broker
from tests.broker.running import send_request
from tests.support.memory_files import MemoryFiles
from tests.support.waiting import until

NAME = "group-a"


class Group:
    """A group. ``members`` by name; a killed member stays there until it is started again."""

    def __init__(self, nursery: trio.Nursery, names: tuple[str, ...], options: dict[str, Any]) -> None:
        self._nursery = nursery
        # Set to let a member stop; and whether it has.
        self._ends: list[tuple[trio.Event, trio.Event]] = []
        self._options = options
        self._ports = {name: HeldPort("127.0.0.1") for name in names}
        self.peers = self.peers_of(*names)
        self.members: dict[str, Running] = {}

    def peers_of(self, *names: str) -> str:
        return ";".join(f"{name}-127.0.0.1:{self.port(name)}" for name in names)

    def port(self, name: str) -> int:
        return self._ports[name].port

    async def start(self, name: str, fs: MemoryFiles | None = None, **more: Any) -> Running:
        options = {
            "broker_name": NAME, "enable_dleger_commit_log": True, "d_leger_peers": self.peers,
            "d_leger_self_id": name, **self._options, **more,
        }  # fmt: skip
        member: Running = await self._nursery.start(self._run, fs, options)
        self.members[name] = member
        return member

    async def _run(
        self, fs: MemoryFiles | None, options: dict[str, Any], *, task_status: trio.TaskStatus[Running]
    ) -> None:
        """A task of its own for each: they start and end in any order."""
        end, has_ended = trio.Event(), trio.Event()
        async with broker(fs, **options) as member:
            self._ends.append((end, has_ended))
            task_status.started(member)
            await end.wait()
        has_ended.set()

    async def stop(self) -> None:
        """Stop those that run, one after another."""
        for end, has_ended in reversed(self._ends):
            end.set()
            await has_ended.wait()

    async def leader(self, but: Running | None = None) -> Running:
        """The member that accepts messages."""
        found: list[Running] = []

        async def is_there() -> bool:
            for member in self.members.values():
                if member is not but and member.broker.role.now.is_master and not member.scope.cancel_called:
                    try:
                        request = send_request("ready", b"", n=NAME, defaultTopic="TBW102", defaultTopicQueueNums=1)
                        answer = await member.client.invoke(member.addr, request, 1_000)
                    except RemotingError:
                        continue
                    if answer.code == ResponseCode.SUCCESS:
                        found[:] = [member]
                        return True
            return False

        await until(is_there, "there is a leader")
        return found[0]

    def others(self, leader: Running) -> list[Running]:
        return [member for member in self.members.values() if member is not leader]

    async def until_equal(self) -> bytes:
        """All that run have the same log: its bytes."""
        running = [member for member in self.members.values() if not member.scope.cancel_called]
        await until(lambda: len({member.log() for member in running}) == 1, "all logs are equal")
        return running[0].log()


@asynccontextmanager
async def group(*names: str, **options: Any) -> AsyncIterator[Group]:
    """A group of which no member is started yet."""
    async with trio.open_nursery() as nursery:
        made = Group(nursery, names or ("n0", "n1", "n2"), options)
        yield made
        await made.stop()


@asynccontextmanager
async def started(**options: Any) -> AsyncIterator[Group]:
    """Three members run."""
    async with group(**options) as made:
        for name in ("n0", "n1", "n2"):
            await made.start(name)
        yield made
