"""The server's side: the first byte of a client tells whether it speaks TLS, so that one port serves both kinds.

`accept` gives a connection at once. What it speaks is found out by the task that reads it, so that a client which says
nothing, or is slow with its keys, holds up nobody else.
"""

import ssl
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final

import trio

from remoting.net.tls.server import TlsServer
from remoting.net.tls.session import READ_BYTES, TlsTransport, reason_of
from remoting.net.tls.settings import ENFORCING
from remoting.net.transport import Listener, Transport

if TYPE_CHECKING:
    from mqcommon.disk.files import MappedFile

#: The first byte of every TLS connection.
HANDSHAKE: Final = 0x16
# How long a client may take to agree on keys.
HANDSHAKE_TIMEOUT_S = 10.0


class TlsListener(Listener):
    """Accepts connections that may be encrypted."""

    def __init__(self, inner: Listener, tls: TlsServer) -> None:
        self._inner = inner
        self._tls = tls
        self.address = inner.address

    async def accept(self) -> Transport:
        return AcceptedTransport(await self._inner.accept(), self._tls)

    async def aclose(self) -> None:
        await self._inner.aclose()


class AcceptedTransport(Transport):
    """A connection of a client. Until it has said what it speaks, nothing can be sent to it."""

    __slots__ = ("_first", "_inner", "_known", "_open", "_tls")

    def __init__(self, inner: Transport, tls: TlsServer) -> None:
        self.local, self.remote = inner.local, inner.remote
        self._inner = inner
        self._tls = tls
        # What to speak over, once that is known; and what a client without TLS has sent by then.
        self._open: Transport | None = None
        self._first = b""
        self._known = trio.Event()

    @property
    def buffered_bytes(self) -> int:
        return len(self._first) + (self._open.buffered_bytes if self._open is not None else 0)

    def receive(self, max_bytes: int) -> Coroutine[Any, Any, bytes]:
        if self._open is not None and not self._first:
            return self._open.receive(max_bytes)
        return self._receive_first(max_bytes)

    async def _receive_first(self, max_bytes: int) -> bytes:
        opened = self._open or await self._find_out()
        if not self._first:
            return await opened.receive(max_bytes)
        await trio.lowlevel.checkpoint_if_cancelled()
        found, self._first = self._first[:max_bytes], self._first[max_bytes:]
        await trio.lowlevel.cancel_shielded_checkpoint()
        return found

    async def receive_into(self, buffer: memoryview) -> int:
        opened = self._open or await self._find_out()
        if not self._first:
            return await opened.receive_into(buffer)
        found = await self._receive_first(len(buffer))
        buffer[: len(found)] = found
        return len(found)

    def try_send(self, pieces: list[bytes | memoryview]) -> int:
        return 0 if self._open is None else self._open.try_send(pieces)

    async def send_all(self, data: bytes | memoryview) -> None:
        await (await self._opened()).send_all(data)

    async def send_file(self, file: "MappedFile", at: int, size: int) -> None:
        await (await self._opened()).send_file(file, at, size)

    async def aclose(self) -> None:
        self._known.set()
        await (self._open or self._inner).aclose()

    async def _opened(self) -> Transport:
        await self._known.wait()
        if self._open is None:
            raise trio.BrokenResourceError("the client did not get through")
        return self._open

    async def _find_out(self) -> Transport:
        """Wait for the first bytes; shake hands if they are TLS."""
        try:
            first = await self._inner.receive(READ_BYTES)
            if first[:1] == bytes((HANDSHAKE,)):
                self._open = await self._shake_hands(first)
            elif first and self._tls.settings.mode == ENFORCING:
                raise self._refused("it speaks without TLS, and tls.server.mode=enforcing: switch TLS on there")
            else:
                self._first, self._open = first, self._inner
        finally:
            self._known.set()
        return self._open

    async def _shake_hands(self, first: bytes) -> Transport:
        transport = TlsTransport(self._inner, self._tls.context, is_server=True, server_name=None)
        try:
            with trio.fail_after(HANDSHAKE_TIMEOUT_S):
                await transport.shake_hands(first)
        except trio.TooSlowError:
            raise self._refused(f"no TLS handshake in {HANDSHAKE_TIMEOUT_S:.0f} s") from None
        except ssl.SSLError as error:
            raise self._refused(reason_of(error)) from None
        except trio.BrokenResourceError as error:
            raise self._refused(str(error)) from None
        self._tls.handshakes += 1
        return transport

    def _refused(self, reason: str) -> trio.BrokenResourceError:
        self._tls.failed(self.remote, reason)
        return trio.BrokenResourceError(reason)
