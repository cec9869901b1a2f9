"""Transports over TCP: listening, connecting, and the calls into the operating system.

This is the only module of daemons and clients that touches sockets and their file descriptors.
"""

import errno
import os
import socket
import weakref
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import trio

from skylark.mqcommon.addresses import format_address
from skylark.mqcommon.errors import UserError
from skylark.remoting.net.transport import Listener, Transport

if TYPE_CHECKING:
    from skylark.mqcommon.disk.files import MappedFile

_BACKLOG = 65_535

A = TypeVar("A")
R = TypeVar("R", bytes, int)


class OpenSockets:
    """The open sockets of this event loop from now on, so that all can be cut as the end of a process would.

    For clusters inside a test process (`skylark.testing`); no other loop keeps such a list.
    """

    def __init__(self) -> None:
        self._connections: weakref.WeakSet[trio.socket.SocketType] = weakref.WeakSet()
        self._listeners: weakref.WeakSet[trio.socket.SocketType] = weakref.WeakSet()
        self._far: list[socket.socket] = []
        _OPEN_SOCKETS.set(self)

    def add(self, opened: trio.socket.SocketType, *, listens: bool) -> None:
        """Remember an open socket. ``listens``: it is a listening one."""
        (self._listeners if listens else self._connections).add(opened)

    def cut(self) -> None:
        """Close all sockets for their peers; to this loop they look open and silent.

        Each descriptor becomes the descriptor of another socket, to which nobody connects or writes. That closes the
        socket as the end of the process would, and no task sees an error that a killed process could not have seen.
        """
        # The far end stays open: otherwise the near end would read the end of a stream.
        near, far = socket.socketpair()
        self._far.append(far)
        with near, socket.socket() as nobody:
            nobody.bind(("127.0.0.1", 0))
            nobody.listen()
            for silent, replaced in ((near, self._connections), (nobody, self._listeners)):
                silent.setblocking(False)
                for opened in list(replaced):
                    if opened.fileno() >= 0:
                        os.dup2(silent.fileno(), opened.fileno(), inheritable=False)

    def close(self) -> None:
        """Release what `cut` keeps open; to be called when the loop has ended."""
        for far in self._far:
            far.close()


_OPEN_SOCKETS: "trio.lowlevel.RunVar[OpenSockets | None]" = trio.lowlevel.RunVar("open sockets", None)


class _Calls(Protocol):
    """The calls of `os` that a transport makes."""

    def read(self, fd: int, length: int, /) -> bytes: ...

    def readv(self, fd: int, buffers: list[memoryview], /) -> int: ...

    def write(self, fd: int, data: bytes | memoryview, /) -> int: ...

    def writev(self, fd: int, buffers: list[bytes | memoryview], /) -> int: ...


class _SocketCalls:
    """The same calls for Windows, whose sockets are no file descriptors: methods of the socket."""

    def __init__(self, own: socket.socket) -> None:
        self._own = own

    def read(self, fd: int, length: int, /) -> bytes:
        return self._own.recv(length)

    def readv(self, fd: int, buffers: list[memoryview], /) -> int:
        return self._own.recv_into(buffers[0])

    def write(self, fd: int, data: bytes | memoryview, /) -> int:
        return self._own.send(data)

    def writev(self, fd: int, buffers: list[bytes | memoryview], /) -> int:
        return self._own.send(b"".join(buffers))


class SocketTransport(Transport):
    """Reads and writes the descriptor directly, which saves several calls per turn compared to trio's sockets."""

    __slots__ = ("_calls", "_fd", "_is_drained", "_stream")

    def __init__(self, stream: trio.SocketStream) -> None:
        """Raises OSError when the peer is gone already."""
        self.local = _address(stream.socket.getsockname())
        self.remote = _address(stream.socket.getpeername())
        self._calls: _Calls
        if hasattr(os, "readv"):
            self._calls = os
        else:
            # trio's sockets wait, and this transport needs calls that do not: a new stream shares the socket with it.
            own = socket.socket(fileno=stream.socket.detach())
            own.setblocking(False)
            self._calls, stream = _SocketCalls(own), trio.SocketStream(trio.socket.from_stdlib_socket(own))
        self._stream = stream
        # -1 after `aclose`, as the number may then belong to another file.
        self._fd = stream.socket.fileno()
        # The last read got less than it asked for, so another read before the socket is readable would get nothing.
        self._is_drained = False
        if (opened := _OPEN_SOCKETS.get()) is not None:
            opened.add(stream.socket, listens=False)

    # Plain functions that return `_read`'s coroutine: an ``async def`` would add a second coroutine around it.

    def receive(self, max_bytes: int) -> Coroutine[Any, Any, bytes]:
        return self._read(self._calls.read, max_bytes, max_bytes)

    def receive_into(self, buffer: memoryview) -> Coroutine[Any, Any, int]:
        return self._read(self._calls.readv, [buffer], len(buffer))

    async def _read(self, read: Callable[[int, A], R], wanted: A, max_bytes: int) -> R:
        """``read(fd, wanted)`` once the socket has bytes; a checkpoint in any case."""
        await trio.lowlevel.checkpoint_if_cancelled()
        try:
            if not self._is_drained:
                try:
                    found = read(self._fd, wanted)
                except BlockingIOError:
                    pass
                else:
                    await trio.lowlevel.cancel_shielded_checkpoint()
                    self._is_drained = (found if isinstance(found, int) else len(found)) < max_bytes
                    return found
            while True:
                await trio.lowlevel.wait_readable(self._fd)
                try:
                    found = read(self._fd, wanted)
                except BlockingIOError:
                    continue
                self._is_drained = (found if isinstance(found, int) else len(found)) < max_bytes
                return found
        except OSError as error:
            raise _failure(error) from None

    def try_send(self, pieces: list[bytes | memoryview]) -> int:
        try:
            calls = self._calls
            return calls.writev(self._fd, pieces) if len(pieces) > 1 else calls.write(self._fd, pieces[0])
        except BlockingIOError:
            return 0
        except OSError as error:
            raise _failure(error) from None

    async def send_all(self, data: bytes | memoryview) -> None:
        try:
            await self._stream.send_all(data)
        except trio.BrokenResourceError as error:
            cause = error.__cause__
            if cause is not None:
                # Since Python 3.12 this traceback has the frame of a context manager that holds ``cause`` itself: a
                # circle, which would keep the callers' frames, and so their channel, until a garbage collection.
                cause.__traceback__ = None
            raise _failure(cause) from None

    async def send_file(self, file: "MappedFile", at: int, size: int) -> None:
        while size:
            try:
                taken = await trio.to_thread.run_sync(file.send, self._fd, at, size)
            except OSError as error:
                raise _failure(error) from None
            if not taken:
                await trio.lowlevel.wait_writable(self._fd)
            at, size = at + taken, size - taken

    async def aclose(self) -> None:
        self._fd = -1
        await self._stream.aclose()


class SocketListener(Listener):
    """A listening socket."""

    def __init__(self, listener: trio.SocketListener) -> None:
        self._listener = listener
        self.address = _address(listener.socket.getsockname())
        if (opened := _OPEN_SOCKETS.get()) is not None:
            opened.add(listener.socket, listens=True)

    async def accept(self) -> Transport:
        while True:
            stream = await self._listener.accept()
            try:
                return SocketTransport(stream)
            except OSError:
                # The peer left before its address was read.
                stream.socket.close()

    async def aclose(self) -> None:
        await self._listener.aclose()


async def listen(host: str, port: int, key: str = "listenPort", *, is_shared: bool = False) -> list[Listener]:
    """Listening sockets; port 0 takes a free one. Raises UserError, which names option ``key``, when that fails.

    ``is_shared``: other processes listen there, too; see `HeldPort.share`.
    """
    try:
        if is_shared:
            listeners = [trio.SocketListener(trio.socket.from_stdlib_socket(_listening(host, port)))]
        else:
            listeners = await trio.open_tcp_listeners(port, host=host or None)
    except OSError as error:
        raise UserError(_cannot_listen(host, port, key, error)) from None
    return [SocketListener(listener) for listener in listeners]


def _listening(host: str, port: int) -> socket.socket:
    """A listening socket that shares ``port`` with other processes."""
    opened = _socket_for(host)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        opened.bind((host, port))
        # The system cuts this to its own limit.
        opened.listen(_BACKLOG)
    except OSError:
        opened.close()
        raise
    return opened


def _socket_for(host: str) -> socket.socket:
    """A socket of the family of the IP address ``host``."""
    opened = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if opened.family == socket.AF_INET6:
        opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    opened.setblocking(False)
    return opened


class HeldPort:
    """A port that nobody else gets until `release`, while a server that listens there stops and starts again.

    A socket is bound to it and does not listen: connections are refused, and the system gives the port to no other.
    """

    def __init__(self, host: str, port: int = 0, key: str = "listenPort") -> None:
        """Port 0 takes a free one. Raises UserError, which names option ``key``, when another server has the port."""
        self._socket = _socket_for(host)
        try:
            self._socket.bind((host, port))
        except OSError as error:
            self._socket.close()
            raise UserError(_cannot_listen(host, port, key, error)) from None
        self.port: int = self._socket.getsockname()[1]

    def share(self) -> None:
        """Let several processes of this user listen here (`listen`); the system spreads connections over them."""
        # Not before the port is bound: with this option, a port that another server shares would count as free.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)

    def release(self) -> None:
        """Give the port back."""
        self._socket.close()


async def connect(host: str, port: int) -> Transport:
    """A connection to ``host:port``. Raises OSError when it cannot be made.

    When the server is down and its port is in the range of outgoing ports, an attempt may get that very port and
    connect to itself. Such a connection would keep the server from starting again, so it counts as refused.
    """
    stream = await trio.open_tcp_stream(host, port, happy_eyeballs_delay=0.05)
    try:
        transport = SocketTransport(stream)
    except OSError:
        stream.socket.close()
        raise
    if transport.local == transport.remote:
        await trio.aclose_forcefully(transport)
        raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
    return transport


async def lookup(host: str, port: int) -> list[str]:
    """The IP addresses of ``host``, sorted: IPv4 addresses, or IPv6 addresses if there are no others.

    Addresses of one family only, since a machine often has an address of each, and must not be taken for two.
    Raises OSError as a connect does.
    """
    found = await trio.socket.getaddrinfo(host, port, type=trio.socket.SOCK_STREAM)
    ips = {(family != trio.socket.AF_INET, str(where[0])) for family, _, _, _, where in found}
    best = min((is_v6 for is_v6, _ in ips), default=False)
    return sorted(ip for is_v6, ip in ips if is_v6 == best)


def connect_reason(error: BaseException) -> str:
    """Why a connect failed, in plain words."""
    inner: BaseException | None = error
    while inner is not None:
        if isinstance(inner, OSError) and inner.strerror:
            # Not strerror itself: trio puts the address into it, and callers name the address, too.
            if not inner.errno or inner.errno not in errno.errorcode:
                return inner.strerror
            text = os.strerror(inner.errno)
            # Windows has no text for errors of sockets.
            return errno.errorcode[inner.errno] if text == "Unknown error" else text
        if isinstance(inner, BaseExceptionGroup):
            inner = inner.exceptions[0]
            continue
        inner = inner.__cause__
    return str(error) or type(error).__name__


def _failure(error: BaseException | None) -> trio.BrokenResourceError | trio.ClosedResourceError:
    """What a transport raises for an error of the operating system."""
    if isinstance(error, OSError):
        if error.errno in (errno.EBADF, errno.ENOTSOCK):  # the second on Windows
            return trio.ClosedResourceError("this connection was closed")
        return trio.BrokenResourceError(error.strerror or str(error))
    return trio.BrokenResourceError("the connection broke")


def _address(name: Any) -> str:
    """``ip:port`` of a socket name; a v4 address mapped into v6 is shown as v4."""
    ip, port = name[0], name[1]
    return format_address(ip[7:] if ip.startswith("::ffff:") and "." in ip else ip, port)


def _cannot_listen(host: str, port: int, key: str, error: OSError) -> str:
    where = f"{host or '0.0.0.0'}:{port}"
    if error.errno == errno.EADDRINUSE:
        return f"port {where} is in use; stop the process that uses it or choose another {key}"
    if error.errno == errno.EACCES:
        return f"port {where} may not be opened by this user; choose a {key} above 1023"
    return f"cannot listen on {where}: {error.strerror or error}; check bindAddress and {key}"
