"""A server and the way to it: in memory, or over TCP on loopback."""

import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import trio

from skylark.mqcommon.addresses import split_address
from skylark.remoting.net import sockets
from skylark.remoting.net.in_process import InProcessTransport
from skylark.remoting.net.server import Server
from skylark.remoting.net.sockets import SocketTransport
from skylark.remoting.net.tls.session import TlsTransport
from skylark.remoting.net.transport import Connect, Listener, Transport
from tests.support.memory_transport import MemoryNetwork


@dataclass(frozen=True)
class Served:
    """``connect`` is for `open_client`."""

    server: Server
    addr: str
    connect: Connect

    async def stream(self) -> Transport:
        """A connection without a client of ours."""
        return await self.connect(*split_address(self.addr))


@asynccontextmanager
async def serve(server: Server, *, over_tcp: bool = False) -> AsyncIterator[Served]:
    """``server`` serves until the end of the block."""
    listeners: list[Listener]
    if over_tcp:
        listeners, connect = await sockets.listen("127.0.0.1", 0), sockets.connect
    else:
        network = MemoryNetwork()
        listeners, connect = [network.listen()], network.connect
    async with trio.open_nursery() as nursery:
        addr = await nursery.start(server.serve_on, listeners)
        yield Served(server, addr, connect)
        nursery.cancel_scope.cancel()


def reset(transport: Transport) -> None:
    """Break the connection, as a peer does that was started again."""
    if isinstance(transport, TlsTransport):
        reset(transport._inner)
    elif isinstance(transport, InProcessTransport):
        transport.cut()
    else:
        assert isinstance(transport, SocketTransport)
        sock = transport._stream.socket
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()
