"""Reads the certificate of a server: a TLS handshake that trusts everybody, and nothing is sent after it."""

import ssl

import trio

from remoting.net.sockets import connect
from remoting.net.transport import Transport

_READ_BYTES = 16 * 1024


async def certificate_of(host: str, port: int, timeout_ms: int) -> bytes:
    """The certificate of the server, in DER. Raises OSError, of which ssl.SSLError is one."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # Certificates that have ended, or that nobody has signed, are to be looked at, too.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with trio.move_on_after(timeout_ms / 1000):
        transport = await connect(host, port)
        try:
            return await _shake_hands(context, transport)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise OSError(str(error)) from None
        finally:
            await trio.aclose_forcefully(transport)
    raise OSError(f"no TLS handshake within {timeout_ms} ms")


async def _shake_hands(context: ssl.SSLContext, transport: Transport) -> bytes:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing)
    while True:
        try:
            tls.do_handshake()
            break
        except ssl.SSLWantReadError:
            await transport.send_all(outgoing.read())
            if not (data := await transport.receive(_READ_BYTES)):
                raise OSError("the server closed the connection") from None
            incoming.write(data)
    certificate = tls.getpeercert(binary_form=True)
    if certificate is None:
        raise OSError("the server has no certificate")
    return certificate
