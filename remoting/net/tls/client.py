"""The client's side of TLS: connects, and agrees on keys before the connection is used."""

import ssl

import trio

from skylark.remoting.net import sockets
from skylark.remoting.net.tls.contexts import client_context
from skylark.remoting.net.tls.session import TlsTransport, reason_of
from skylark.remoting.net.tls.settings import Tls
from skylark.remoting.net.transport import Connect, TlsError, Transport


def tls_connect(tls: Tls, connect: Connect = sockets.connect) -> Connect:
    """A function that connects with TLS. Reads the files now; UserError when one cannot be used.

    It raises TlsError when the server does not speak TLS, or is not trusted, or does not trust this client.
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
                raise TlsError(_with_remedy(error)) from None
            if isinstance(error, trio.BrokenResourceError):
                raise TlsError(f"{error}: does this port speak TLS? If not, switch it on there, or off here") from None
            raise
        return transport

    return connect_securely


def _with_remedy(error: ssl.SSLError) -> str:
    """The reason; for a certificate that is not trusted, also what this client can do about it."""
    reason = reason_of(error)
    if not isinstance(error, ssl.SSLCertVerificationError):
        return reason
    match error.verify_code:
        case 10:  # OpenSSL's X509_V_ERR_CERT_HAS_EXPIRED
            remedy = "renew it"
        case 62 | 64:  # X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH
            remedy = "connect to a name that is in it, or give that name (Tls(server_name))"
        case _:
            remedy = "trust its CA, or a self-signed one itself: Tls(ca_file), tls.client.trustCertPath"
    return f"{reason.rstrip('.')}: {remedy}"
