"""A cache whose keys come from peers: bounded by bytes, whatever these send. Pure.

What was put first goes first; a hit costs one dict lookup.
"""

from collections.abc import Callable
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")

# What an entry takes besides what its owner says: its place in two dicts.
ENTRY_BYTES = 200


class BoundedCache(Generic[K, V]):
    """At most ``max_bytes`` of entries. ``get(key)`` is None when the key is not there."""

    __slots__ = ("_max_bytes", "_sizes", "_table", "get", "used_bytes")

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._table: dict[K, V] = {}
        self._sizes: dict[K, int] = {}
        self.get: Callable[[K], V | None] = self._table.get
        self.used_bytes = 0

    def __len__(self) -> int:
        return len(self._table)

    def put(self, key: K, value: V, size: int) -> None:
        """Keep ``value``, which with its key takes ``size`` bytes, in place of the oldest; not when it is too large."""
        size += ENTRY_BYTES
        if size > self._max_bytes or key in self._table:
            return
        while self.used_bytes + size > self._max_bytes:
            self._drop_oldest()
        self._table[key] = value
        self._sizes[key] = size
        self.used_bytes += size

    def _drop_oldest(self) -> None:
        oldest = next(iter(self._table))
        del self._table[oldest]
        self.used_bytes -= self._sizes.pop(oldest)
