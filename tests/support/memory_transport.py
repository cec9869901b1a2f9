"""Transports in memory: connected pairs, and a network of listeners. Like TCP, but with a schedule that repeats.

They are the transports inside of a process, with what tests of TCP need. A direction holds a bounded number of bytes,
so that a peer that does not read can be tested, and a connection can be cut. Nothing here waits for the operating
system: under MockClock a test that waits for a timeout takes no time.
"""

import errno
import os

import trio

from skylark.mqcommon.addresses import format_address
from skylark.remoting.net.in_process import Direction, InProcessTransport
from skylark.remoting.net.transport import Listener, Transport

SERVER = "127.0.0.1:10911"
CLIENT = "127.0.0.1:50001"
# About what sockets on loopback take before anybody reads.
CAPACITY_BYTES = 2 * 1024 * 1024
BACKLOG = 1_000


class MemoryTransport(InProcessTransport):
    """One end of a connection; `memory_pair` makes both. It counts as a connection that others can read."""

    __slots__ = ()

    @property
    def is_encrypted(self) -> bool:
        return False

    @property
    def buffered_bytes(self) -> int:
        return 0

    def take(self) -> bytes:
        """The bytes that have come, without waiting."""
        return self._incoming.take(self._incoming.size)


def memory_pair(
    client: str = CLIENT, server: str = SERVER, *, capacity: int = CAPACITY_BYTES
) -> tuple[MemoryTransport, MemoryTransport]:
    """Both ends of a connection, the client's first; ``capacity``: the bytes that each direction holds."""
    up, down = Direction(capacity), Direction(capacity)
    return MemoryTransport(client, server, down, up), MemoryTransport(server, client, up, down)


class MemoryListener(Listener):
    """One address of a `MemoryNetwork`."""

    def __init__(self, network: "MemoryNetwork", address: str) -> None:
        self.address = address
        self._network = network
        self._arrive, self._arrived = trio.open_memory_channel[MemoryTransport](BACKLOG)

    def arrive(self, transport: MemoryTransport) -> None:
        self._arrive.send_nowait(transport)

    async def accept(self) -> Transport:
        return await self._arrived.receive()

    async def aclose(self) -> None:
        self._network.listeners.pop(self.address, None)
        while self._arrived.statistics().current_buffer_used:
            self._arrived.receive_nowait().cut()
        self._arrived.close()
        await trio.lowlevel.checkpoint()


class MemoryNetwork:
    """The listeners by address. `connect` is an argument for `open_client`."""

    def __init__(self, *, capacity: int = CAPACITY_BYTES) -> None:
        self.listeners: dict[str, MemoryListener] = {}
        #: Where the next connections come from.
        self.client_host = "127.0.0.1"
        self._capacity = capacity
        self._next_port = 50_000

    def listen(self, address: str = SERVER) -> MemoryListener:
        assert address not in self.listeners, f"{address} is in use"
        listener = self.listeners[address] = MemoryListener(self, address)
        return listener

    async def connect(self, host: str, port: int) -> MemoryTransport:
        await trio.lowlevel.checkpoint()
        address = format_address(host, port)
        listener = self.listeners.get(address)
        if listener is None:
            raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        self._next_port += 1
        ours, theirs = memory_pair(format_address(self.client_host, self._next_port), address, capacity=self._capacity)
        listener.arrive(theirs)
        return ours
