"""Settings into the contexts of the TLS library: reads certificates and keys. Blocks."""

import ssl
from collections.abc import Sequence

from skylark.mqcommon.errors import UserError
from skylark.mqcommon.extras import missing_extra
from skylark.remoting.net.tls.settings import NONE, OPTIONAL, ServerTls, Tls

# How long the certificate is valid; a restart makes a new one.
_SELF_SIGNED_DAYS = 365


def client_context(tls: Tls) -> ssl.SSLContext:
    """The context of a client with these settings. UserError when a file cannot be used."""
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


def server_context(tls: ServerTls, alpn: Sequence[str] = ()) -> ssl.SSLContext:
    """``alpn``: the protocols that clients may choose, as HTTP/2's "h2". UserError when a file cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if alpn:
        context.set_alpn_protocols(list(alpn))
    # A client could make the server compute much with little effort.
    context.options |= ssl.OP_NO_RENEGOTIATION
    if tls.is_test:
        _load_self_signed(context)
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
        # Without a password the library would ask for one at the terminal.
        return password or ""

    try:
        context.load_cert_chain(cert, key, given_password)
    except (OSError, ssl.SSLError) as error:
        raise UserError(
            f"certificate {cert} and key {key or cert} cannot be used: {_text(error)}; both must be PEM files that"
            " belong together, and the password must be the key's"
        ) from None


def _text(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or str(error)).replace("_", " ").lower()
    return error.strerror or str(error)


def _load_self_signed(context: ssl.SSLContext) -> None:
    """RocketMQ's test mode: a new certificate that is signed by itself, and proves nothing."""
    import os

    certificate, key = self_signed()
    # The library reads files only. A file in memory needs no directory that is writable and has room.
    fd = os.memfd_create("test.pem")
    with open(fd, "wb", buffering=0) as file:
        file.write(certificate + key)
        context.load_cert_chain(f"/proc/self/fd/{fd}")


def self_signed() -> tuple[bytes, bytes]:
    """A new certificate that is signed by itself, and its key, both as PEM.

    UserError when the package that makes it is not installed.
    """
    import datetime

    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError as error:
        raise UserError(
            f"{missing_extra('the certificate of tls.test.mode.enable', 'tls', error)}, or set tls.server.certPath and"
            " tls.server.keyPath"
        ) from None
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "skylark test")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=_SELF_SIGNED_DAYS))
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return certificate.public_bytes(pem), private
