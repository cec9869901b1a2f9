"""The option with which servers sign requests to other servers: NameServers, masters, brokers."""

import orjson

from skylark.mqcommon.errors import ConfigError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.options.fields import option
from skylark.remoting.protocol.plain_peers import check_named
from skylark.remoting.protocol.signature import Credentials

PLAIN_KEY = "plainSignatureAddresses"
KEY = "innerClientAuthenticationCredentials"
_FORM = '{"accessKey":"...","secretKey":"..."}'
_FIELDS = {"accessKey": "access_key", "secretKey": "secret_key", "securityToken": "security_token"}


@lazy_dataclass(frozen=True)
class InnerCredentialsOptions:
    """Part of the options of both daemons."""

    inner_client_authentication_credentials: str = option(
        "",
        f"what this server signs its requests to other servers with: {_FORM}; empty: they are not signed",
        env="ROCKETMQ_INNER_CLIENT_CREDENTIALS",
        secret=True,
    )
    plain_signature_addresses: str = option(
        "",
        "servers of RocketMQ that may get RocketMQ's signature of these credentials, which others can reuse for"
        " other requests: host:port and networks, separated by commas; empty: none",
        env="ROCKETMQ_PLAIN_SIGNATURE_ADDRESSES",
    )

    def check_inner_credentials(self) -> None:
        """ConfigError when the option is wrong: the error is found at the start and not with the first request."""
        _ = self.inner_credentials
        try:
            check_named(self.plain_signature_addresses)
        except ValueError as error:
            raise ConfigError(f"{PLAIN_KEY}: {error}") from None

    @property
    def inner_credentials(self) -> Credentials | None:
        """``innerClientAuthenticationCredentials``, parsed; None when it is empty. ConfigError when it is wrong."""
        text = self.inner_client_authentication_credentials
        if not text:
            return None
        # Errors must not show the value.
        try:
            found = orjson.loads(text)
        except orjson.JSONDecodeError:
            raise ConfigError(f"{KEY}: it is not JSON; give {_FORM}") from None
        texts = isinstance(found, dict) and all(isinstance(value, str) for value in found.values())
        if not texts or not found.keys() <= _FIELDS.keys() or not found.get("accessKey") or not found.get("secretKey"):
            raise ConfigError(f"{KEY}: it is not an object with accessKey and secretKey; give {_FORM}")
        given = {_FIELDS[name]: value for name, value in found.items()}
        return Credentials(**given, plain_signature_addresses=self.plain_signature_addresses)
