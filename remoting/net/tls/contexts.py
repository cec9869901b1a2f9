"""Settings into the contexts of the TLS library: reads certificates and keys. Blocks."""

import ssl

from mqcommon.errors import UserError
from remoting.net.tls.settings import NONE, OPTIONAL, ServerTls, Tls


def client_context(tls: Tls) -> ssl.SSLContext:
    """UserError when a file cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = tls.verify and tls.check_name
    if not tls.verify:
        context.verify_mode = ssl.CERT_NONE
    elif tls.ca_file is None:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    else:
        _load_ca(context, tls.ca_file)
    if tls.cert_file is not None:
        _load_certificate(context, tls.cert_file, tls.key_file, tls.key_password)
    return context


def server_context(tls: ServerTls) -> ssl.SSLContext:
    """UserError when a file cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # A client could make the server compute much with little effort.
    context.options |= ssl.OP_NO_RENEGOTIATION
    if tls.is_test:
        from remoting.net.tls.self_signed import load_self_signed

        load_self_signed(context)
    else:
        _load_certificate(context, tls.cert_file, tls.key_file, tls.key_password)
    if tls.client_certificates != NONE and tls.ca_file is not None:
        context.verify_mode = ssl.CERT_OPTIONAL if tls.client_certificates == OPTIONAL else ssl.CERT_REQUIRED
        _load_ca(context, tls.ca_file)
    return context


def _load_ca(context: ssl.SSLContext, file: str) -> None:
    try:
        context.load_verify_locations(file)
    except (OSError, ssl.SSLError) as error:
        raise UserError(f"{file}: no CA certificates (PEM) can be read from it: {_text(error)}") from None


def _load_certificate(context: ssl.SSLContext, cert: str, key: str | None, password: str | None) -> None:
    def given_password() -> str:
        # Without one the library would ask at the terminal.
        return password or ""

    try:
        context.load_cert_chain(cert, key, given_password)
    except (OSError, ssl.SSLError) as error:
        raise UserError(
            f"certificate {cert} and key {key or cert} cannot be used: {_text(error)}; both must be PEM files that"
            " belong together, and the password that of the key"
        ) from None


def _text(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or str(error)).replace("_", " ").lower()
    return error.strerror or str(error)
