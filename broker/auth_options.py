"""Options of accounts in files (RocketMQ's ACL 1.0), and of users and policies (ACL 2.0)."""

import json
import os
from dataclasses import dataclass

from mqcommon.errors import ConfigError
from mqcommon.options.fields import option

_USER_FORM = '{"username":"...","password":"..."}'
_CREDENTIALS_FORM = '{"accessKey":"...","secretKey":"..."}'


@dataclass(frozen=True)
class AuthOptions:
    """Part of `BrokerOptions`."""

    acl_enable: bool = option(
        False, "serve only requests that an account of aclFile has signed, and may send (ACL 1.0)"
    )
    acl_file: str = option(
        "", "accounts of ACL 1.0 (RocketMQ's plain_acl.yml), with those in the folder acl beside it; for aclEnable and "
        "migrateAuthFromV1Enabled; mode 0600; default: conf/plain_acl.yml in $ROCKETMQ_HOME",
    )  # fmt: skip
    acl_white_list_skips_all: bool = option(
        True, "clients at addresses of white lists may do everything, as in RocketMQ; false: they only need not sign"
    )

    authentication_enabled: bool = option(
        False, "serve only requests that a user of this broker has signed (users: mqadmin createUser)"
    )
    authorization_enabled: bool = option(
        False, "allow users only what their policies allow (mqadmin createAcl); needs authenticationEnabled"
    )
    authentication_whitelist: str = option(
        "", "request codes that need no signature, separated by commas; those that need a right need both lists"
    )
    authorization_whitelist: str = option(
        "", "request codes that any user may send, whatever the policies say, separated by commas"
    )
    init_authentication_user: str = option(
        "", f"a super user that the broker creates at its start if there is no user of that name: {_USER_FORM}",
        env="ROCKETMQ_INIT_AUTHENTICATION_USER", secret=True,
    )  # fmt: skip

    migrate_auth_from_v1_enabled: bool = option(
        False, "at the start, make users and policies of the accounts in aclFile, but for those that are users already"
    )

    @property
    def acl_path(self) -> str:
        """``aclFile`` as a path; empty when neither it nor $ROCKETMQ_HOME is set."""
        home = os.environ.get("ROCKETMQ_HOME", "")
        return os.path.expanduser(self.acl_file or (home and os.path.join(home, "conf", "plain_acl.yml")))

    @property
    def first_user(self) -> tuple[str, str] | None:
        """Name and password of ``initAuthenticationUser``."""
        return _pair(self.init_authentication_user, "initAuthenticationUser", _USER_FORM)

    @property
    def unsigned_codes(self) -> frozenset[int]:
        """``authenticationWhitelist``."""
        return _codes(self.authentication_whitelist, "authenticationWhitelist")

    @property
    def open_codes(self) -> frozenset[int]:
        """``authorizationWhitelist``."""
        return _codes(self.authorization_whitelist, "authorizationWhitelist")


def check_auth(options: AuthOptions) -> None:
    """ConfigError for the first of these options that cannot be used."""
    if options.acl_enable and options.authentication_enabled:
        raise ConfigError(
            "aclEnable: accounts in files and users (authenticationEnabled) cannot both be asked; switch one of them "
            "off (migrateAuthFromV1Enabled makes users of accounts)"
        )
    if options.authorization_enabled and not options.authentication_enabled:
        raise ConfigError(
            "authorizationEnabled: without authenticationEnabled any client could claim any user's name; set both"
        )
    if (options.acl_enable or options.migrate_auth_from_v1_enabled) and not options.acl_path:
        key = "aclEnable" if options.acl_enable else "migrateAuthFromV1Enabled"
        raise ConfigError(f"aclFile: {key} needs the accounts; give the path of plain_acl.yml, or set $ROCKETMQ_HOME")
    _ = options.first_user, options.unsigned_codes, options.open_codes


def _pair(text: str, key: str, form: str) -> tuple[str, str] | None:
    """The two texts of a JSON object like ``form``. Errors do not show the text, which is secret."""
    if not text.strip():
        return None
    first, second = json.loads(form)
    try:
        found = json.loads(text)
        values = found[first], found[second]
    except (ValueError, TypeError, KeyError):
        raise ConfigError(f"{key}: the value is not of the form {form}") from None
    if not all(isinstance(value, str) and value.strip() for value in values):
        raise ConfigError(f"{key}: one of the two texts is empty, or no text; give {form}")
    return values


def _codes(text: str, key: str) -> frozenset[int]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    wrong = next((part for part in parts if not (part.isascii() and part.isdigit())), None)
    if wrong is not None:
        raise ConfigError(f"{key}: {wrong!r} is no request code; give numbers, separated by commas, as 10,310")
    return frozenset(map(int, parts))
