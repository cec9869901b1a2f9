"""The interface between tables and the journal, and a registry that passes each record to its table at recovery.

A table declares its kinds of records, how a record of each kind is applied, and which records a snapshot needs.
No other module knows these kinds. metadata.py lists the tables.
Neighbours: table.py (rows by name), journal.py (the records on disk and their recovery).
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any, Generic, Protocol, TypeVar

from broker.meta.compaction import END
from broker.meta.journal import MARK, Journal
from remoting.protocol.body import DataVersion

#: Kind and payload of a record.
Change = tuple[str, Any]
#: A kind of records, and the function that is called with the payload of each at recovery.
Applier = tuple[str, Callable[[Any], None]]
T = TypeVar("T")


class Journalled(Protocol):
    """A table, or a single value, whose changes are in the journal."""

    def appliers(self) -> Iterable[Applier]:
        """All kinds of records of this table."""

    def state(self) -> Iterator[Change]:
        """Records that restore the table as it is in this turn of the loop; may be read later, in a thread."""


class Tables:
    """All tables of one journal."""

    def __init__(self, *tables: Journalled) -> None:
        """Raises ValueError if two tables declare the same kind, or one declares a kind of the journal's own."""
        self._tables = tables
        self._appliers: dict[str, Callable[[Any], None]] = {}
        for table in tables:
            for kind, apply in table.appliers():
                if kind in self._appliers or kind in (MARK, END):
                    raise ValueError(f"{type(table).__name__} declares records {kind!r}, a kind that exists already")
                self._appliers[kind] = apply

    def apply(self, kind: str, payload: Any) -> None:
        """Apply one record at recovery. Raises ValueError if no table declared its kind."""
        apply = self._appliers.get(kind)
        if apply is None:
            raise ValueError("no table has such records; was it written by a newer Skylark?")
        apply(payload)

    def state(self) -> Iterator[Change]:
        """Records that restore all tables as they are in this turn of the event loop; made when a thread reads them."""
        # A list, so that all tables are asked now and not when the thread reads.
        return chain.from_iterable([table.state() for table in self._tables])


class JournalledValue(Generic[T]):
    """One value that is one record. It is replaced, never changed in place."""

    def __init__(
        self, journal: Journal, kind: str, empty: T, to_wire: Callable[[T], Any], from_wire: Callable[[Any], T]
    ) -> None:
        """``empty`` is the value before there is any record; a snapshot leaves it out."""
        self._journal = journal
        self._kind = kind
        self._empty = empty
        self._to_wire = to_wire
        self._from_wire = from_wire
        self.value = empty

    def put(self, value: T) -> bool:
        """Replace the value; returns whether it changed. An equal value is not written."""
        if value == self.value:
            return False
        self._journal.append(*self._record(value))
        self.value = value
        return True

    def appliers(self) -> list[Applier]:
        """See Journalled."""
        return [(self._kind, self._apply)]

    def state(self) -> Iterator[Change]:
        """See Journalled."""
        return iter([] if self.value == self._empty else [self._record(self.value)])

    def _record(self, value: T) -> Change:
        return self._kind, self._to_wire(value)

    def _apply(self, payload: Any) -> None:
        self.value = self._from_wire(payload)


class JournalledVersion(JournalledValue[DataVersion]):
    """The version of a table.

    Each record of the table raises it, also at recovery. So it has its own records only in snapshots and where the
    version of a master replaces it.
    """

    def __init__(self, journal: Journal, kind: str, now_ms: int = 0) -> None:
        super().__init__(journal, kind, DataVersion(timestamp=now_ms), DataVersion.to_wire, DataVersion.from_wire)

    def advance(self, now_ms: int | None = None) -> None:
        """Raise it by one change; without ``now_ms`` its timestamp stays."""
        self.value = self.value.next(self.value.timestamp if now_ms is None else now_ms)

    def state(self) -> Iterator[Change]:
        """Always a record: a snapshot has fewer records than there were changes."""
        return iter([self._record(self.value)])
