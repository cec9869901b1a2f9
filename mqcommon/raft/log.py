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
        """The term of the entry at ``index``, from ``base`` to ``last``; else None."""

    def read(self, first: int, end: int, max_bytes: int) -> tuple[RaftEntry, ...]:
        """Entries from ``first`` to before ``end``: at least one, and not much more than ``max_bytes``."""

    def append(self, entries: Sequence[RaftEntry]) -> None:
        """Append ``entries``, which replace all entries from their first index on."""

    def forget_after(self, index: int) -> None:
        """Drop the entries after ``index``."""

    def restart(self, base: int, base_term: int) -> None:
        """Drop all entries; the next entry follows index ``base``, whose term is ``base_term``."""

    def drop_through(self, index: int) -> None:
        """Drop entries up to ``index``, or fewer: ``index``, or an index before it, becomes the base."""


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


# The most entries for the application in one Ready, so that a long backlog does not hold up other work.
MAX_APPLY_BYTES = 4 << 20


class RaftLog:
    """``snapshot`` stands for everything up to its index; some entries before it are kept for slow followers."""

    def __init__(self, snapshot: Snapshot, entries: Entries) -> None:
        self.snapshot = snapshot
        self.entries = entries
        self.commit = snapshot.index
        self.applied = snapshot.index
        self.persisted = entries.last
        # By index: the members that an entry brought; entries that are cut off from the log take their members with
        # them.
        self._members = [(snapshot.index, snapshot.members)]
        if entries.last > snapshot.index:
            self._index_members(entries.read(snapshot.index + 1, entries.last + 1, 1 << 62))

    @property
    def last(self) -> int:
        return self.entries.last

    @property
    def last_term(self) -> int:
        return self.entries.term(self.entries.last) or 0

    def term(self, index: int) -> int | None:
        """The term of the entry at ``index``; None for an entry that is not here (any more)."""
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
        # Entries of another leader replace the entries from here on: the new entries are not on disk yet.
        if first <= self.last:
            self.forget_after(first - 1)
        self.entries.append(entries)
        self._index_members(entries)

    def forget_after(self, index: int) -> None:
        """Remove the entries after ``index``, and the members that they brought."""
        if index < self.commit:
            raise RaftError(f"the entries after {index} would be removed, but those up to {self.commit} are committed")
        self.persisted = min(self.persisted, index)
        while self._members[-1][0] > index:
            self._members.pop()
        self.entries.forget_after(index)

    def _index_members(self, entries: Sequence[RaftEntry]) -> None:
        self._members += [(each.index, Members.decode(each.data)) for each in entries if each.kind == MEMBERSHIP]

    def accept(self, prev_index: int, prev_term: int, entries: Sequence[RaftEntry]) -> bool:
        """Take entries of a leader, if the entry before them (``prev_index``, ``prev_term``) is the same here.

        Entries that differ are replaced. Returns whether the entry before is the same.
        """
        if self.term(prev_index) != prev_term:
            return False
        # Only from the first entry that differs: an old request that comes late must not cut off the entries of a newer
        # request.
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
        """Count the log up to entry ``index`` as on disk, unless the entry was replaced meanwhile."""
        if self.term(index) == term:
            self.persisted = max(self.persisted, index)

    def take_committed(self) -> tuple[RaftEntry, ...]:
        """The next entries for the application, only such as are on disk here: its state is never ahead of the log."""
        end = min(self.commit, self.persisted) + 1
        if self.applied + 1 >= end:
            return ()
        entries = self.entries.read(self.applied + 1, end, MAX_APPLY_BYTES)
        self.applied = entries[-1].index
        return entries

    def has_more_to_apply(self) -> bool:
        return self.applied < min(self.commit, self.persisted)

    def restore(self, snapshot: Snapshot) -> None:
        """Replace everything by the leader's snapshot."""
        self.snapshot = snapshot
        self.entries.restart(snapshot.index, snapshot.term)
        self.commit = self.applied = snapshot.index
        # Nothing counts as on disk until the snapshot is on disk: the entries after a snapshot mean nothing without it.
        self.persisted = -1
        self._members = [(snapshot.index, snapshot.members)]

    def compact(self, snapshot: Snapshot, keep: int) -> None:
        """Forget the entries that ``snapshot``, which is on disk, covers, except the last ``keep``."""
        if snapshot.index <= self.snapshot.index:
            return
        self._members = [(snapshot.index, self.members_at(snapshot.index))] + [
            each for each in self._members if each[0] > snapshot.index
        ]
        self.snapshot = snapshot
        self.entries.drop_through(max(snapshot.index - keep, self.entries.base))
