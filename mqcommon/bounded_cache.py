"""A cache whose keys come from peers: bounded by bytes, whatever the peers send. Pure.

The oldest entries are dropped first; a hit costs one dict lookup.
"""

from collections.abc import Callable
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")

# The bytes that an entry takes in two dicts, besides the size that `put` is given.
ENTRY_BYTES = 200


class BoundedCache(Generic[K, V]):
    """A cache of at most ``max_bytes`` of entries. ``get(key)`` is None when there is no such key."""

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
        """Keep ``value``, which takes ``size`` bytes with its key.

        The oldest values are dropped; a too large value is not kept.
        """
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
