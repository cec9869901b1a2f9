"""The accounts and white lists of one file. Pure: reads a YAML document whose values are texts.

Every mistake is an error that names the file and the key. RocketMQ ignores unknown keys and wrong permissions; an
account may then have other rights than its file seems to say.
"""

from collections.abc import Iterator, Mapping
from dataclasses import field
from difflib import get_close_matches
from typing import Any, Final

from skylark.broker.security.accounts.addresses import Addresses
from skylark.broker.security.accounts.permissions import DENY, parse_permission
from skylark.mqcommon.acl_accounts import parse_accounts
from skylark.mqcommon.errors import ConfigError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.names import RETRY_PREFIX
from skylark.remoting.protocol.body import DataVersion

WHITE: Final = "globalWhiteRemoteAddresses"
ACCOUNTS: Final = "accounts"
VERSION: Final = "dataVersion"
COUNTER: Final = "counter"
TIMESTAMP: Final = "timestamp"
_KEYS: Final = (WHITE, ACCOUNTS, VERSION)
ACCESS_KEY: Final = "accessKey"
SECRET_KEY: Final = "secretKey"
ADMIN: Final = "admin"
ACCOUNT_WHITE: Final = "whiteRemoteAddress"
DEFAULT_TOPIC: Final = "defaultTopicPerm"
DEFAULT_GROUP: Final = "defaultGroupPerm"
TOPICS: Final = "topicPerms"
GROUPS: Final = "groupPerms"
_ACCOUNT_KEYS: Final = (
    ACCESS_KEY, SECRET_KEY, ADMIN, ACCOUNT_WHITE, DEFAULT_TOPIC, DEFAULT_GROUP, TOPICS, GROUPS,
)  # fmt: skip


@lazy_dataclass(frozen=True, slots=True)
class Account:
    """One account. Its repr does not show the secret."""

    access_key: str
    secret_key: str = field(repr=False)
    admin: bool
    #: Clients at these addresses need no signature.
    white: Addresses
    #: For topics and groups that are not named below.
    default_topic: int
    default_group: int
    topics: Mapping[str, int]
    #: By group, without the prefix of retry topics.
    groups: Mapping[str, int]
    #: The file of the account.
    source: str


@lazy_dataclass(frozen=True, slots=True)
class AccountFile:
    """The contents of one file."""

    path: str
    white: Addresses
    accounts: Mapping[str, Account]
    version: DataVersion


def parse_file(document: Any, path: str) -> AccountFile:
    """The accounts of a document, which is None when the file is empty. ConfigError for a mistake."""
    if document is None:
        document = {}
    if not isinstance(document, Mapping):
        raise ConfigError(f"{path}: it has no keys; write {ACCOUNTS}: and below it - {ACCESS_KEY}: ...")
    _check_keys(document, _KEYS, path)
    logins = parse_accounts(document, path) if document.get(ACCOUNTS) else {}
    rows = document[ACCOUNTS] if logins else ()
    accounts = {row[ACCESS_KEY]: _account(row, path) for row in rows}
    white = _addresses(_texts(document.get(WHITE), f"{path}: {WHITE}"), f"{path}: {WHITE}")
    return AccountFile(path, white, accounts, _version(document.get(VERSION), f"{path}: {VERSION}"))


def _account(row: Mapping[str, Any], path: str) -> Account:
    """An account whose names and flag `parse_accounts` has checked."""
    where = f"{path}: account {row[ACCESS_KEY]}"
    _check_keys(row, _ACCOUNT_KEYS, where)
    topics = dict(_permissions(row.get(TOPICS), f"{where}: {TOPICS}"))
    named = dict(_permissions(row.get(GROUPS), f"{where}: {GROUPS}"))
    groups = {name.removeprefix(RETRY_PREFIX): bits for name, bits in named.items()}
    # RocketMQ has groups under the names of their retry topics.
    groups |= {name.removeprefix(RETRY_PREFIX): bits for name, bits in topics.items() if name.startswith(RETRY_PREFIX)}
    white = _text(row.get(ACCOUNT_WHITE), f"{where}: {ACCOUNT_WHITE}")
    return Account(
        row[ACCESS_KEY],
        row[SECRET_KEY],
        row.get(ADMIN) == "true",
        _addresses([white], f"{where}: {ACCOUNT_WHITE}"),
        _permission(row.get(DEFAULT_TOPIC), f"{where}: {DEFAULT_TOPIC}"),
        _permission(row.get(DEFAULT_GROUP), f"{where}: {DEFAULT_GROUP}"),
        topics,
        groups,
        path,
    )


def _check_keys(found: Mapping[Any, Any], known: tuple[str, ...], where: str) -> None:
    for key in found:
        if key not in known:
            near = get_close_matches(str(key), known, 1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
            raise ConfigError(f"{where}: {str(key)[:100]!r} is no key that this broker knows; {hint}")


def _text(value: Any, where: str) -> str:
    if value is not None and not isinstance(value, str):
        raise ConfigError(f"{where}: it must be a text")
    return value or ""


def _texts(value: Any, where: str) -> list[str]:
    if not value:
        return []
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise ConfigError(f"{where}: it must be a list of texts; write each in a line of its own after a dash")
    return value


def _addresses(texts: list[str], where: str) -> Addresses:
    try:
        return Addresses(texts)
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from None


def _permission(value: Any, where: str) -> int:
    try:
        return parse_permission(text) if (text := _text(value, where)) else DENY
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from None


def _permissions(value: Any, where: str) -> Iterator[tuple[str, int]]:
    """The names and permissions of texts like ``topicA=PUB|SUB``."""
    for text in _texts(value, where):
        name, equals, permission = (part.strip() for part in text.partition("="))
        if not equals or not name:
            raise ConfigError(f"{where}: {text[:300]!r} is no permission; write name=PUB|SUB")
        yield name, _permission(permission or "nothing", f"{where}: {name}")


def _version(value: Any, where: str) -> DataVersion:
    if not value:
        return DataVersion()
    try:
        state, timestamp, counter = (int(value[0].get(key) or 0) for key in ("stateVersion", TIMESTAMP, COUNTER))
        return DataVersion(state, timestamp, counter)
    except (AttributeError, LookupError, TypeError, ValueError):
        raise ConfigError(f"{where}: it must be a list with counter and timestamp; leave it out if in doubt") from None
