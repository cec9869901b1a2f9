"""Connections inside of one event loop, without sockets: how a proxy in a broker's process reaches that broker.

Both ends of a connection are objects of the same loop. A direction holds a bounded number of bytes, so a peer that does
not read stops its sender, as with sockets. What is sent is copied once at most, and no system call is made.
"""

import errno
import os
from collections import deque
from collections.abc import Collection
from typing import TYPE_CHECKING, NamedTuple

import trio

from skylark.mqcommon.addresses import format_address, server_address, split_address
from skylark.remoting.net.limits import ConnectionBudget
from skylark.remoting.net.transport import Connect, DirectCalls, Listener, Shortcut, Transport

if TYPE_CHECKING:
    from skylark.mqcommon.disk.files import MappedFile

# The bytes that a direction holds. A connection needs no memory while nothing is on its way.
CAPACITY_BYTES = 256 * 1024
# The most connections that wait for `accept`; further ones wait in `connect`.
BACKLOG = 1_024
# Clients of a listener are numbered as if they had ports of their own. The range is the system's for outgoing ports.
_PORTS = range(32_768, 61_000)


class Direction:
    """The bytes of one direction that were sent and not yet received."""

    __slots__ = ("broken", "capacity_bytes", "ended", "pieces", "readers", "refused", "size", "writers")

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.pieces: deque[bytes | memoryview] = deque()
        #: The bytes of all pieces.
        self.size = 0
        #: Whether the sender has closed its end, and whether the receiver has.
        self.ended = False
        self.refused = False
        #: Why the connection broke; empty while it is whole.
        self.broken = ""
        self.readers = trio.lowlevel.ParkingLot()
        self.writers = trio.lowlevel.ParkingLot()

    def put(self, data: bytes | memoryview) -> int:
        """Add as much of ``data`` as there is room for; returns the number of bytes."""
        part = data[: self.capacity_bytes - self.size] if self.capacity_bytes > self.size else b""
        if part:
            # The sender may change what a memoryview shows, so that is copied; bytes are not.
            self.pieces.append(bytes(part))
            self.size += len(part)
            self.readers.unpark_all()
        return len(part)

    def take(self, most: int) -> bytes:
        """Remove at most ``most`` bytes; b"" when there are none."""
        pieces, taken, size = self.pieces, list[bytes | memoryview](), 0
        while pieces and size < most:
            piece = pieces.popleft()
            if size + len(piece) > most:
                view = memoryview(piece)
                pieces.appendleft(view[most - size :])
                piece = view[: most - size]
            taken.append(piece)
            size += len(piece)
        self.size -= size
        self.writers.unpark_all()
        return bytes(taken[0]) if len(taken) == 1 else b"".join(taken)

    def wake(self) -> None:
        """Wake all waiters; each rechecks its condition."""
        self.readers.unpark_all()
        self.writers.unpark_all()


class InProcessTransport(Transport):
    """One end of a connection; `in_process_pair` makes both."""

    __slots__ = ("_closed", "_incoming", "_is_receiving", "_is_sending", "_outgoing", "direct_calls")

    def __init__(
        self, local: str, remote: str, incoming: Direction, outgoing: Direction, direct_calls: DirectCalls | None = None
    ) -> None:
        self.local, self.remote = local, remote
        self._incoming, self._outgoing = incoming, outgoing
        self.direct_calls = direct_calls
        self._closed = False
        self._is_receiving = self._is_sending = False

    @property
    def is_encrypted(self) -> bool:
        # Nobody can read what does not leave the process.
        return True

    @property
    def buffered_bytes(self) -> int:
        return self._incoming.size

    async def receive(self, max_bytes: int) -> bytes:
        await self._wait_readable()
        return self._incoming.take(max_bytes)

    async def receive_into(self, buffer: memoryview) -> int:
        await self._wait_readable()
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
        if self._is_sending:
            raise trio.BusyResourceError("another task is sending already")
        self._is_sending = True
        try:
            await trio.lowlevel.checkpoint()
            self._check_sendable()
            taken = self._outgoing.put(data)
            while taken < len(data):
                await self._outgoing.writers.park()
                self._check_sendable()
                taken += self._outgoing.put(memoryview(data)[taken:])
        finally:
            self._is_sending = False

    async def send_file(self, file: "MappedFile", at: int, size: int) -> None:
        while size:
            part = min(size, CAPACITY_BYTES)
            await self.send_all(await trio.to_thread.run_sync(file.pread, at, part))
            at, size = at + part, size - part

    async def aclose(self) -> None:
        self._closed = self._outgoing.ended = self._incoming.refused = True
        self._incoming.wake()
        self._outgoing.wake()
        await trio.lowlevel.checkpoint()

    def cut(self, reason: str = os.strerror(errno.ECONNRESET)) -> None:
        """Break the connection for both ends; bytes on their way are lost."""
        for direction in (self._incoming, self._outgoing):
            direction.broken = reason
            direction.pieces.clear()
            direction.size = 0
            direction.wake()

    async def _wait_readable(self) -> None:
        if self._is_receiving:
            raise trio.BusyResourceError("another task is receiving already")
        self._is_receiving = True
        try:
            if self._is_readable():
                await trio.lowlevel.checkpoint()
            while not self._is_readable():
                await self._incoming.readers.park()
        finally:
            self._is_receiving = False

    def _is_readable(self) -> bool:
        self._check()
        return bool(self._incoming.pieces) or self._incoming.ended

    def _check_sendable(self) -> None:
        self._check()
        if self._outgoing.refused:
            raise trio.BrokenResourceError(os.strerror(errno.EPIPE))

    def _check(self) -> None:
        if self._closed:
            raise trio.ClosedResourceError("this connection was closed")
        if self._incoming.broken:
            raise trio.BrokenResourceError(self._incoming.broken)


def in_process_pair(client: str, server: str) -> tuple[InProcessTransport, InProcessTransport]:
    """Both ends of a connection, the client's first; ``client`` and ``server`` are their addresses, ``ip:port``."""
    up, down, direct_calls = Direction(CAPACITY_BYTES), Direction(CAPACITY_BYTES), DirectCalls()
    return (
        InProcessTransport(client, server, down, up, direct_calls),
        InProcessTransport(server, client, up, down, direct_calls),
    )


class NearServer(NamedTuple):
    """A server in this event loop: the way to it, and the budget of connections that it shares with its neighbours."""

    shortcut: Shortcut
    connections: ConnectionBudget


class InProcessListener(Listener):
    """Accepts connections from its own event loop. `shortcut` leads clients here."""

    def __init__(self, address: str, others: Collection[str] = ()) -> None:
        """``address`` is ``ip:port``; ``others`` are further addresses at which clients know the same server."""
        self.address = address
        self._addresses = {server_address(each) for each in (address, *others)}
        self._arrive, self._arrived = trio.open_memory_channel[InProcessTransport](BACKLOG)
        # How many clients have come.
        self._clients = 0

    async def accept(self) -> Transport:
        return await self._arrived.receive()

    async def connect(self) -> Transport:
        """A connection to this listener. OSError when it is closed."""
        client = format_address(split_address(self.address)[0], _PORTS[self._clients % len(_PORTS)])
        self._clients += 1
        ours, theirs = in_process_pair(client, self.address)
        try:
            await self._arrive.send(theirs)
        except trio.BrokenResourceError:
            raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED)) from None
        return ours

    def shortcut(self, far: Connect) -> Connect:
        """A `Shortcut` to this listener for its addresses."""

        async def connect(host: str, port: int) -> Transport:
            is_near = server_address(format_address(host, port)) in self._addresses
            return await (self.connect() if is_near else far(host, port))

        return connect

    async def aclose(self) -> None:
        while self._arrived.statistics().current_buffer_used:
            self._arrived.receive_nowait().cut()
        self._arrived.close()
        await trio.lowlevel.checkpoint()
