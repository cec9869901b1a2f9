"""TLS of a proxy: which clients it serves, with which certificate, and how it speaks to brokers.

The certificate comes from the proxy's own options, else from tls.properties; without either, the proxy makes a
certificate that is signed by itself.
"""

from dataclasses import replace

from skylark.mqcommon.errors import ConfigError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqproxy.options import ProxyOptions
from skylark.remoting.net.tls.options import read_properties
from skylark.remoting.net.tls.settings import DISABLED, PERMISSIVE, ServerTls, Tls, parse_properties


@lazy_dataclass(frozen=True, slots=True)
class ProxyTls:
    """The TLS settings of options and tls.properties. ``client`` is for connections to NameServers and brokers."""

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
        return ProxyTls(None, found.client)
    server = replace(found.server or ServerTls(mode, "", "", is_test=True), mode=mode)
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
    return ProxyTls(server, found.client)
