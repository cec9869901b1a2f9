"""A connection as a stream of bytes: what `Channel` and replication speak over.

Code above a transport never sees a socket or a file descriptor, so TLS could be added below, and tests run in memory.
Neighbours: sockets.py (over TCP); in_process.py (inside of one event loop); tests/support/memory_transport.py (for
tests).
"""

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any

import trio

if TYPE_CHECKING:  # clients send no files and need not import this
    from skylark.mqcommon.disk.files import MappedFile
    from skylark.remoting.protocol.command import Command

#: `Transport.try_send` takes no more pieces than this in one call.
MAX_PIECES = 1_000


class Transport(trio.abc.AsyncResource):
    """One connection. One task receives; one task at a time sends.

    All methods raise trio.BrokenResourceError, whose text is the reason, when the connection is broken, and
    trio.ClosedResourceError after `aclose`.
    """

    __slots__ = ("local", "remote")

    #: ``ip:port`` of this end and of the peer.
    local: str
    remote: str
    #: How the ends of a connection inside of one event loop call each other; None for all other connections.
    direct_calls: "DirectCalls | None" = None

    @property
    def is_encrypted(self) -> bool:
        """Whether nobody else can read what is sent."""
        return False

    @property
    def buffered_bytes(self) -> int:
        """Bytes in memory that were received and not given out, or encrypted and not sent."""
        return 0

    @abstractmethod
    def receive(self, max_bytes: int) -> Coroutine[Any, Any, bytes]:
        """Wait for bytes; ``b""`` when the peer will send no more."""

    @abstractmethod
    def receive_into(self, buffer: memoryview) -> Coroutine[Any, Any, int]:
        """As `receive`, into ``buffer``; the number of bytes."""

    @abstractmethod
    def try_send(self, pieces: list[bytes | memoryview]) -> int:
        """Send as many bytes as the connection takes without waiting, and return their number; 0 when it is full.

        The caller must send the rest next, before other bytes: a part of it may be encrypted already.
        """

    @abstractmethod
    async def send_all(self, data: bytes | memoryview) -> None:
        """Send ``data``; waits while the peer does not read. When cancelled, any part of it may have been sent."""

    @abstractmethod
    async def send_file(self, file: "MappedFile", at: int, size: int) -> None:
        """Send bytes of a file, which a thread reads. Raises FileClosed when the file was removed meanwhile."""


class DirectCalls:
    """Lets the client of a connection inside of one event loop hand requests to the server as they are.

    Without it a request and its answer are encoded, and wait for the tasks that read both ends. The bytes of the
    connection carry what cannot be handed over.
    """

    __slots__ = ("answered", "handle")

    def __init__(self) -> None:
        #: Set by the client's end: takes an answer that has come after `handle` had returned None. Never raises.
        self.answered: Callable[[Command], None] | None = None
        #: Set by the server's end: handles a request, given trio's time, and returns its answer; None when it has been
        #: handled and the answer comes later. Raises `MustQueue` when it cannot handle the request now.
        self.handle: Callable[[Command, float], Command | None] | None = None


class MustQueue(Exception):
    """The server's end handles other requests first: this one must be sent as bytes."""


class TlsError(ConnectionError):
    """The other end was reached, but TLS was not agreed on; the text says why, and what to do."""


class Listener(trio.abc.Listener[Transport]):
    """Accepts connections."""

    #: ``ip:port``
    address: str


#: Connects to (host, port). Raises OSError when that fails; TlsError is an OSError.
Connect = Callable[[str, int], Awaitable[Transport]]

#: Makes a `Connect` that reaches some addresses without the network, and all others by the given `Connect`.
Shortcut = Callable[[Connect], Connect]
