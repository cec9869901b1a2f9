"""KV config: namespaces of texts, the one thing that a NameServer keeps on disk.

kvConfig.json is RocketMQ's ``{"configTable":{namespace:{key:value}}}``. A change is on disk before it is
visible, and before it is acknowledged; a change that could not be written did not happen.
Neighbours: handlers.py; mqcommon/atomic.py does the writing.
"""

import os
from collections.abc import Mapping

import orjson
import trio

from mqcommon.atomic import read_or_backup, write_atomic
from mqcommon.errors import StoreCorrupt, UserError
from mqcommon.files import FileSystem
from remoting.net.steps import slices

ORDER_TOPIC_CONFIG = "ORDER_TOPIC_CONFIG"

# Values that are encoded in one go.
SLICE = 500

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
        """Read the file; without one the config is empty. A damaged one is a UserError."""
        path = os.path.expanduser(path)
        try:
            data = read_or_backup(fs, path, _parse)
        except StoreCorrupt as error:
            raise UserError(f"{error}; repair the file, or remove it to start with an empty KV config") from None
        except OSError as error:
            raise UserError(f"{path}: cannot be read: {error.strerror}; check kvConfigPath and its rights") from None
        return cls(fs, path, _parse(data) if data is not None else {})

    def get(self, namespace: str, key: str) -> str | None:
        """One value."""
        return self._table.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> Mapping[str, str] | None:
        """All values of a namespace; None when there is none of that name."""
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
        table = {**self._table, namespace: values}
        await trio.to_thread.run_sync(self._write, table)
        self._table = table

    def _write(self, table: Table) -> None:
        self._fs.mkdirs(os.path.dirname(self._path) or ".")
        write_atomic(self._fs, self._path, _encoded(table), keep_backup=True)


def _encoded(table: Table) -> bytes:
    """The file's content, made in slices: the encoder lets no other thread run, and there may be very many values."""
    parts = [b'{"configTable":{']
    for number, (name, values) in enumerate(table.items()):
        parts += (b"," if number else b"", orjson.dumps(name), b":{")
        for count, part in enumerate(slices(values.items(), SLICE)):
            parts += (b"," if count else b"", orjson.dumps(dict(part))[1:-1])
        parts.append(b"}")
    parts.append(b"}}")
    return b"".join(parts)  # of so much it lets other threads run


def _parse(data: bytes) -> Table:
    """The table in a file's content; ValueError when it is something else."""
    content = orjson.loads(data)
    table = content.get("configTable") if isinstance(content, dict) else None
    if not isinstance(table, dict):
        raise ValueError("no configTable in it")
    for namespace, values in table.items():
        if not isinstance(values, dict) or not all(isinstance(value, str) for value in values.values()):
            raise ValueError(f"namespace {namespace} does not map keys to texts")
    return table
