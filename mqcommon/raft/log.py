"""The log of a node: its entries, and how far they are on disk, committed and handed to the application.

A node that keeps its entries in a store of its own passes its own `Entries`.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

from skylark.mqcommon.raft.errors import RaftError
from skylark.mqcommon.raft.membership import Members
from skylark.mqcommon.raft.messages import MEMBERSHIP, RaftEntry, Snapshot


class Entries(Protocol):
    """A run of consecutive entries. They need not be on disk yet: ``Persist`` names the entries to write."""

    @property
    def base(self) -> int:
        """The index before the first entry, whose term is known."""

    @property
    def last(self) -> int: ...

    def term(self, index: int) -> int | None:
        """From ``base`` to ``last``; else None."""

    def read(self, first: int, end: int, max_bytes: int) -> tuple[RaftEntry, ...]:
        """Entries from ``first`` to before ``end``: at least one, and not much more than ``max_bytes``."""

    def append(self, entries: Sequence[RaftEntry]) -> None:
        """``entries`` replace what stands from their first index on."""

    def forget_after(self, index: int) -> None:
        """The entries after ``index`` are gone."""

    def restart(self, base: int, base_term: int) -> None:
        """All entries are gone; the next one follows ``base``."""

    def drop_through(self, index: int) -> None:
        """Entries up to ``index`` are not needed any more; it becomes the base, or one before it does."""


class MemoryEntries:
    """Entries in memory; snapshots keep the log short."""

    def __init__(self, base: int = 0, base_term: int = 0, entries: Iterable[RaftEntry] = ()) -> None:
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

    def read(self, first: int, end: int, max_bytes: int) -> tuple[RaftEntry, ...]:
        entries = self._entries[first - self.base - 1 : max(end - self.base - 1, 0)]
        size = 0
        for number, entry in enumerate(entries):
            size += len(entry.data)
            if size > max_bytes:
                return tuple(entries[: max(number, 1)])
        return tuple(entries)

    def append(self, entries: Sequence[RaftEntry]) -> None:
        self.forget_after(entries[0].index - 1)
        self._entries.extend(entries)

    def forget_after(self, index: int) -> None:
        del self._entries[index - self.base :]

    def restart(self, base: int, base_term: int) -> None:
        self.base, self._base_term = base, base_term
        self._entries.clear()

    def drop_through(self, index: int) -> None:
        term = self.term(index)
        if term is not None:
            del self._entries[: index - self.base]
            self.base, self._base_term = index, term


# Entries for the application in one Ready, so that a long backlog does not hold up everybody else.
MAX_APPLY_BYTES = 4 << 20


class RaftLog:
    """``snapshot`` stands for everything up to its index; some entries before it are kept for slow followers."""

    def __init__(self, snapshot: Snapshot, entries: Entries) -> None:
        self.snapshot = snapshot
        self.entries = entries
        self.commit = snapshot.index
        self.applied = snapshot.index
        self.persisted = entries.last
        # The members that each entry brought; what is cut off from the log takes its members with it.
        self._members = [(snapshot.index, snapshot.members)]
        if entries.last > snapshot.index:
            self._note_members(entries.read(snapshot.index + 1, entries.last + 1, 1 << 62))

    @property
    def last(self) -> int:
        return self.entries.last

    @property
    def last_term(self) -> int:
        return self.entries.term(self.entries.last) or 0

    def term(self, index: int) -> int | None:
        """None for an entry that is not here (any more)."""
        return self.entries.term(index)

    @property
    def members(self) -> Members:
        """The members after the last change, committed or not: the paper's rule."""
        return self._members[-1][1]

    @property
    def members_index(self) -> int:
        return self._members[-1][0]

    def members_at(self, index: int) -> Members:
        return next(members for at, members in reversed(self._members) if at <= index)

    def append(self, entries: Sequence[RaftEntry]) -> None:
        first = entries[0].index
        if first <= self.commit:
            raise RaftError(f"entry {first} would replace a committed one (commit index {self.commit})")
        # Entries of another leader replace what follows: these are not on disk yet, whatever was there.
        if first <= self.last:
            self.forget_after(first - 1)
        self.entries.append(entries)
        self._note_members(entries)

    def forget_after(self, index: int) -> None:
        """Remove what follows ``index``; the members that it brought go with it."""
        if index < self.commit:
            raise RaftError(f"the entries after {index} would be removed, but those up to {self.commit} are committed")
        self.persisted = min(self.persisted, index)
        while self._members[-1][0] > index:
            self._members.pop()
        self.entries.forget_after(index)

    def _note_members(self, entries: Sequence[RaftEntry]) -> None:
        self._members += [(each.index, Members.decode(each.data)) for each in entries if each.kind == MEMBERSHIP]

    def accept(self, prev_index: int, prev_term: int, entries: Sequence[RaftEntry]) -> bool:
        """Take what a leader sent, if the entry before is the same here; what differs from it goes."""
        if self.term(prev_index) != prev_term:
            return False
        # Only from the first entry that differs: an old request that comes late must not cut off what a newer one
        # brought.
        for number, entry in enumerate(entries):
            if self.term(entry.index) != entry.term:
                self.append(entries[number:])
                break
        return True

    def last_not_after(self, index: int, term: int) -> int:
        """The last entry up to ``index`` whose term is not above ``term``: the first place where two logs may match."""
        index = min(index, self.last)
        while index > self.entries.base and (self.term(index) or 0) > term:
            index -= 1
        return index

    def commit_to(self, index: int) -> bool:
        if index <= self.commit:
            return False
        if index > self.last:
            raise RaftError(
                f"entry {index} is committed and was here, but the log ends at {self.last}: entries were lost"
            )
        self.commit = index
        return True

    def take_unsaved(self) -> tuple[RaftEntry, ...]:
        first = max(self.persisted, self.entries.base) + 1
        return self.entries.read(first, self.last + 1, 1 << 62) if first <= self.last else ()

    def saved(self, index: int, term: int) -> None:
        """The log up to that entry is on disk; unless it was replaced meanwhile."""
        if self.term(index) == term:
            self.persisted = max(self.persisted, index)

    def take_committed(self) -> tuple[RaftEntry, ...]:
        """The next entries for the application: those on disk here, so that its state is never ahead of the log."""
        end = min(self.commit, self.persisted) + 1
        if self.applied + 1 >= end:
            return ()
        entries = self.entries.read(self.applied + 1, end, MAX_APPLY_BYTES)
        self.applied = entries[-1].index
        return entries

    def has_more_to_apply(self) -> bool:
        return self.applied < min(self.commit, self.persisted)

    def restore(self, snapshot: Snapshot) -> None:
        """The leader's snapshot replaces everything."""
        self.snapshot = snapshot
        self.entries.restart(snapshot.index, snapshot.term)
        self.commit = self.applied = snapshot.index
        # Nothing counts as on disk until the snapshot is: without it the entries after it would mean nothing.
        self.persisted = -1
        self._members = [(snapshot.index, snapshot.members)]

    def compact(self, snapshot: Snapshot, keep: int) -> None:
        """``snapshot`` is on disk: forget entries that it covers, except the last ``keep``."""
        if snapshot.index <= self.snapshot.index:
            return
        self._members = [(snapshot.index, self.members_at(snapshot.index))] + [
            each for each in self._members if each[0] > snapshot.index
        ]
        self.snapshot = snapshot
        self.entries.drop_through(max(snapshot.index - keep, self.entries.base))
