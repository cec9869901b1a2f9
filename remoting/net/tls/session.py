"""A connection that is encrypted, over any other transport.

The TLS library works on two buffers in memory and knows no socket. What `try_send` has encrypted cannot be taken back.
When the connection does not take all of the ciphertext, the rest is kept, and its text is reported as not sent: the
caller sends the same bytes again, and these are then skipped.
"""

import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import trio

from skylark.remoting.net.transport import Transport

if TYPE_CHECKING:
    from skylark.mqcommon.disk.files import MappedFile

# Ciphertext that one call of the inner transport gets, and bytes that one read asks for.
WRITE_BYTES = 64 * 1024
READ_BYTES = 256 * 1024
FILE_BYTES = 256 * 1024


class TlsTransport(Transport):
    """An encrypted connection; `shake_hands` must come first."""

    __slots__ = ("_ahead", "_closed", "_incoming", "_inner", "_outgoing", "_rest", "_tls")

    def __init__(self, inner: Transport, context: ssl.SSLContext, *, is_server: bool, server_name: str | None) -> None:
        self.local, self.remote = inner.local, inner.remote
        self._inner = inner
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, is_server, server_name)
        # Ciphertext that the inner transport has not taken yet, and how many bytes of text after it, or in it, the
        # caller will send again.
        self._rest: memoryview | bytes = b""
        self._ahead = 0
        self._closed = False

    async def shake_hands(self, first: bytes = b"") -> None:
        """Agree on keys. ``first`` was received already. ssl.SSLError, or BrokenResourceError when the peer leaves."""
        self._incoming.write(first)
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                await self._send_handshake()
                received = await self._inner.receive(READ_BYTES)
                if not received:
                    raise trio.BrokenResourceError("the connection ended during the TLS handshake") from None
                self._incoming.write(received)
            except ssl.SSLError:
                # The peer is told what is wrong, if it still listens.
                with suppress(trio.BrokenResourceError):
                    await self._send_handshake()
                raise
            else:
                await self._send_handshake()
                return

    @property
    def is_encrypted(self) -> bool:
        return True

    @property
    def buffered_bytes(self) -> int:
        return self._incoming.pending + len(self._rest)

    @property
    def version(self) -> str:
        """The version of TLS, such as "TLSv1.3"."""
        return self._tls.version() or ""

    async def receive(self, max_bytes: int) -> bytes:
        found: list[bytes] = []

        def read(left: int) -> int:
            found.append(self._tls.read(left))
            return len(found[-1])

        await self._receive(read, max_bytes)
        return found[0] if len(found) == 1 else b"".join(found)

    async def receive_into(self, buffer: memoryview) -> int:
        def read(left: int) -> int:
            # With a buffer it returns a number, which the type of the method does not say.
            return int(self._tls.read(left, buffer[len(buffer) - left :]))

        return await self._receive(read, len(buffer))

    async def _receive(self, read: Callable[[int], int], max_bytes: int) -> int:
        """Call ``read(bytes left)``, at least once, until all that has arrived is read; the number of bytes."""
        self._check_open()
        await trio.lowlevel.checkpoint_if_cancelled()
        taken = self._read(read, max_bytes)
        if taken is not None:
            await trio.lowlevel.cancel_shielded_checkpoint()
        while taken is None:
            if received := await self._inner.receive(READ_BYTES):
                self._incoming.write(received)
            else:
                self._incoming.write_eof()
            taken = self._read(read, max_bytes)
        return taken

    def _read(self, read: Callable[[int], int], max_bytes: int) -> int | None:
        """The number of bytes that have arrived; 0 at the end, None when the peer must send more first."""
        taken = 0
        try:
            while taken < max_bytes and (size := read(max_bytes - taken)):
                taken += size
        except ssl.SSLWantReadError:
            return taken or None
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            # Frames say how long they are, so a frame that was cut is noticed without TLS.
            return taken
        except ssl.SSLError as error:
            if not taken:
                raise trio.BrokenResourceError(reason_of(error)) from None
        return taken

    def try_send(self, pieces: list[bytes | memoryview]) -> int:
        self._check_open()
        if not self._send_rest():
            return 0
        taken, self._ahead = self._ahead, 0
        skipped = taken
        for piece in pieces:
            view = memoryview(piece)
            if skipped:
                skip = min(skipped, len(view))
                skipped -= skip
                view = view[skip:]
            for at in range(0, len(view), WRITE_BYTES):
                part = view[at : at + WRITE_BYTES]
                self._rest = self._encrypt(part)
                if not self._send_rest():
                    self._ahead = len(part)
                    return taken
                taken += len(part)
        return taken

    async def send_all(self, data: bytes | memoryview) -> None:
        self._check_open()
        if self._rest:
            rest, self._rest = self._rest, b""
            await self._inner.send_all(rest)
        skip = min(self._ahead, len(data))
        self._ahead -= skip
        view = memoryview(data)[skip:]
        if not view:
            await trio.lowlevel.checkpoint()
        for at in range(0, len(view), WRITE_BYTES):
            await self._inner.send_all(self._encrypt(view[at : at + WRITE_BYTES]))

    async def send_file(self, file: "MappedFile", at: int, size: int) -> None:
        while size:
            part = await trio.to_thread.run_sync(file.pread, at, min(size, FILE_BYTES))
            await self.send_all(part)
            at, size = at + len(part), size - len(part)

    async def aclose(self) -> None:
        if not self._rest and not self._closed:
            # The library asks to wait for the peer's goodbye, which is not needed.
            with suppress(ssl.SSLError):
                self._tls.unwrap()
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                if goodbye := self._outgoing.read():
                    self._inner.try_send([goodbye])
        self._closed = True
        await self._inner.aclose()

    def _check_open(self) -> None:
        if self._closed:
            raise trio.ClosedResourceError("this connection was closed")

    def _encrypt(self, data: memoryview) -> bytes:
        """The ciphertext of ``data``."""
        while data:
            data = data[self._tls.write(data) :]
        return self._outgoing.read()

    def _send_rest(self) -> bool:
        """Whether the inner transport has taken all ciphertext."""
        if self._rest:
            self._rest = memoryview(self._rest)[self._inner.try_send([self._rest]) :]
        return not self._rest

    async def _send_handshake(self) -> None:
        if data := self._outgoing.read():
            await self._inner.send_all(data)


def reason_of(error: ssl.SSLError) -> str:
    """The reason of ``error`` in one line, with a remedy where one is known."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate is not trusted: {error.verify_message}"
    reason = error.reason or str(error)
    return _KNOWN.get(reason, f"TLS failed: {reason.replace('_', ' ').lower()}")


_NO_TLS = "the other end does not speak TLS: switch TLS on there, or off here"
_WRONG_CA = "the other end does not trust this certificate: give it the CA that signed it"
_KNOWN = {
    "WRONG_VERSION_NUMBER": _NO_TLS,
    "HTTP_REQUEST": _NO_TLS,
    "UNKNOWN_PROTOCOL": _NO_TLS,
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the client has no certificate, and this server wants one",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "the server wants a certificate of this client: give it one and its key",
    "TLSV1_ALERT_UNKNOWN_CA": _WRONG_CA,
    "SSLV3_ALERT_BAD_CERTIFICATE": _WRONG_CA,
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": _WRONG_CA,
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "the certificate of this end has expired: renew it",
    "UNSUPPORTED_PROTOCOL": "the other end speaks only versions before TLS 1.2",
    "NO_SHARED_CIPHER": "both ends have no cipher in common, or this server has no certificate",
}
