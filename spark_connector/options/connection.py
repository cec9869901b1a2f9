"""Options that reading and writing share: addresses of the cluster, credentials, encryption of connections.

Also the parsing of all options. Spark passes them as text, with names in upper or lower case. An unknown option is an
error that suggests the nearest one: if it were ignored, a misspelt option could make the job do something else.
Neighbours: read.py and write.py (the classes with the options), mqcommon/options/fields.py (declaration).
"""

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, ClassVar, Self

from skylark import Credentials, Tls
from skylark.mqcommon.errors import ConfigError, UserError
from skylark.mqcommon.options.fields import option, options_of, parse_value
from skylark.sdk.credentials import credentials_in, read_credentials

NAMESRV_ADDR = "NAMESRV_ADDR"  # read on the driver, so that executors need not have it


@dataclass(frozen=True)
class ConnectionOptions:
    """How to reach a cluster; the base of the classes of options."""

    nameserver: str = option("", "NameServers, host:port, several separated by `;`; without it $NAMESRV_ADDR")

    # --- who asks; also from the environment and a file of the driver, which executors need not have
    access_key: str = option("", "access key with which requests are signed; without it $ROCKETMQ_ACCESS_KEY")
    secret_key: str = option("", "its secret key; without it $ROCKETMQ_SECRET_KEY", secret=True)
    security_token: str = option("", "token of temporary credentials, if they have one", secret=True)
    credentials_file: str = option("", "file of the driver with `accessKey` and `secretKey`, mode 0600")

    # --- encryption; the files must be on all executors, too
    tls: bool = option(False, "connections are encrypted; without `tlsCaFile` the CAs of the system are trusted")
    tls_ca_file: str = option("", "CAs (PEM) of the servers' certificates")
    tls_cert_file: str = option("", "certificate (PEM) of the job, for servers that want one")
    tls_key_file: str = option("", "its key")
    tls_key_password: str = option("", "the password of the key, if it has one", secret=True)
    tls_check_name: bool = option(True, "a server's certificate must have the name or address that was asked for")

    aliases: ClassVar[Mapping[str, str]] = MappingProxyType(
        {"namesrvaddr": "nameserver", "nameserver.addr": "nameserver", "namesrv.addr": "nameserver"}
    )
    #: How to give the topic, for users who pass a path as with files.
    path_hint: ClassVar[str] = 'use .option("topic", ...).load() without a path'

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Self:
        """Parse the user's options; UserError when one is unknown or invalid."""
        known = {o.key.lower(): o for o in options_of(cls)}
        values: dict[str, Any] = {"nameserver": os.environ.get(NAMESRV_ADDR, "")}
        spelled: dict[str, str] = {}
        for name, text in given.items():
            o = known.get(cls.aliases.get(name.lower(), name.lower()))
            if o is None:
                raise UserError(f"option {name} is unknown; {cls._hint(name, [o.key for o in known.values()])}")
            if (other := spelled.setdefault(o.name, name)) != name:
                raise UserError(f"options {other} and {name} are two names of one option; give one of them")
            try:
                values[o.name] = parse_value(o, text, "")
            except ConfigError as error:
                raise UserError(f"option {error}") from None
        options = cls(**values)
        options.check()
        if (found := options.credentials or _from_file_or_environment(options.credentials_file)) is not None:
            return replace(
                options, access_key=found.access_key, secret_key=found.secret_key, security_token=found.security_token
            )
        return options

    @classmethod
    def _hint(cls, name: str, known: list[str]) -> str:
        if name.lower() == "path":
            return cls.path_hint
        lower = {key.lower(): key for key in known}
        near = difflib.get_close_matches(name.lower(), lower, n=1)
        if near:
            return f"did you mean {lower[near[0]]}?"
        return f"options are {', '.join(sorted(known))}"

    @property
    def credentials(self) -> Credentials | None:
        """The credentials with which requests are signed; None: requests are not signed."""
        return Credentials(self.access_key, self.secret_key, self.security_token) if self.access_key else None

    @property
    def client(self) -> dict[str, Any]:
        """The arguments of clients of the SDK."""
        return {"nameserver": self.nameserver or None, "credentials": self.credentials, "tls": self.encryption}

    @property
    def encryption(self) -> Tls | None:
        """How connections are encrypted; None: connections are not encrypted."""
        if not self.tls:
            return None
        return Tls(
            ca_file=self.tls_ca_file or None,
            cert_file=self.tls_cert_file or None,
            key_file=self.tls_key_file or None,
            key_password=self.tls_key_password or None,
            check_name=self.tls_check_name,
        )

    def check(self) -> None:
        """Raise UserError for combinations of options that are invalid; classes with more options extend it."""
        if bool(self.access_key) != bool(self.secret_key):
            raise UserError("options accessKey and secretKey must both be set, or none of them")
        if self.access_key and self.credentials_file:
            raise UserError("option credentialsFile cannot be given together with accessKey and secretKey")
        if not self.tls and (self.tls_ca_file or self.tls_cert_file or self.tls_key_file):
            raise UserError("options tlsCaFile, tlsCertFile and tlsKeyFile need tls=true")


def _from_file_or_environment(file: str) -> Credentials | None:
    """The credentials in ``file``, else those in the environment."""
    return read_credentials(file) if file else credentials_in(os.environ)
