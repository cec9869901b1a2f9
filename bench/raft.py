"""Entries that a Raft group commits a second: three nodes in this process, loopback between them, fsync on each disk.

    python -m bench.raft [--n 100000] [--rounds 5] [--in-flight 4000] [--bytes 64] [--store-dir DIR] [--json]

Skylark: proposals until the leader has applied all of them. The limit is a group of one node, which has no network
between a proposal and its commit: the same disk, the same state machine.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Any

import trio

from bench.harness import Row, in_turn, row, show
from skylark.mqcommon.clock import SystemClock
from skylark.mqcommon.disk.files import OsFiles
from skylark.mqcommon.raft.errors import RaftError
from skylark.mqcommon.signal import Signal
from skylark.remoting.net.client import open_client
from skylark.remoting.net.server import Server
from skylark.remoting.net.sockets import HeldPort, listen
from skylark.remoting.raft.disk import FileDisk
from skylark.remoting.raft.group import NodeOptions
from skylark.remoting.raft.node import RaftNode
from skylark.remoting.raft.storage import FileStorage


class Counter:
    """A state that is cheap to change, so that the figure is Raft's."""

    def __init__(self) -> None:
        self.count = 0

    def apply(self, index: int, data: bytes) -> int:
        self.count += 1
        return self.count

    def snapshot(self) -> bytes:
        return b"%d" % self.count

    def restore(self, data: bytes) -> None:
        self.count = int(data or b"0")


class Load:
    """Keeps ``in_flight`` proposals under way until ``count`` are done."""

    def __init__(self, node: RaftNode, count: int, in_flight: int, data: bytes) -> None:
        self._node = node
        self._count = count
        self._in_flight = in_flight
        self._data = data
        self._sent = self._done = 0
        self._wake = Signal()

    def _answered(self, result: Any) -> None:
        if isinstance(result, RaftError):
            raise result
        self._done += 1
        self._wake.set()

    async def run(self) -> None:
        while self._done < self._count:
            room = min(self._in_flight - (self._sent - self._done), self._count - self._sent)
            for _ in range(room):
                self._node.submit(self._data, self._answered)
            self._sent += room
            await self._wake.wait()


async def measure(nodes: int, args: argparse.Namespace) -> float:
    """Entries a second of a new group."""
    ports = [HeldPort("127.0.0.1") for _ in range(nodes)]
    peers = {f"n{number}": f"127.0.0.1:{port.port}" for number, port in enumerate(ports)}
    group: list[RaftNode] = []
    async with AsyncExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(dir=args.store_dir))
        clients = [await stack.enter_async_context(open_client()) for _ in peers]
        nursery = await stack.enter_async_context(trio.open_nursery())
        for client, (name, port) in zip(clients, zip(peers, ports, strict=True), strict=True):
            storage = FileStorage(OsFiles(), os.path.join(directory, name))
            options = NodeOptions("bench", name, peers)
            node = RaftNode(options, FileDisk(storage), Counter(), client, SystemClock())
            server = Server(node.handlers(), node.slow_handlers())
            await nursery.start(server.serve_on, await listen("127.0.0.1", port.port))
            await nursery.start(node.run)
            group.append(node)
        while not any(node.is_leader for node in group):  # noqa: ASYNC110  nodes have no event for it
            await trio.sleep(0.01)
        leader = next(node for node in group if node.is_leader)
        await Load(leader, args.n // 10, args.in_flight, bytes(args.bytes)).run()
        started = time.perf_counter()
        await Load(leader, args.n, args.in_flight, bytes(args.bytes)).run()
        rate: float = args.n / (time.perf_counter() - started)
        nursery.cancel_scope.cancel()
    for port in ports:
        port.release()
    return rate


def rows(args: argparse.Namespace) -> Iterator[Row]:
    three, one = in_turn(args.rounds, lambda: trio.run(measure, 3, args), lambda: trio.run(measure, 1, args))
    yield row("raft, 3 nodes", "entries/s", three, one, args.n)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--in-flight", type=int, default=4_000)
    parser.add_argument("--bytes", type=int, default=64)
    parser.add_argument("--store-dir")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    show(rows(args), args.json)


if __name__ == "__main__":
    main()
