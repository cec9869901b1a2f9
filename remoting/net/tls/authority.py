"""A CA of one cluster, and the certificate of its servers, for `mqadmin secureCluster`. Blocks; needs cryptography."""

import datetime
from collections.abc import Sequence
from ipaddress import ip_address

from skylark.mqcommon.errors import UserError
from skylark.mqcommon.extras import missing_extra
from skylark.mqcommon.lazy_dataclass import lazy_dataclass

# Both have to be renewed together: the CA's key is not kept.
DAYS = 3_650


@lazy_dataclass(frozen=True)
class Certificates:
    """All as PEM. ``ca`` is what clients trust; its key is gone, so that nobody can sign another server."""

    ca: str
    server: str
    server_key: str


def make_certificates(hosts: Sequence[str]) -> Certificates:
    """A new CA, and the certificate of servers at ``hosts``, names or addresses. UserError without cryptography."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError as error:
        raise UserError(f"{missing_extra('a certificate', 'tls', error)}, or give --no-tls") from None
    now = datetime.datetime.now(datetime.UTC)
    ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    ca_name, name = (
        x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])
        for text in ("Skylark cluster CA", "Skylark server")
    )

    def builder(subject: x509.Name, public_key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(ca_name)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=DAYS))
            .add_extension(x509.BasicConstraints(ca=subject == ca_name, path_length=None), critical=True)
        )

    names: list[x509.GeneralName] = []
    for host in hosts:
        try:
            names.append(x509.IPAddress(ip_address(host)))
        except ValueError:
            names.append(x509.DNSName(host))
    ca = builder(ca_name, ca_key.public_key()).sign(ca_key, hashes.SHA256())
    server = (
        builder(name, key.public_key())
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return Certificates(ca.public_bytes(pem).decode(), server.public_bytes(pem).decode(), private.decode())
