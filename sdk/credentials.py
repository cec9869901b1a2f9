"""Credentials and TLS of a client: the checks of the arguments ``credentials`` and ``tls``, and the files and variables
that hold both for tools.

A file has the keys of RocketMQ's conf/tools.yml (``accessKey``, ``secretKey``, ``securityToken``), as ``key: value`` or
``key=value``. Only its owner may read it (mode 0600). The settings of TLS are RocketMQ's tls.properties.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Final

from skylark.mqcommon.arguments import wrong_type
from skylark.mqcommon.disk.secret_file import read_secret_file
from skylark.mqcommon.errors import ConfigError, UserError
from skylark.mqcommon.options.conf_file import entries
from skylark.remoting.net.tls.settings import Tls, parse_properties
from skylark.remoting.protocol.signature import Credentials

ACCESS_KEY_ENV: Final = "ROCKETMQ_ACCESS_KEY"
SECRET_KEY_ENV: Final = "ROCKETMQ_SECRET_KEY"
ROCKETMQ_HOME: Final = "ROCKETMQ_HOME"
SECURITY_TOKEN_ENV: Final = "ROCKETMQ_SECURITY_TOKEN"
_KEYS: Final = {"accessKey": "access_key", "secretKey": "secret_key", "securityToken": "security_token"}


def check_credentials(name: str, value: object) -> None:
    """TypeError unless ``value`` is Credentials or None. It does not show ``value``, which may be the secret itself."""
    if value is not None and not isinstance(value, Credentials):
        kind = type(value).__name__
        raise TypeError(f"{name} must be Credentials(access_key, secret_key), not {kind}")


GivenCredentials = Annotated[Credentials | None, check_credentials]


def read_credentials(path: str | Path) -> Credentials:
    """The credentials in a file. UserError when the file cannot be read, or when other users may read it."""
    if not isinstance(path, str | Path):
        raise wrong_type("path", "a str or a Path", path)
    values: dict[str, str] = {}
    for number, line in enumerate(read_secret_file(path).splitlines(), 1):
        text = line.strip()
        if not text or text.startswith(("#", "---")):
            continue
        key, colon, value = text.partition(":") if ":" in text.split("=")[0] else text.partition("=")
        name = _KEYS.get(key.strip())
        if not colon or name is None:
            raise UserError(f"{path}:{number}: not a key of credentials: write accessKey: ... and secretKey: ...")
        values[name] = _unquoted(value.strip())
    if not values.get("access_key") or not values.get("secret_key"):
        raise UserError(f"{path}: accessKey and secretKey must both be set")
    return Credentials(**values)


def credentials_in(environ: Mapping[str, str]) -> Credentials | None:
    """The credentials in the environment; None when there are none. UserError when only one of the two keys is set."""
    access_key, secret_key = environ.get(ACCESS_KEY_ENV, ""), environ.get(SECRET_KEY_ENV, "")
    if not access_key and not secret_key:
        return None
    if not access_key or not secret_key:
        missing = SECRET_KEY_ENV if access_key else ACCESS_KEY_ENV
        raise UserError(f"{missing} is not set: set both {ACCESS_KEY_ENV} and {SECRET_KEY_ENV}, or none of them")
    return Credentials(access_key, secret_key, environ.get(SECURITY_TOKEN_ENV, ""))


def credentials_of_tools(
    file: str | None, environ: Mapping[str, str], warn: Callable[[str], None]
) -> Credentials | None:
    """The credentials in ``file``, else in the environment, else in $ROCKETMQ_HOME/conf/tools.yml, as RocketMQ's tools.

    RocketMQ installs that last file readable for all users. So its mode only causes a warning.
    """
    if file is not None:
        return read_credentials(file)
    if (found := credentials_in(environ)) is not None:
        return found
    home = environ.get(ROCKETMQ_HOME)
    path = Path(home, "conf", "tools.yml") if home else None
    if path is None or not path.exists():
        return None
    try:
        return read_credentials(path)
    except UserError as error:
        warn(f"requests are not signed: {error}")
        return None


def _unquoted(text: str) -> str:
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1]
    # A comment of YAML begins with a blank and a hash sign.
    return text.partition(" #")[0].rstrip()


def check_tls(name: str, value: object) -> None:
    """TypeError unless ``value`` is Tls or None."""
    if value is not None and not isinstance(value, Tls):
        raise TypeError(f"{name} must be Tls(...), not {type(value).__name__}: Tls() trusts the CAs of the system")


GivenTls = Annotated[Tls | None, check_tls]


def read_tls_config(path: str) -> Tls:
    """The client's part of a tls.properties. UserError when the file cannot be read, or is invalid."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{path} cannot be read: {reason}") from None
    found = parse_properties({key: value for _, key, value in entries(text, path)}, path, use_tls=True).client
    assert found is not None
    return found
