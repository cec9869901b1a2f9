"""The accounts of a file in the form of RocketMQ's plain_acl.yml: names, secrets, and who is an administrator.

    accounts:
    - accessKey: broker-1
      secretKey: ...
      admin: true

Only its owner may read the file (mode 0600). Other keys, such as permissions on topics, are ignored. Neighbours:
disk/secret_file.py, yaml_documents.py; namesrv/access.py and broker/security use the accounts; broker/security reads
more keys.
"""

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from skylark.mqcommon.disk.secret_file import read_secret_file
from skylark.mqcommon.errors import ConfigError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.yaml_documents import parse_yaml

# RocketMQ's servers refuse files with shorter keys.
LEAST_KEY_CHARS = 7


@lazy_dataclass(frozen=True, slots=True)
class Account:
    """One account. ``admin``: it may do everything. Its secret is in no repr."""

    access_key: str
    secret_key: str = field(repr=False)
    admin: bool = False
    #: May register brokers at a NameServer or a Controller, as an administrator may.
    registers: bool = False


def read_accounts(path: str) -> dict[str, Account]:
    """The accounts in a file, by access key. UserError when it cannot be used. Blocks."""
    return parse_accounts(read_document(path), path)


def read_document(path: str) -> Any:
    """The YAML document in a file, whose values are texts. UserError when it cannot be used. Blocks."""
    return parse_yaml(read_secret_file(path), path)


def parse_accounts(document: Any, source: str) -> dict[str, Account]:
    """The accounts of a YAML document whose values are texts. ConfigError, which names ``source``, when it is wrong."""
    rows = document.get("accounts") if isinstance(document, Mapping) else None
    if not isinstance(rows, list):
        raise ConfigError(f"{source}: it has no list of accounts; write accounts: and below it - accessKey: ...")
    accounts: dict[str, Account] = {}
    for number, row in enumerate(rows, 1):
        account = _account(row, f"{source}: account {number}")
        # It is unknown which of the two secrets is meant, so neither is used.
        if account.access_key in accounts:
            raise ConfigError(f"{source}: account {number}: accessKey {account.access_key} is there twice")
        accounts[account.access_key] = account
    return accounts


def _account(row: Any, where: str) -> Account:
    if not isinstance(row, Mapping):
        raise ConfigError(f"{where}: it is not a list of keys and values; write accessKey: ..., secretKey: ...")
    admin = row.get("admin", "false")
    if admin not in ("true", "false"):
        raise ConfigError(f"{where}: admin must be true or false")
    return Account(_key(row, "accessKey", where), _key(row, "secretKey", where), admin == "true")


def _key(row: Mapping[str, Any], name: str, where: str) -> str:
    value = row.get(name)
    if not isinstance(value, str) or len(value) < LEAST_KEY_CHARS:
        raise ConfigError(f"{where}: {name} must be a text of at least {LEAST_KEY_CHARS} characters")
    return value
