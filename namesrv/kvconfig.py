"""KV config: namespaces of keys and text values. It is all that a NameServer keeps on disk.

kvConfig.json is RocketMQ's ``{"configTable":{namespace:{key:value}}}``. A change is on disk before it is
visible and before it is acknowledged; a change that cannot be written has no effect.
Neighbours: handlers.py; mqcommon/disk/atomic.py does the writing.
"""

import logging
import os
from collections.abc import Iterator, Mapping

import orjson
import trio

from skylark.mqcommon.disk.atomic import exclusive, read_or_backup, remove_leftovers, write_atomic
from skylark.mqcommon.disk.files import FileSystem
from skylark.mqcommon.errors import StoreCorrupt, UserError

logger = logging.getLogger(__name__)

ORDER_TOPIC_CONFIG = "ORDER_TOPIC_CONFIG"

PIECE_BYTES = 1024 * 1024

Table = Mapping[str, Mapping[str, str]]


class KvConfig:
    """The KV config in memory, and its file."""

    def __init__(self, fs: FileSystem, path: str, table: Table) -> None:
        self._fs = fs
        self._path = path
        self._table = table
        self._writing = trio.Lock()

    @classmethod
    def load(cls, fs: FileSystem, path: str) -> "KvConfig":
        """Read the file; without one the config is empty. Raises UserError when it is damaged."""
        path = os.path.expanduser(path)
        if reason := remove_leftovers(fs, path):
            logger.warning("%s", reason)
        try:
            data = read_or_backup(fs, path, _parse)
        except StoreCorrupt as error:
            raise UserError(f"{error}; repair the file, or remove it to start with an empty KV config") from None
        except OSError as error:
            raise UserError(f"{path}: cannot be read: {error.strerror}; check kvConfigPath and permissions") from None
        return cls(fs, path, _parse(data) if data is not None else {})

    def get(self, namespace: str, key: str) -> str | None:
        """One value."""
        return self._table.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> Mapping[str, str] | None:
        """All values of a namespace; None when it does not exist."""
        return self._table.get(namespace)

    async def put(self, namespace: str, key: str, value: str) -> None:
        """Set a value; returns when it is on disk."""
        async with self._writing:
            if self.get(namespace, key) != value:
                await self._replace(namespace, {**self._table.get(namespace, {}), key: value})

    async def delete(self, namespace: str, key: str) -> None:
        """Remove a value, if it is there; returns when that is on disk."""
        async with self._writing:
            values = self._table.get(namespace, {})
            if key in values:
                await self._replace(namespace, {name: values[name] for name in values if name != key})

    async def _replace(self, namespace: str, values: Mapping[str, str]) -> None:
        # A new table: readers have the old table until the new table is on disk, and keep the old one if that fails.
        table = {**self._table, namespace: values}
        await trio.to_thread.run_sync(self._write, table)
        self._table = table

    def _write(self, table: Table) -> None:
        self._fs.mkdirs(os.path.dirname(self._path) or ".")
        # NameServers of one user have one file unless their kvConfigPath differs. The last change wins, as with
        # RocketMQ's, and the file is whole.
        with exclusive(self._fs, self._path):
            write_atomic(self._fs, self._path, _pieces(table), keep_backup=True)


def _pieces(table: Table) -> Iterator[bytes]:
    """The file's content, in pieces: encoding a large table at once would hold the GIL and stop the event loop."""
    yield b'{"configTable":{'
    for number, (namespace, values) in enumerate(table.items()):
        yield (b"," if number else b"") + orjson.dumps(namespace) + b":{"
        pairs: list[bytes] = []
        size = 0
        separator = b""
        for key, value in values.items():
            pairs.append(separator + orjson.dumps(key) + b":" + orjson.dumps(value))
            separator = b","
            size += len(pairs[-1])
            if size >= PIECE_BYTES:
                yield b"".join(pairs)
                pairs, size = [], 0
        yield b"".join(pairs) + b"}"
    yield b"}}"


def _parse(data: bytes) -> Table:
    """The table in a file's content. Raises ValueError when the content is not such a table."""
    content = orjson.loads(data)
    table = content.get("configTable") if isinstance(content, dict) else None
    if not isinstance(table, dict):
        raise ValueError("it has no configTable")
    for namespace, values in table.items():
        if not isinstance(values, dict) or not all(isinstance(value, str) for value in values.values()):
            raise ValueError(f"namespace {namespace} does not map keys to texts")
    return table
