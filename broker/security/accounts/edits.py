"""Changes of a file of accounts, as administrators ask for them. Pure: from the text of the file to its new text.

Unchanged parts of the file stay as they are written, except comments, which RocketMQ's brokers lose as well.
"""

from collections.abc import Sequence
from dataclasses import field
from typing import Any, Final

from skylark.broker.security.accounts import account_file as keys
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.yaml_documents import compose_yaml, import_yaml
from skylark.remoting.protocol.body import DataVersion

_TAG: Final = "tag:yaml.org,2002:"


@lazy_dataclass(frozen=True, slots=True)
class AccountChange:
    """The values to set in an existing or a new account; a value of None stays as it is."""

    access_key: str
    secret_key: str | None = field(default=None, repr=False)
    white: str | None = None
    admin: bool | None = None
    default_topic: str | None = None
    default_group: str | None = None
    topics: Sequence[str] | None = None
    groups: Sequence[str] | None = None


class AccountDocument:
    """The document in the file ``source``. ConfigError when it is not YAML."""

    def __init__(self, text: str, source: str) -> None:
        self._yaml = import_yaml(source)
        root = compose_yaml(text, source)
        self._root = root if root is not None and root.id == "mapping" else self._mapping()

    def put_account(self, change: AccountChange) -> None:
        """Change the account, or add it."""
        account = next((each for each in self._accounts() if _is_of(each, change.access_key)), None)
        if account is None:
            account = self._mapping()
            self._accounts().append(account)
        for key, value in (
            (keys.ACCESS_KEY, change.access_key),
            (keys.SECRET_KEY, change.secret_key),
            (keys.ACCOUNT_WHITE, change.white),
            (keys.ADMIN, change.admin),
            (keys.DEFAULT_TOPIC, change.default_topic),
            (keys.DEFAULT_GROUP, change.default_group),
            (keys.TOPICS, change.topics),
            (keys.GROUPS, change.groups),
        ):
            if value is not None:
                self._put(account, key, value)

    def delete_account(self, access_key: str) -> None:
        """Delete the account."""
        accounts = self._accounts()
        accounts[:] = [each for each in accounts if not _is_of(each, access_key)]

    def put_white(self, addresses: Sequence[str]) -> None:
        """Replace the global white list."""
        self._put(self._root, keys.WHITE, addresses)

    def put_version(self, version: DataVersion) -> None:
        """Replace the version."""
        row = self._mapping()
        self._put(row, keys.COUNTER, version.counter)
        self._put(row, keys.TIMESTAMP, version.timestamp)
        self._put(self._root, keys.VERSION, [row])

    def text(self) -> str:
        """The new text of the file."""
        dumper = getattr(self._yaml, "CSafeDumper", self._yaml.SafeDumper)
        text: str = self._yaml.serialize(self._root, Dumper=dumper, allow_unicode=True)
        return text

    def _accounts(self) -> list[Any]:
        """The nodes of the accounts, to be changed in place."""
        node = _get(self._root, keys.ACCOUNTS)
        if node is None or node.id != "sequence":
            self._put(self._root, keys.ACCOUNTS, [])
            node = _get(self._root, keys.ACCOUNTS)
        node.flow_style = False
        found: list[Any] = node.value
        return found

    def _put(self, mapping: Any, key: str, value: Any) -> None:
        pairs, node = mapping.value, self._node(value)
        for index, (name, _) in enumerate(pairs):
            if name.value == key:
                pairs[index] = (name, node)
                return
        pairs.append((self._node(key), node))

    def _node(self, value: Any) -> Any:
        nodes = self._yaml.nodes
        if isinstance(value, nodes.Node):
            return value
        if isinstance(value, bool):
            return nodes.ScalarNode(f"{_TAG}bool", "true" if value else "false")
        if isinstance(value, int):
            return nodes.ScalarNode(f"{_TAG}int", str(value))
        if isinstance(value, str):
            return nodes.ScalarNode(f"{_TAG}str", value)
        return nodes.SequenceNode(f"{_TAG}seq", [self._node(each) for each in value], flow_style=not value)

    def _mapping(self) -> Any:
        return self._yaml.nodes.MappingNode(f"{_TAG}map", [], flow_style=False)


def _get(mapping: Any, key: str) -> Any:
    return next((value for name, value in mapping.value if name.value == key), None)


def _is_of(account: Any, access_key: str) -> bool:
    name = _get(account, keys.ACCESS_KEY) if account.id == "mapping" else None
    return name is not None and name.value == access_key
