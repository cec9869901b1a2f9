"""Nodes of a group in one process, on loopback and on disks in memory."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from random import Random
from typing import Any

import trio

from skylark.mqcommon.clock import SystemClock
from skylark.mqcommon.errors import RaftError
from skylark.remoting.net.client import open_client
from skylark.remoting.net.server import Server
from skylark.remoting.net.sockets import HeldPort, listen
from skylark.remoting.raft.disk import FileDisk
from skylark.remoting.raft.group import NodeOptions
from skylark.remoting.raft.node import RaftNode
from skylark.remoting.raft.storage import FileStorage
from tests.support.memory_files import MemoryFiles
from tests.support.waiting import DEADLINE_S, until

GROUP = "test"
TIMEOUT_MS = 5_000
PAUSE_S = 0.02


class Texts:
    """A state: all different texts that were applied, as a write may come twice when the leader changes."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def apply(self, index: int, data: bytes) -> int:
        if data.decode() not in self.texts:
            self.texts.append(data.decode())
        return len(self.texts)

    def snapshot(self) -> bytes:
        return ",".join(self.texts).encode()

    def restore(self, data: bytes) -> None:
        self.texts = data.decode().split(",") if data else []


class PausedClock(SystemClock):
    """The clock of a machine that may stand still: its nodes do nothing meanwhile, and time goes on."""

    def __init__(self) -> None:
        self._paused_ms = 0

    def pause(self, ms: int) -> None:
        # The loop stands still for so long that all nodes tick before they read, as after a real pause.
        ends = time.monotonic() + PAUSE_S
        while time.monotonic() < ends:
            pass
        self._paused_ms += ms

    def monotonic_ms(self) -> int:
        return super().monotonic_ms() + self._paused_ms


class RunningNode:
    """A node that was started. ``disk`` outlives the node."""

    def __init__(self, name: str, peers: dict[str, str], disk: MemoryFiles, clock: PausedClock, **more: Any) -> None:
        self._clock = clock
        self.name = name
        self.texts = Texts()
        self.disk = disk
        options = {"election_ms": 300, "heartbeat_ms": 30, **more}
        self._options = NodeOptions(GROUP, name, peers, random=Random(name), **options)
        self._scope = trio.CancelScope()
        self._ended = trio.Event()
        self.node: RaftNode
        #: Whom it took for the leader, one after another; "" while it knew none.
        self.leaders: list[str] = []

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        storage = FileStorage(self.disk, "/raft")
        host, port = self._options.addr.split(":")
        try:
            with self._scope:
                async with open_client() as client, trio.open_nursery() as nursery:
                    self.node = RaftNode(self._options, FileDisk(storage), self.texts, client, self._clock)
                    self.node.on_leader(self.leaders.append)
                    server = Server(self.node.handlers(), self.node.slow_handlers())
                    await nursery.start(server.serve_on, await listen(host, int(port)))
                    await nursery.start(self.node.run)
                    task_status.started()
        finally:
            storage.close()
            self._ended.set()

    async def stop(self) -> None:
        self._scope.cancel()
        await self._ended.wait()


class Nodes:
    """A group; ``start`` and ``stop`` by name."""

    def __init__(self, nursery: trio.Nursery, peers: dict[str, str], more: dict[str, Any]) -> None:
        self.peers = peers
        self._nursery = nursery
        self._more = more
        self.disks = {name: MemoryFiles() for name in peers}
        self.running: dict[str, RunningNode] = {}
        self.clock = PausedClock()

    async def start(self, *names: str) -> None:
        for name in names:
            self.running[name] = node = RunningNode(name, self.peers, self.disks[name], self.clock, **self._more)
            await self._nursery.start(node.run)

    async def stop(self, name: str) -> None:
        await self.running.pop(name).stop()

    async def leader(self) -> RunningNode:
        await until(lambda: any(each.node.is_leader for each in self.running.values()), "a leader")
        return next(each for each in self.running.values() if each.node.is_leader)

    async def write(self, text: str) -> int:
        """How many texts there are then."""
        result: int = await self.ask_leader(lambda leader: leader.node.propose(text.encode(), TIMEOUT_MS))
        return result

    async def ask_leader(self, ask: Callable[[RunningNode], Awaitable[Any]]) -> Any:
        """The answer of the leader, which on a busy machine may have changed a moment ago."""
        with trio.fail_after(DEADLINE_S):
            while True:
                leader = await self.leader()
                with suppress(RaftError):
                    return await ask(leader)
                await trio.sleep(0.01)

    async def agree(self, texts: list[str]) -> None:
        """Wait until all that run have applied ``texts``."""
        await until(lambda: all(each.texts.texts == texts for each in self.running.values()), f"all have {texts}")


@asynccontextmanager
async def open_nodes(*names: str, **more: Any) -> AsyncIterator[Nodes]:
    ports = {name: HeldPort("127.0.0.1") for name in names}
    peers = {name: f"127.0.0.1:{port.port}" for name, port in ports.items()}
    async with trio.open_nursery() as nursery:
        yield Nodes(nursery, peers, more)
        nursery.cancel_scope.cancel()
    for port in ports.values():
        port.release()
