"""The certificate of RocketMQ's test mode: made at the start, signed by itself. It proves nothing."""

import datetime
import os
import ssl
import tempfile

from mqcommon.errors import UserError

# Long enough for clocks that differ; a restart makes another one.
_DAYS = 365


def load_self_signed(context: ssl.SSLContext) -> None:
    """Make a certificate and give it to ``context``. UserError when the package for it is not installed."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError:
        raise UserError(
            "tls.test.mode.enable makes a certificate, which needs a package: pip install 'skylark-mq[tls]', or set"
            " tls.server.certPath and tls.server.keyPath"
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
        .not_valid_after(now + datetime.timedelta(days=_DAYS))
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    # The library reads files only.
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "test.pem")
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(certificate.public_bytes(pem) + private)
        context.load_cert_chain(path)
