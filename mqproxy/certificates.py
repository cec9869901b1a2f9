"""TLS of a proxy: which clients it serves, its certificate, also after that changes, and how it speaks to brokers.

The certificate comes from the proxy's own options, else from tls.properties; without either, the proxy makes a
certificate that is signed by itself. New files count for later connections; files that cannot be used change nothing.
"""

import asyncio
import logging
from dataclasses import dataclass, replace

import grpc

from skylark.mqcommon.errors import ConfigError, UserError
from skylark.mqproxy.options import ProxyOptions
from skylark.remoting.net.tls.contexts import self_signed, server_context
from skylark.remoting.net.tls.options import read_properties
from skylark.remoting.net.tls.server import FileChanges
from skylark.remoting.net.tls.settings import DISABLED, PERMISSIVE, REQUIRE, ServerTls, Tls, parse_properties

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ProxyTls:
    """The TLS settings of options and tls.properties. ``client`` is for connections to NameServers and brokers."""

    mode: str
    server: ServerTls | None
    client: Tls | None


def proxy_tls(options: ProxyOptions) -> ProxyTls:
    """Read tls.properties; the proxy's own options take precedence. UserError when a file cannot be used. Blocks."""
    # tls.properties also says how the proxy speaks to brokers, so it is read even when clients get no TLS.
    values, file = read_properties(options)
    found = parse_properties(values, file or "useTLS", use_tls=options.use_tls)
    mode = options.tls_server_mode
    if mode == PERMISSIVE:
        mode = values.get("tls.server.mode", "").strip().lower() or mode
    if mode == DISABLED:
        return ProxyTls(mode, None, found.client)
    server = found.server or ServerTls(mode, "", "", is_test=True)
    if options.tls_cert_path:
        server = replace(
            server,
            cert_file=options.tls_cert_path,
            key_file=options.tls_key_path,
            key_password=options.tls_key_password or None,
            is_test=False,
        )
    if server.is_test and not options.tls_test_mode_enable:
        raise ConfigError(
            "there is no certificate: set tlsCertPath and tlsKeyPath, or tls.server.mode=disabled to serve without TLS"
        )
    return ProxyTls(mode, server, found.client)


class Certificate:
    """The certificate that new connections get. UserError when it cannot be used. Blocks."""

    def __init__(self, settings: ServerTls, interval_s: float) -> None:
        self._settings = settings
        self._interval_s = interval_s
        # Made before the files are read, so that a change in between is noticed.
        self._changes = None if settings.is_test else FileChanges(settings)
        # The certificate that was loaded and is not in use yet.
        self._new: grpc.ServerCertificateConfiguration | None = None
        self._current = _loaded(settings)

    def credentials(self) -> grpc.ServerCredentials:
        """Credentials for one server: gRPC does not take the same object for a second server."""
        is_required = self._settings.client_certificates == REQUIRE
        return grpc.dynamic_ssl_server_credentials(self._current, self._fetch, is_required)

    async def watch(self) -> None:
        """Load the files again when they change, until cancelled.

        When new files cannot be used, the old certificate stays.
        """
        failing = ""
        while self._changes is not None:
            await asyncio.sleep(self._interval_s)
            if not await asyncio.to_thread(self._changes.poll):
                continue
            try:
                self._new = self._current = await asyncio.to_thread(_loaded, self._settings)
            except UserError as error:
                if str(error) != failing:
                    logger.error("the old TLS certificate stays in use: %s", error)
                failing = str(error)
            else:
                logger.info("TLS certificate %s loaded again", self._settings.cert_file)
                failing = ""

    def _fetch(self) -> "grpc.ServerCertificateConfiguration | None":
        """The new certificate, or None if there is none.

        gRPC calls this before each handshake, in a thread of its own.
        """
        new, self._new = self._new, None
        return new


def _loaded(settings: ServerTls) -> grpc.ServerCertificateConfiguration:
    if settings.is_test:
        certificate, key = self_signed()
        return grpc.ssl_server_certificate_configuration([(key, certificate)])
    # gRPC itself would find only at the first handshake that key and certificate do not belong together.
    server_context(settings)
    certificate, key = _read(settings.cert_file), _read(settings.key_file)
    if settings.key_password is not None:
        key = _decrypted(key, settings.key_password)
    ca = _read(settings.ca_file) if settings.client_certificates == REQUIRE and settings.ca_file else None
    return grpc.ssl_server_certificate_configuration([(key, certificate)], ca)


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None


def _decrypted(key: bytes, password: str) -> bytes:
    """The key without its password, which gRPC cannot take. The password is right, as `server_context` has used it."""
    from cryptography.hazmat.primitives import serialization

    loaded = serialization.load_pem_private_key(key, password.encode())
    return loaded.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
