"""The check of the argument ``tls``; and the settings of tools, which are RocketMQ's tls.properties."""

from typing import Annotated

from mqcommon.errors import ConfigError
from mqcommon.options.conf_file import entries
from remoting.net.tls.settings import Tls, parse_properties


def check_tls(name: str, value: object) -> None:
    """``value`` must be Tls or None."""
    if value is not None and not isinstance(value, Tls):
        raise TypeError(f"{name} must be Tls(...), not {type(value).__name__}: Tls() trusts the CAs of the system")


GivenTls = Annotated[Tls | None, check_tls]


def read_tls_config(path: str) -> Tls:
    """The client's part of a tls.properties. UserError when it cannot be read, or is wrong."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{path} cannot be read: {reason}") from None
    found = parse_properties({key: value for _, key, value in entries(text, path)}, path, use_tls=True).client
    assert found is not None
    return found
