"""Certificates for tests: a CA, and what it has signed. Valid from 2020 to 2120, so that no clock matters."""

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

PEM = serialization.Encoding.PEM
FROM, TO = (datetime.datetime(year, 1, 1, tzinfo=datetime.UTC) for year in (2020, 2120))


class Authority:
    """A CA; ``ca_file`` is its certificate."""

    def __init__(self, directory: Path, name: str = "ca") -> None:
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        self.ca_file = str(directory / f"{name}.pem")
        certificate = self._certificate(self._name, self._key, is_ca=True)
        Path(self.ca_file).write_bytes(certificate.public_bytes(PEM))

    def sign(
        self, name: str, *, password: str | None = None, ends: datetime.datetime = TO, host: str = "127.0.0.1"
    ) -> tuple[str, str]:
        """(certificate, key) files of a new server or client, which is at ``host``."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        certificate = self._certificate(subject, key, ends=ends, host=host)
        encryption: serialization.KeySerializationEncryption = serialization.NoEncryption()
        if password is not None:
            encryption = serialization.BestAvailableEncryption(password.encode())
        cert_file, key_file = self._directory / f"{name}.crt", self._directory / f"{name}.key"
        key_file.write_bytes(key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, encryption))
        cert_file.write_bytes(certificate.public_bytes(PEM))
        return str(cert_file), str(key_file)

    def _certificate(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        *,
        ends: datetime.datetime = TO,
        host: str = "127.0.0.1",
        is_ca: bool = False,
    ) -> x509.Certificate:
        names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(host))])
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(FROM)
            .not_valid_after(ends)
            .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
            .add_extension(names, critical=False)
            .sign(self._key, hashes.SHA256())
        )
