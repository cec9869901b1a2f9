"""One port for clients with and without TLS, as RocketMQ's proxy has it.

gRPC's server has a port for each kind. The relay looks at the first byte of a connection, without taking it, and
connects it to the right one of two ports on the loopback address. From then on it only copies bytes.
"""

import asyncio
import logging
import socket
from collections.abc import Callable

logger = logging.getLogger(__name__)

# The first byte of a TLS handshake; HTTP/2 without TLS begins with the letter P.
_TLS_HANDSHAKE = 0x16
# A client that connects and says nothing is closed after this time.
FIRST_BYTE_S = 10.0
BACKLOG = 1024
READ_BYTES = 64 * 1024


class _Copy(asyncio.BufferedProtocol):
    """Copies what it receives to another connection, no faster than that takes it.

    All connections of a relay share one ``buffer``: what is read there is passed on before anything else is read. A new
    buffer of asyncio's usual size for each read took five times as long as the read.
    """

    def __init__(self, buffer: memoryview, when_closed: Callable[[], None]) -> None:
        self._buffer = buffer
        self._when_closed = when_closed
        self.transport: asyncio.Transport | None = None
        self.other: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        assert self.other is not None
        # A copy: what the other connection does not take at once must outlast the buffer.
        self.other.write(bytes(self._buffer[:nbytes]))

    def pause_writing(self) -> None:
        if self.other is not None and not self.other.is_closing():
            self.other.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None and not self.other.is_closing():
            self.other.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        if self.other is not None:
            self.other.close()
        self._when_closed()


class Relay:
    """Accepts at one address, and connects to ``plain_port`` or ``tls_port`` of the loopback address."""

    def __init__(self, plain_port: int, tls_port: int) -> None:
        self._ports = {False: plain_port, True: tls_port}
        # Address of a connection to gRPC, as gRPC writes it → the client that it belongs to.
        self._clients: dict[str, str] = {}
        self._buffer = memoryview(bytearray(READ_BYTES))
        self._listener: socket.socket | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._accepting: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        """How many clients are connected."""
        return len(self._clients)

    def listen(self, host: str, port: int) -> int:
        """Begin to accept; returns the port. OSError when that is not possible."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
        listener.setblocking(False)
        self._listener = listener
        self._accepting = asyncio.get_running_loop().create_task(self._accept(listener))
        return int(listener.getsockname()[1])

    def real_address(self, peer: str) -> str:
        """The client behind ``peer``, an address as gRPC gives it."""
        return self._clients.get(peer, peer)

    async def stop_accepting(self) -> None:
        """Accept no more; open connections go on."""
        if self._accepting is not None and self._listener is not None:
            self._accepting.cancel()
            await asyncio.wait([self._accepting])
            self._listener.close()

    async def close(self) -> None:
        """Close the connections that are still being made. gRPC closes the others."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(listener)
            except OSError as error:
                # No descriptors are left, or the client has gone: the others must be accepted all the same.
                logger.warning("a connection could not be accepted: %s", error)
                await asyncio.sleep(0.05)
                continue
            task = loop.create_task(self._connect(connection))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _connect(self, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        connection.setblocking(False)
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            async with asyncio.timeout(FIRST_BYTE_S):
                first = await self._first_byte(connection)
                if not first:
                    connection.close()
                    return
                key = ""

                def closed() -> None:
                    self._clients.pop(key, None)

                inner = _Copy(self._buffer, closed)
                port = self._ports[first[0] == _TLS_HANDSHAKE]
                to_grpc, _ = await loop.create_connection(lambda: inner, "127.0.0.1", port)
            host, number = to_grpc.get_extra_info("sockname")[:2]
            key = f"ipv4:{host}:{number}"
            self._clients[key] = _text(connection.getpeername())
        except (OSError, TimeoutError) as error:
            logger.info("a connection ended before its first request: %s", error or "it was silent")
            connection.close()
            return
        except asyncio.CancelledError:
            connection.close()
            raise
        outer = _Copy(self._buffer, lambda: None)
        to_grpc.pause_reading()
        outer.other = to_grpc
        to_client, _ = await loop.connect_accepted_socket(lambda: outer, connection)
        inner.other = to_client
        if to_grpc.is_closing():
            to_client.close()
        else:
            to_grpc.resume_reading()

    async def _first_byte(self, connection: socket.socket) -> bytes:
        """The first byte of a connection, which stays there to be read again; empty when the client has closed it."""
        loop = asyncio.get_running_loop()
        readable = loop.create_future()

        def wake() -> None:
            if not readable.done():
                readable.set_result(None)

        loop.add_reader(connection, wake)
        try:
            await readable
        finally:
            loop.remove_reader(connection)
        return connection.recv(1, socket.MSG_PEEK)


def _text(address: tuple[str, int]) -> str:
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
