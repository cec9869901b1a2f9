"""The client's side: a connect that agrees on keys before the connection is used."""

import ssl

import trio

from remoting.net import sockets
from remoting.net.tls.contexts import client_context
from remoting.net.tls.session import TlsTransport, reason_of
from remoting.net.tls.settings import Tls
from remoting.net.transport import Connect, Transport


def tls_connect(tls: Tls, connect: Connect = sockets.connect) -> Connect:
    """A function that connects with TLS. Reads the files now; UserError when one cannot be used.

    It raises OSError, with the reason, when the server does not speak TLS, or is not trusted, or does not trust this
    client.
    """
    context = client_context(tls)

    async def connect_securely(host: str, port: int) -> Transport:
        inner = await connect(host, port)
        transport = TlsTransport(inner, context, is_server=False, server_name=tls.server_name or host)
        try:
            await transport.shake_hands()
        except BaseException as error:
            with trio.CancelScope(shield=True):
                await trio.aclose_forcefully(inner)
            if isinstance(error, ssl.SSLError):
                raise ConnectionError(reason_of(error)) from None
            if isinstance(error, trio.BrokenResourceError):
                raise ConnectionError(f"{error}: does this port speak TLS?") from None
            raise
        return transport

    return connect_securely
