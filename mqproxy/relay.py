"""The port for clients, in front of gRPC: limits of connections, and one port with and without TLS, as RocketMQ has it.

gRPC's server cannot limit its connections, and needs one port with TLS and one without. The relay peeks at the first
byte of a connection, and connects it to the right port on the loopback address. From then on it only copies bytes.
"""

import asyncio
import logging
import resource
import socket
from collections.abc import Callable
from contextlib import suppress

from skylark.mqcommon.addresses import limited_network
from skylark.mqproxy.options import ProxyOptions
from skylark.remoting.net.limits import ConnectionBudget, Refusals, most_connections

logger = logging.getLogger(__name__)

# The first byte of a TLS handshake; HTTP/2 without TLS begins with the letter P.
_TLS_HANDSHAKE = b"\x16"
# HTTP/2's GOAWAY without an error, with the highest stream: no new calls on this connection; calls under way go on.
_GO_AWAY = bytes.fromhex("000008 07 00 00000000 7fffffff 00000000")
_FRAME_HEADER_BYTES = 9
# HEADERS, PUSH_PROMISE, CONTINUATION, and their flag END_HEADERS.
_WITH_HEADERS, _END_HEADERS = (1, 5, 9), 0x4
# How long to wait for clients to leave.
LEAVE_S = 5.0
# A client that connects and says nothing is closed after this time.
FIRST_BYTE_S = 10.0
BACKLOG = 1024
# When gRPC has closed a connection, the client has this long to read what was sent before.
LINGER_S = 10.0
# Descriptors of one client: its connection, the relay's connection to gRPC, and the other end of this connection.
_DESCRIPTORS_OF_CONNECTION = 3
# Descriptors of connections to brokers, logs and libraries.
_OTHER_DESCRIPTORS = 1_024


class Frames:
    """Where the frames of one direction of an HTTP/2 connection end."""

    def __init__(self) -> None:
        # The part of a frame's header that has come; then how much of its payload is to come.
        self._header = bytearray()
        self._left = 0
        # The first frame must be the server's settings.
        self._has_begun = False
        # No other frame may stand between the frames with the headers of one call.
        self._is_in_headers = False

    def feed(self, data: bytes) -> None:
        """Follow the next bytes of the direction."""
        at = 0
        while at < len(data):
            skipped = min(self._left, len(data) - at)
            at += skipped
            self._left -= skipped
            if self._left or at == len(data):
                return
            piece = data[at : at + _FRAME_HEADER_BYTES - len(self._header)]
            at += len(piece)
            self._header += piece
            if len(self._header) == _FRAME_HEADER_BYTES:
                kind, flags = self._header[3:5]
                self._left = int.from_bytes(self._header[:3])
                self._header.clear()
                self._has_begun = True
                if kind in _WITH_HEADERS:
                    self._is_in_headers = not flags & _END_HEADERS

    @property
    def may_add(self) -> bool:
        """Whether another frame may be inserted after the bytes so far."""
        return self._has_begun and not (self._header or self._left or self._is_in_headers)


class _Copy(asyncio.Protocol):
    """Copies received bytes to another connection, no faster than that connection takes them.

    ``frames`` follows what gRPC sends to a client without TLS: such a client can be told to leave.
    A peer that takes nothing for ``stall_s`` is cut off; 0: never.
    """

    def __init__(self, when_closed: Callable[[], None], frames: Frames | None = None, stall_s: float = 0) -> None:
        self._when_closed = when_closed
        self._frames = frames
        self._stall_s = stall_s
        self._is_lost = False
        self._is_leaving = False
        self.transport: asyncio.Transport | None = None
        self.other: asyncio.Transport | None = None
        self._aborting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        assert self.other is not None
        self.other.write(data)
        if self._frames is not None:
            self._frames.feed(data)
            if self._is_leaving:
                self.go_away()

    def go_away(self) -> None:
        """Tell the client to make its next calls elsewhere: now, or after the frames that are just being sent."""
        self._is_leaving = True
        if self.other is not None and self._frames is not None and self._frames.may_add:
            self.other.write(_GO_AWAY)
            self._is_leaving = False

    def pause_writing(self) -> None:
        # This peer reads slowly, so the other peer must send slowly: bytes in between would fill the memory.
        if self.other is not None and not self.other.is_closing():
            self.other.pause_reading()
        if self._stall_s:
            self._abort_in(self._stall_s)

    def resume_writing(self) -> None:
        if self._stall_s and self._aborting is not None:
            self._aborting.cancel()
            self._aborting = None
            if self.transport is not None and self.transport.is_closing():
                self._abort_in(LINGER_S)
        if self.other is not None and not self.other.is_closing():
            self.other.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        self._is_lost = True
        if self._aborting is not None:
            self._aborting.cancel()
        if self.other is not None:
            copy = self.other.get_protocol()
            if isinstance(copy, _Copy):  # otherwise the connection is closed already
                copy.end()
        self._when_closed()

    def end(self) -> None:
        """Close the connection after the bytes that still wait to be written. A peer that does not read is cut off."""
        assert self.transport is not None
        self.transport.close()
        if not self._is_lost:
            self._abort_in(LINGER_S)

    def _abort_in(self, wait_s: float) -> None:
        assert self.transport is not None
        if self._aborting is None:
            self._aborting = asyncio.get_running_loop().call_later(wait_s, self.transport.abort)


class Relay:
    """Accepts at one address, and connects to ``plain_port`` or ``tls_port`` of the loopback address.

    A port is None when clients of this kind are not served.
    """

    def __init__(self, options: ProxyOptions, plain_port: int | None, tls_port: int | None) -> None:
        self._ports = {False: plain_port, True: tls_port}
        self._budget = budget(options)
        self._stall_s = options.slow_reader_timeout / 1000
        self.refusals = Refusals()
        # Address of a connection to gRPC, as gRPC writes it → the client of this connection.
        self._clients: dict[str, str] = {}
        self._listener: socket.socket | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._accepting: asyncio.Task[None] | None = None
        # The copies from gRPC to clients without TLS.
        self._plain: set[_Copy] = set()
        self._is_leaving = False
        # Set whenever the last of these copies closes.
        self._all_left = asyncio.Event()

    def connect_to(self, plain_port: int | None, tls_port: int | None) -> None:
        """Use these ports for new connections."""
        self._ports = {False: plain_port, True: tls_port}

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

    async def send_away(self, most_s: float) -> None:
        """Let clients without TLS leave for another proxy; waits at most ``most_s``.

        A client closes the connection once it has all answers. gRPC's own stop does not wait for this: it cancels calls
        that are on their way when it begins.
        """
        self._is_leaving = True
        self._all_left.clear()
        for copy in self._plain:
            copy.go_away()
        if self._plain:
            with suppress(TimeoutError):
                async with asyncio.timeout(min(most_s, LEAVE_S)):
                    await self._all_left.wait()

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
                connection, peer = await loop.sock_accept(listener)
            except OSError as error:
                # No descriptors are left, or the client has gone: other clients must be accepted all the same.
                self.refusals.count("accepts_failed", loop.time(), "", f"a connection could not be accepted: {error}")
                await asyncio.sleep(0.05)
                continue
            network = limited_network(peer[0])
            if refused := self._budget.take(network, loop.time()):
                self.refusals.count(refused, loop.time(), _text(peer), "connection refused")
                connection.close()
                continue
            task = loop.create_task(self._connect(connection, _text(peer), _Place(self._budget, network)))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _connect(self, connection: socket.socket, client: str, place: "_Place") -> None:
        loop = asyncio.get_running_loop()
        connection.setblocking(False)
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            async with asyncio.timeout(FIRST_BYTE_S):
                first = await self._first_byte(connection)
                is_tls = first[:1] == _TLS_HANDSHAKE
                port = self._ports[is_tls]
                if not first or port is None:
                    if first:
                        logger.info("client %s is refused: see tls.server.mode", client)
                    place.give()
                    connection.close()
                    return
                key = ""

                def closed() -> None:
                    self._clients.pop(key, None)
                    self._plain.discard(inner)
                    if not self._plain:
                        self._all_left.set()

                inner = _Copy(closed, None if is_tls else Frames())
                to_grpc, _ = await loop.create_connection(lambda: inner, "127.0.0.1", port)
                if not is_tls and not to_grpc.is_closing():
                    self._plain.add(inner)
            host, number = to_grpc.get_extra_info("sockname")[:2]
            key = f"ipv4:{host}:{number}"
            self._clients[key] = client
        except (OSError, TimeoutError) as error:
            logger.info("a connection ended before its first request: %s", str(error) or "it was silent")
            place.give()
            connection.close()
            return
        except asyncio.CancelledError:
            connection.close()
            raise
        # gRPC sends its settings at once. They must wait until the client's connection can take them.
        outer = _Copy(place.give, stall_s=self._stall_s)
        to_grpc.pause_reading()
        outer.other = to_grpc
        to_client, _ = await loop.connect_accepted_socket(lambda: outer, connection)
        inner.other = to_client
        # The proxy may have begun to stop, or gRPC may have closed its side, while the connection was made.
        if self._is_leaving:
            inner.go_away()
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


class _Place:
    """One connection in the budget."""

    def __init__(self, budget: ConnectionBudget, network: str) -> None:
        self._budget = budget
        self._network = network

    def give(self) -> None:
        """Give the place back, as the connection is closed."""
        self._budget.give(self._network)


def budget(options: ProxyOptions) -> ConnectionBudget:
    """How many connections of clients there may be."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = most_connections(descriptors, _OTHER_DESCRIPTORS) // _DESCRIPTORS_OF_CONNECTION
    wanted = options.max_connections
    if wanted > most:
        logger.warning(
            "maxConnections=%d is more than %d open files (ulimit -n) allow; %d are accepted", wanted, descriptors, most
        )
    return ConnectionBudget(
        min(wanted, most) if wanted else most,
        options.max_connections_per_address,
        options.max_new_connections_per_second,
    )


def _text(address: tuple[str, int]) -> str:
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
