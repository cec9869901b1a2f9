"""The options of both daemons about TLS, and what they lead to: how a daemon listens and connects.

The TLS library is loaded only when TLS is switched on.
"""

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from skylark.mqcommon.disk.secret_file import read_secret_file
from skylark.mqcommon.errors import ConfigError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.options.conf_file import entries
from skylark.mqcommon.options.fields import option
from skylark.remoting.net import sockets
from skylark.remoting.net.transport import Connect, Listener

if TYPE_CHECKING:
    from skylark.remoting.net.tls.server import TlsServer

#: Where RocketMQ looks for its tls.properties.
USUAL_FILE = "/etc/rocketmq/tls.properties"


@lazy_dataclass(frozen=True)
class TlsOptions:
    """Part of the options of both daemons."""

    tls_config_file: str = option(
        "", f"tls.properties with certificates and modes; default: {USUAL_FILE}, if it exists"
    )
    use_tls: bool = option(
        False, "speak TLS to other servers, as tls.enable in tls.properties; all of them must offer it", key="useTLS"
    )


@lazy_dataclass(frozen=True)
class DaemonTls:
    """How a daemon connects to others, and who may connect to it; without TLS ``server`` is None."""

    connect: Connect = sockets.connect
    server: "TlsServer | None" = None

    @property
    def requires_certificates(self) -> bool:
        """Whether only clients with a certificate of the CA get a connection."""
        from skylark.remoting.net.tls.settings import ENFORCING, REQUIRE

        settings = None if self.server is None else self.server.settings
        return settings is not None and (settings.mode, settings.client_certificates) == (ENFORCING, REQUIRE)

    def secured(self, listeners: list[Listener]) -> list[Listener]:
        """``listeners``, which serve clients with TLS, too, if this daemon does."""
        if self.server is None:
            return listeners
        from skylark.remoting.net.tls.server import TlsListener

        return [TlsListener(listener, self.server) for listener in listeners]

    def handshakes(self) -> list[tuple[tuple[str], int]]:
        """How many clients got through, and how many did not, as rows of a metric; none without TLS."""
        if self.server is None:
            return []
        return [(("ok",), self.server.handshakes), (("failed",), self.server.failures)]


def read_properties(options: TlsOptions, exists: Callable[[str], bool] = os.path.exists) -> tuple[dict[str, str], str]:
    """(what the tls.properties of ``options`` says, its name); both empty when there is none. Blocks.

    ``exists``: whether there is a file of a name; by default the machine's own.
    """
    file = options.tls_config_file or (USUAL_FILE if exists(USUAL_FILE) else "")
    if not file:
        return {}, ""
    try:
        with open(file, encoding="utf-8") as opened:
            text = opened.read()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"tlsConfigFile: {file} cannot be read: {error}") from None
    values = {key: value for _, key, value in entries(text, file)}
    if any(value and key.endswith("keyPassword") for key, value in values.items()):
        # Other users must not be able to read a password.
        read_secret_file(file)
    return values, file


def daemon_tls(options: TlsOptions, exists: Callable[[str], bool] = os.path.exists) -> DaemonTls:
    """Read what the options name; ``exists`` as in `read_properties`. UserError when it cannot be used. Blocks."""
    values, file = read_properties(options, exists)
    if not file and not options.use_tls:
        return DaemonTls()
    from skylark.remoting.net.tls.client import tls_connect
    from skylark.remoting.net.tls.server import TlsServer
    from skylark.remoting.net.tls.settings import parse_properties

    found = parse_properties(values, file or "useTLS", use_tls=options.use_tls)
    return DaemonTls(
        sockets.connect if found.client is None else tls_connect(found.client),
        None if found.server is None else TlsServer(found.server),
    )
