"""The options of mqconsole with their defaults. Where the cluster is, and the credentials, are mqadmin's options."""

from skylark.mqcommon.errors import ConfigError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.logs.options import LogOptions, parse_levels
from skylark.mqcommon.metrics.options import HealthOptions
from skylark.mqcommon.options.fields import option

LOOPBACK = ("127.0.0.1", "::1", "localhost")


@lazy_dataclass(frozen=True)
class ConsoleOptions(LogOptions, HealthOptions):
    """The options of one console."""

    listen_port: int = option(8088, "port for browsers; 0 takes a free one", minimum=0, maximum=65535)
    bind_address: str = option("127.0.0.1", "address to listen on; an address other than loopback needs login=true")
    login: bool = option(
        False, "ask for a user of the brokers; without it everybody at the port acts with the console's credentials"
    )
    https_cert_file: str = option("", "certificate chain (PEM): browsers connect with HTTPS; needs httpsKeyFile")
    https_key_file: str = option("", "private key (PEM) of httpsCertFile")
    behind_https_proxy: bool = option(False, "a proxy in front of the console speaks HTTPS with browsers")
    host_names: str = option(
        "", "names by which browsers may ask for the console, separated by commas; empty: any with login, else loopback"
    )
    poll_interval: int = option(
        5, "time between two rounds of asking the brokers, for any number of visitors", unit="s", minimum=2, maximum=60
    )
    session_hours: int = option(8, "a login is over after this time", unit="hours", minimum=1, maximum=24 * 7)

    def __post_init__(self) -> None:
        parse_levels(self.log_levels)
        if bool(self.https_cert_file) != bool(self.https_key_file):
            raise ConfigError("httpsCertFile and httpsKeyFile belong together: set both or none")
        if self.bind_address in LOOPBACK:
            return
        where = f"bindAddress={self.bind_address}: others can reach the console"
        if not self.login:
            raise ConfigError(f"{where}: set login=true, or listen on 127.0.0.1")
        if not self.is_https:
            raise ConfigError(
                f"{where}, and secrets would cross the network as they are: set httpsCertFile and httpsKeyFile, or"
                " behindHttpsProxy=true if a proxy speaks HTTPS"
            )

    @property
    def is_https(self) -> bool:
        """Whether browsers see HTTPS."""
        return bool(self.https_cert_file) or self.behind_https_proxy

    @property
    def allowed_hosts(self) -> frozenset[str]:
        """The names in the Host header that are served; empty: any."""
        given = frozenset(one.strip().lower() for one in self.host_names.split(",") if one.strip())
        if given or self.login:
            return given
        # Otherwise a page of another site whose host name leads to 127.0.0.1 could ask the console.
        return frozenset({*LOOPBACK, "[::1]"})
