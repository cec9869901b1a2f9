"""The options of servers about signatures: which signatures count, and at which addresses clients mean this server."""

from collections.abc import Callable, Collection

from skylark.mqcommon.errors import ConfigError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.options.fields import option
from skylark.remoting.protocol.plain_codes import PlainCodes, plain_codes
from skylark.remoting.protocol.plain_peers import check_named, plain_peers

CODES_KEY = "plainSignatureCodes"
REACHED_KEY = "reachedAtAddresses"


@lazy_dataclass(frozen=True)
class SignatureOptions:
    """Part of the options of brokers, and of NameServers and Controllers."""

    plain_signature_codes: str = option(
        "",
        "who may use RocketMQ's signature for requests of administrators, and for which codes:"
        " slave@10.0.0.7:21,43,45;10.0.0.9:3004; WHO is a user, an address or network, or both; empty: nobody",
    )
    reached_at_addresses: str = option(
        "",
        "addresses of this server that are none of its machine's, as behind NAT or a load balancer: host:port and"
        " networks, separated by commas; clients sign for the address to which they connect",
    )

    def check_signature_options(self) -> None:
        """ConfigError when an option about signatures is wrong."""
        try:
            plain_codes(self.plain_signature_codes)
        except ValueError as error:
            raise ConfigError(f"{CODES_KEY}: {error}") from None
        try:
            check_named(self.reached_at_addresses)
        except ValueError as error:
            raise ConfigError(f"{REACHED_KEY}: {error}") from None

    @property
    def plain_codes(self) -> PlainCodes:
        """``plainSignatureCodes``, parsed."""
        return plain_codes(self.plain_signature_codes)

    def reached_at(self, registered: Collection[str] = ()) -> Callable[[str], bool]:
        """Whether clients may mean this server by ``ip:port``. ``registered``: addresses that routes have of it."""
        others = plain_peers(self.reached_at_addresses)
        return lambda addr: addr in registered or addr in others
