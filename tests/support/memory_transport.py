"""Transports in memory: connected pairs, and a network of listeners. Like TCP, but with a schedule that repeats.

A direction holds a bounded number of bytes, so that a peer that does not read can be tested, and a connection can be
cut. Nothing here waits for the operating system: under MockClock a test that waits for a timeout takes no time.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

import trio

from skylark.mqcommon.addresses import format_address
from skylark.mqcommon.disk.files import MappedFile
from skylark.remoting.net.transport import Listener, Transport

SERVER = "127.0.0.1:10911"
CLIENT = "127.0.0.1:50001"
# About what sockets on loopback take before anybody reads.
CAPACITY_BYTES = 2 * 1024 * 1024
BACKLOG = 1_000


class _Way:
    """The bytes of one direction that were sent and not yet received."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.data = bytearray()
        # The sender has closed its end; the receiver has; why nothing moves any more.
        self.ended = False
        self.refused = False
        self.broken = ""
        self.changed = trio.lowlevel.ParkingLot()

    @property
    def free(self) -> int:
        return self.capacity - len(self.data)

    def take(self, size: int) -> bytes:
        taken = bytes(self.data[:size])
        del self.data[:size]
        self.changed.unpark_all()
        return taken

    def put(self, data: bytes | memoryview) -> int:
        part = data[: self.free]
        self.data += part
        self.changed.unpark_all()
        return len(part)


class MemoryTransport(Transport):
    """One end of a connection; `memory_pair` makes both."""

    def __init__(self, local: str, remote: str, incoming: _Way, outgoing: _Way) -> None:
        self.local = local
        self.remote = remote
        self._incoming = incoming
        self._outgoing = outgoing
        self._closed = False
        self._busy: set[str] = set()

    async def receive(self, max_bytes: int) -> bytes:
        await self._readable()
        return self._incoming.take(max_bytes)

    async def receive_into(self, buffer: memoryview) -> int:
        await self._readable()
        data = self._incoming.take(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def try_send(self, pieces: list[bytes | memoryview]) -> int:
        self._check_sendable()
        taken = 0
        for piece in pieces:
            part = self._outgoing.put(piece)
            taken += part
            if part < len(piece):
                break
        return taken

    async def send_all(self, data: bytes | memoryview) -> None:
        with self._alone("send"):
            await trio.lowlevel.checkpoint()
            rest = memoryview(data)
            while True:
                self._check_sendable()
                rest = rest[self._outgoing.put(rest) :]
                if not rest:
                    return
                await self._outgoing.changed.park()

    async def send_file(self, file: MappedFile, at: int, size: int) -> None:
        await self.send_all(await trio.to_thread.run_sync(file.pread, at, size))

    async def aclose(self) -> None:
        self._closed = self._outgoing.ended = self._incoming.refused = True
        self._notify()
        await trio.lowlevel.checkpoint()

    def cut(self, reason: str = "Connection reset by peer") -> None:
        """Break the connection for both ends; what was on its way is lost."""
        for way in (self._incoming, self._outgoing):
            way.broken = reason
            way.data.clear()
        self._notify()

    def take(self) -> bytes:
        """The bytes that have come, without waiting."""
        return self._incoming.take(len(self._incoming.data))

    async def _readable(self) -> None:
        way = self._incoming
        with self._alone("receive"):
            await trio.lowlevel.checkpoint()
            while True:
                self._check()
                if way.data or way.ended:
                    return
                await way.changed.park()

    def _check_sendable(self) -> None:
        self._check()
        if self._outgoing.refused:
            raise trio.BrokenResourceError(os.strerror(errno.EPIPE))

    def _check(self) -> None:
        if self._closed:
            raise trio.ClosedResourceError("this connection was closed")
        if self._incoming.broken:
            raise trio.BrokenResourceError(self._incoming.broken)

    def _notify(self) -> None:
        self._incoming.changed.unpark_all()
        self._outgoing.changed.unpark_all()

    @contextmanager
    def _alone(self, what: str) -> Iterator[None]:
        if what in self._busy:
            raise trio.BusyResourceError(f"another task waits in {what} already")
        self._busy.add(what)
        try:
            yield
        finally:
            self._busy.discard(what)


def memory_pair(
    client: str = CLIENT, server: str = SERVER, *, capacity: int = CAPACITY_BYTES
) -> tuple[MemoryTransport, MemoryTransport]:
    """Both ends of a connection, the client's first; ``capacity``: the bytes that each direction holds."""
    up, down = _Way(capacity), _Way(capacity)
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
