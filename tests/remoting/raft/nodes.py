"""Nodes of a group in one process, on loopback and on disks in memory."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from random import Random
from typing import Any

import trio

from mqcommon.clock import SystemClock
from mqcommon.errors import RaftError
from remoting.net.client import open_client
from remoting.net.server import Server
from remoting.net.sockets import HeldPort, listen
from remoting.raft.disk import FileDisk
from remoting.raft.group import NodeOptions
from remoting.raft.node import RaftNode
from remoting.raft.storage import FileStorage
from tests.support.memory_files import MemoryFiles
from tests.support.waiting import until

GROUP = "test"
TIMEOUT_MS = 5_000


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


class RunningNode:
    """One that was started. ``disk`` outlives it."""

    def __init__(self, name: str, peers: dict[str, str], disk: MemoryFiles, **more: Any) -> None:
        self.name = name
        self.texts = Texts()
        self.disk = disk
        self._options = NodeOptions(GROUP, name, peers, election_ms=300, heartbeat_ms=30, random=Random(name), **more)
        self._scope = trio.CancelScope()
        self._ended = trio.Event()
        self.node: RaftNode

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        storage = FileStorage(self.disk, "/raft")
        host, port = self._options.addr.split(":")
        try:
            with self._scope:
                async with open_client() as client, trio.open_nursery() as nursery:
                    self.node = RaftNode(self._options, FileDisk(storage), self.texts, client, SystemClock())
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

    async def start(self, *names: str) -> None:
        for name in names:
            self.running[name] = node = RunningNode(name, self.peers, self.disks[name], **self._more)
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
        """What a leader answers; on a busy machine it may be another one than a moment ago."""
        with trio.fail_after(60):
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
