"""What TLS is to be: `Tls` for clients, and RocketMQ's tls.properties, which servers read.

Keys are RocketMQ's. Two defaults differ, to be safe: a server without a certificate offers no TLS, unless
tls.test.mode.enable asks for a certificate that it makes itself; and servers are verified unless
tls.client.authServer says false.
"""

from collections.abc import Mapping
from dataclasses import field

from skylark.mqcommon.errors import ConfigError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass

DISABLED, PERMISSIVE, ENFORCING = "disabled", "permissive", "enforcing"
NONE, OPTIONAL, REQUIRE = "none", "optional", "require"


@lazy_dataclass(frozen=True)
class Tls:
    """TLS of a client.

    ``ca_file`` (PEM) has the CAs that may have signed a server's certificate; by default the system's CAs. A server
    must prove that it has the name to which the client connects: set ``server_name`` when its certificate has another
    name than its address, or ``check_name=False`` when any certificate of these CAs will do. ``verify=False`` accepts
    any server at all, which is for tests. ``cert_file`` and ``key_file`` are this client's own, for servers that want
    to know who it is; ``key_password`` is the password of an encrypted key.
    """

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    key_password: str | None = field(default=None, repr=False)
    server_name: str | None = None
    check_name: bool = True
    verify: bool = True


@lazy_dataclass(frozen=True)
class ServerTls:
    """TLS of a server: which clients it serves, and its certificate."""

    mode: str
    cert_file: str
    key_file: str
    key_password: str | None = field(default=None, repr=False)
    ca_file: str | None = None
    client_certificates: str = NONE
    #: Make a certificate at the start, which proves nothing.
    is_test: bool = False


@lazy_dataclass(frozen=True)
class TlsProperties:
    """A tls.properties: settings of the server, and of its requests to others. None: without TLS."""

    server: ServerTls | None
    client: Tls | None


def parse_properties(values: Mapping[str, str], source: str, *, use_tls: bool = False) -> TlsProperties:
    """The settings in a tls.properties; ``use_tls`` is the option that switches TLS of requests to others on, too.

    ConfigError, which names ``source`` and the key, when it is wrong.
    """
    known = _Values(values, source)
    is_test = known.flag("tls.test.mode.enable", False)
    mode = known.one_of(("tls.server.mode", "server.ssl.mode"), (DISABLED, PERMISSIVE, ENFORCING), PERMISSIVE)
    cert, key = known.text("tls.server.certPath"), known.text("tls.server.keyPath")
    if bool(cert) != bool(key):
        raise ConfigError(f"{source}: tls.server.certPath and tls.server.keyPath belong together; set both or none")
    wanted = known.one_of(("tls.server.need.client.auth",), (NONE, OPTIONAL, REQUIRE), NONE)
    ca = known.text("tls.server.trustCertPath") or None
    if known.flag("tls.server.authClient", False) and wanted == NONE:
        wanted = REQUIRE
    if wanted != NONE and ca is None:
        raise ConfigError(f"{source}: clients are to be verified: set tls.server.trustCertPath to the CA of theirs")
    server = None
    if mode != DISABLED and (cert or is_test):
        password = known.text("tls.server.keyPassword") or None
        server = ServerTls(mode, cert, key, password, ca, wanted, is_test and not cert)
    elif mode == ENFORCING:
        raise ConfigError(f"{source}: tls.server.mode=enforcing needs tls.server.certPath and tls.server.keyPath")
    client = None
    if use_tls or known.flag("tls.enable", False):
        client = Tls(
            ca_file=known.text("tls.client.trustCertPath") or None,
            cert_file=known.text("tls.client.certPath") or None,
            key_file=known.text("tls.client.keyPath") or None,
            key_password=known.text("tls.client.keyPassword") or None,
            # Brokers are known by their addresses, which RocketMQ's certificates do not have.
            check_name=False,
            verify=known.flag("tls.client.authServer", not is_test),
        )
    return TlsProperties(server, client)


class _Values:
    def __init__(self, values: Mapping[str, str], source: str) -> None:
        self._values = values
        self._source = source

    def text(self, key: str) -> str:
        return self._values.get(key, "").strip()

    def flag(self, key: str, default: bool) -> bool:
        text = self.text(key).lower()
        if text not in ("", "true", "false"):
            raise ConfigError(f"{self._source}: {key} must be true or false, not {text}")
        return text == "true" if text else default

    def one_of(self, keys: tuple[str, ...], choices: tuple[str, ...], default: str) -> str:
        for key in keys:
            if text := self.text(key).lower():
                if text not in choices:
                    raise ConfigError(f"{self._source}: {key} must be one of {', '.join(choices)}, not {text}")
                return text
        return default
