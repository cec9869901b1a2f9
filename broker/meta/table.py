"""A table of rows by name, in memory and in the journal. Topics and groups are such tables. To add one, write

    USERS = TableFormat("user", "user-gone", "users-version", attrgetter("name"), User.to_wire, User.from_wire)
    users = JournalledTable(journal, clock, USERS)

and add ``users`` to the list of tables in metadata.py. This module does recovery, snapshots, versions and the copy of a
master's table. A table with its own rules is a subclass, as in topics.py and groups.py.
A change is in the journal's file when a method returns (it survives the death of the broker), and on disk after the
next ``Journal.sync``, which tasks/persist.py starts at once. If a change cannot be written, the method raises, and the
table is unchanged. Rows are replaced, never changed in place.
Neighbours: journalled.py, journal.py, tasks/persist.py (sync and snapshots), meta/table_pages.py (reads the table).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, Generic, TypeVar

from broker.meta.journal import Journal
from broker.meta.journalled import Applier, Change, JournalledVersion
from mqcommon.clock import Clock
from remoting.protocol.body import DataVersion

# Rows that a slave compares or copies in one turn of the event loop: some milliseconds.
SLICE = 200

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class TableFormat(Generic[Row]):
    """A table's records in the journal: their kinds, and rows as payloads. Part of the file format: do not change."""

    #: A row was put; the payload is the row.
    put: str
    #: A row was removed; the payload is its name.
    gone: str
    #: The version was replaced; the payload is the version.
    version: str
    #: The name that a row carries.
    name_of: Callable[[Row], str]
    to_wire: Callable[[Row], Any]
    from_wire: Callable[[Any], Row]


class JournalledTable(Generic[Row]):
    """See the module. ``get`` is one dict lookup."""

    def __init__(self, journal: Journal, clock: Clock, table_format: TableFormat[Row]) -> None:
        self._journal = journal
        self._clock = clock
        self._format = table_format
        self._table: dict[str, Row] = {}
        self._version = JournalledVersion(journal, table_format.version, clock.now_ms())
        # Names of the rows that every broker makes at its start.
        self._system: set[str] = set()
        # Those of them that are unchanged since, and so are not in the journal.
        self._made: set[str] = set()
        self.get: Callable[[str], Row | None] = self._table.get
        #: How many rows were removed in this run.
        self.removals = 0
        #: Whether this is a copy of a master's table; this broker then adds nothing by itself.
        self.is_mirror = False
        #: Called after each change.
        self.on_change: list[Callable[[], None]] = []

    @property
    def data_version(self) -> DataVersion:
        """Raised by each change, and at each start."""
        return self._version.value

    def names(self) -> list[str]:
        return list(self._table)

    def all(self) -> dict[str, Row]:
        """The table itself, for reading."""
        return self._table

    def persistent(self) -> list[Row]:
        """The rows in the journal: all but unchanged system rows."""
        return [row for name, row in self._table.items() if name not in self._made]

    def is_system(self, name: str) -> bool:
        """Whether the row is one that the broker makes for itself at its start."""
        return name in self._system

    # --- changes

    def put(self, row: Row) -> None:
        """Create or replace a row."""
        self._put(self._format.name_of(row), row)
        self._changed()

    def delete(self, name: str) -> bool:
        """Remove a row. Returns whether there was one."""
        if name not in self._table:
            return False
        self._remove(name)
        self._changed()
        return True

    def make_system_rows(self, rows: Iterable[Row]) -> None:
        """Add the rows that every broker makes at its start; one that the journal has stays as it is."""
        for row in rows:
            name = self._format.name_of(row)
            self._system.add(name)
            if name not in self._table:
                self._table[name] = row
                self._made.add(name)
        # A new version at each start: these rows may differ from those of the last run.
        self._version.advance(self._clock.now_ms())

    def mirror_rows(self, table: Mapping[str, Row]) -> Iterator[None]:
        """Make the rows equal to a master's, and write the differences; call `take_version` after it.

        System rows that the master lacks stay. Yields after each SLICE of rows.
        """
        gone = [name for name in self._table if name not in table and name not in self._system]
        for number, name in enumerate(gone, 1):
            if number % SLICE == 0:
                yield
            if name in self._table:
                self._remove(name)
        for number, (name, row) in enumerate(table.items(), 1):
            if number % SLICE == 0:
                yield
            if self._table.get(name) != row:
                self._put(name, row)

    def take_version(self, version: DataVersion) -> None:
        """Take over the version of a master, after its rows."""
        if self._version.put(version):
            self._call_listeners()

    def _put(self, name: str, row: Row) -> None:
        self._journal.append(self._format.put, self._format.to_wire(row))
        self._table[name] = row
        self._made.discard(name)
        self._note(name)

    def _remove(self, name: str) -> None:
        if name in self._made:
            self._made.discard(name)
        else:
            self._journal.append(self._format.gone, name)
        del self._table[name]
        self.removals += 1
        self._note(name)

    def _note(self, name: str) -> None:
        """Called for each row that was put or removed; a subclass may keep their names."""

    def _changed(self) -> None:
        self._version.advance(self._clock.now_ms())
        self._call_listeners()

    def _call_listeners(self) -> None:
        for callback in self.on_change:
            callback()

    # --- journal

    def appliers(self) -> list[Applier]:
        """See Journalled."""
        return [(self._format.put, self._apply_put), (self._format.gone, self._apply_gone), *self._version.appliers()]

    def state(self) -> Iterator[Change]:
        """See Journalled."""
        kind, to_wire, rows = self._format.put, self._format.to_wire, self.persistent()
        return chain(((kind, to_wire(row)) for row in rows), self._version.state())

    def _apply_put(self, payload: Any) -> None:
        row = self._format.from_wire(payload)
        self._table[self._format.name_of(row)] = row
        self._version.advance()

    def _apply_gone(self, payload: Any) -> None:
        self._table.pop(payload, None)
        self._version.advance()
