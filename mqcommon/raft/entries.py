"""Where a node finds the entries of its log. A node with a store of its own for them gives its own `Entries`."""

from collections.abc import Iterable, Sequence
from typing import Protocol

from mqcommon.raft.messages import Entry


class Entries(Protocol):
    """Entries side by side. They need not be on disk: ``Persist`` says what must be."""

    @property
    def base(self) -> int:
        """The index before the first entry, whose term is known."""

    @property
    def last(self) -> int: ...

    def term(self, index: int) -> int | None:
        """From ``base`` to ``last``; else None."""

    def read(self, first: int, end: int, max_bytes: int) -> tuple[Entry, ...]:
        """Entries from ``first`` to before ``end``: at least one, and not much more than ``max_bytes``."""

    def append(self, entries: Sequence[Entry]) -> None:
        """``entries`` replace what stands from their first index on."""

    def drop_through(self, index: int) -> None:
        """Entries up to ``index`` are not needed any more; it becomes the base."""


class MemoryEntries:
    """All in memory; the log is kept short by snapshots."""

    def __init__(self, base: int = 0, base_term: int = 0, entries: Iterable[Entry] = ()) -> None:
        self.base = base
        self._base_term = base_term
        self._entries = list(entries)

    @property
    def last(self) -> int:
        return self.base + len(self._entries)

    def term(self, index: int) -> int | None:
        if index == self.base:
            return self._base_term
        at = index - self.base - 1
        return self._entries[at].term if 0 <= at < len(self._entries) else None

    def read(self, first: int, end: int, max_bytes: int) -> tuple[Entry, ...]:
        entries = self._entries[first - self.base - 1 : max(end - self.base - 1, 0)]
        size = 0
        for number, entry in enumerate(entries):
            size += len(entry.data)
            if size > max_bytes:
                return tuple(entries[: max(number, 1)])
        return tuple(entries)

    def append(self, entries: Sequence[Entry]) -> None:
        at = entries[0].index - self.base - 1
        if at < len(self._entries):
            del self._entries[at:]
        self._entries.extend(entries)

    def drop_through(self, index: int) -> None:
        term = self.term(index)
        if term is not None:
            del self._entries[: index - self.base]
            self.base, self._base_term = index, term
