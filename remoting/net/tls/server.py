"""The server's side of TLS: one port serves clients with and without TLS, told apart by their first byte.

`accept` gives a connection at once. The task that reads the connection finds out what the client speaks, so that a
client which sends nothing, or is slow with its keys, delays no other one.
`TlsServer` loads the certificate again when its files change; open connections stay as they are.
"""

import logging
import os
import ssl
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Final

import trio

from skylark.mqcommon.errors import UserError
from skylark.remoting.net.tls.contexts import server_context
from skylark.remoting.net.tls.session import READ_BYTES, TlsTransport, reason_of
from skylark.remoting.net.tls.settings import ENFORCING, ServerTls
from skylark.remoting.net.transport import Listener, Transport

if TYPE_CHECKING:
    from skylark.mqcommon.disk.files import MappedFile


logger = logging.getLogger(__name__)

# RocketMQ checks the files as often.
INTERVAL_S = 0.5
# At most one log line in this time about clients that did not get through: anybody can send these.
LOG_S = 10.0


class TlsServer:
    """``context`` is what the next clients get. UserError when the certificate cannot be used.

    ``alpn``: the protocols that clients may choose, as HTTP/2's "h2". `watch` checks the files every ``interval_s``.
    """

    def __init__(self, settings: ServerTls, alpn: Sequence[str] = (), interval_s: float = INTERVAL_S) -> None:
        self.settings = settings
        self._alpn = alpn
        self._interval_s = interval_s
        # Made before the files are read, so that a change in between is noticed.
        self._changes = FileChanges(settings)
        self.context = server_context(settings, alpn)
        self.handshakes = 0
        self.failures = 0
        self._logged_at = -LOG_S

    def failed(self, remote: str, reason: str) -> None:
        """Count, and log now and then, a client that did not get through."""
        self.failures += 1
        now = trio.current_time()
        if now >= self._logged_at + LOG_S:
            self._logged_at = now
            logger.warning(
                "client %s has no connection: %s (%d such clients, %d got through)",
                remote,
                reason,
                self.failures,
                self.handshakes,
            )

    async def watch(self) -> None:
        """Load the files again when they change, until cancelled.

        The old certificate stays when the new cannot be used.
        """
        settings = self.settings
        failing = ""
        while True:
            await trio.sleep(self._interval_s)
            if not await trio.to_thread.run_sync(self._changes.poll):
                continue
            try:
                self.context = await trio.to_thread.run_sync(server_context, settings, self._alpn)
            except UserError as error:
                if str(error) != failing:
                    logger.error("the old TLS certificate stays in use: %s", error)
                failing = str(error)
            else:
                logger.info("TLS certificate %s loaded again", settings.cert_file)
                failing = ""


class FileChanges:
    """Notices that the files of a server's certificate have changed."""

    def __init__(self, settings: ServerTls) -> None:
        self._files = [file for file in (settings.cert_file, settings.key_file, settings.ca_file) if file]
        self._loaded = self._seen = stamps(self._files)

    def poll(self) -> bool:
        """Check the files: True once for each change, when they must be loaded again. Blocks."""
        now = stamps(self._files)
        is_settled, self._seen = now == self._seen, now
        # A certificate and its key are two files: wait until neither changes any more.
        if now == self._loaded or not is_settled:
            return False
        self._loaded = now
        return True


def stamps(files: list[str]) -> list[tuple[int, int] | None]:
    """When each of ``files`` was changed, and its size; None for a missing file. Blocks."""
    found: list[tuple[int, int] | None] = []
    for file in files:
        try:
            status = os.stat(file)
        except OSError:
            found.append(None)
        else:
            found.append((status.st_mtime_ns, status.st_size))
    return found


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
    """A client's connection. Nothing can be sent before the client's first byte, which tells whether it speaks TLS."""

    __slots__ = ("_first", "_inner", "_known", "_open", "_tls")

    def __init__(self, inner: Transport, tls: TlsServer) -> None:
        self.local, self.remote = inner.local, inner.remote
        self._inner = inner
        self._tls = tls
        # The transport to speak over, once the first byte has come; and what a client without TLS has sent by then.
        self._open: Transport | None = None
        self._first = b""
        self._known = trio.Event()

    @property
    def is_encrypted(self) -> bool:
        return self._open is not None and self._open.is_encrypted

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
