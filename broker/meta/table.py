"""Tables, single values and versions, in memory and in the journal.

Each journalled object declares its kinds of records, how a record of each kind is applied at recovery, and which
records a snapshot needs (`Journalled`). No other module knows these kinds. Topics and groups are tables of rows by
name. To add such a table, write

    USERS = TableFormat("user", "user-gone", "users-version", attrgetter("name"), User.to_wire, User.from_wire)
    users = JournalledTable(journal, clock, USERS)

and add ``users`` to the list of tables in metadata.py. A table with its own rules is a subclass, as in topics.py.
A change is in the journal's file when a method returns (it survives the death of the broker), and on disk after the
next ``Journal.sync``, which tasks/persist.py starts at once; an administrator's change is answered only then
(`Durable`). If a change cannot be written, the method raises, and the table is unchanged. Rows are replaced, never
changed in place.
Neighbours: journal.py (the records on disk), tasks/persist.py (sync and snapshots), table_pages.py.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from typing import Any, Generic, Protocol, TypeVar

from skylark.broker.meta.journal import END, MARK, Journal, UnknownKind
from skylark.mqcommon.clock import Clock
from skylark.mqcommon.errors import RequestRefused, StoreError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.remoting.protocol.body import DataVersion
from skylark.remoting.protocol.codes import ResponseCode

# Rows that a slave compares or copies in one turn of the event loop: some milliseconds.
SLICE = 200
Row = TypeVar("Row")

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
        """Raises ValueError if two tables declare the same kind, or a table declares a kind of the journal itself."""
        self._tables = tables
        self._appliers: dict[str, Callable[[Any], None]] = {}
        for table in tables:
            for kind, apply in table.appliers():
                if kind in self._appliers or kind in (MARK, END):
                    raise ValueError(f"{type(table).__name__} declares records {kind!r}, a kind that exists already")
                self._appliers[kind] = apply

    def apply(self, kind: str, payload: Any) -> None:
        """Apply one record at recovery. Raises UnknownKind if no table declared its kind."""
        apply = self._appliers.get(kind)
        if apply is None:
            raise UnknownKind(kind)
        apply(payload)

    def state(self) -> Iterator[Change]:
        """Records that restore all tables as they are in this turn of the event loop; a thread may read them later."""
        # A list, so that all tables are asked now and not when the thread reads.
        return chain.from_iterable([table.state() for table in self._tables])


class JournalledValue(Generic[T]):
    """A single value, whose record has all of it. The value is replaced, never changed in place."""

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

    Each record of the table raises the version, also at recovery. So the version has its own records only in snapshots
    and where a master's version replaces it.
    """

    def __init__(self, journal: Journal, kind: str, now_ms: int = 0) -> None:
        super().__init__(journal, kind, DataVersion(timestamp=now_ms), DataVersion.to_wire, DataVersion.from_wire)

    def advance(self, now_ms: int | None = None) -> None:
        """Raise the version by one change; without ``now_ms`` its timestamp stays."""
        self.value = self.value.next(self.value.timestamp if now_ms is None else now_ms)

    def state(self) -> Iterator[Change]:
        """See Journalled. Always one record: a snapshot has fewer records than there were changes."""
        return iter([self._record(self.value)])


@lazy_dataclass(frozen=True, slots=True)
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
    """A table of rows by name. ``get`` is one dict lookup."""

    def __init__(self, journal: Journal, clock: Clock, table_format: TableFormat[Row]) -> None:
        self._journal = journal
        self._clock = clock
        self._format = table_format
        self._table: dict[str, Row] = {}
        self._version = JournalledVersion(journal, table_format.version, clock.now_ms())
        # Names of the rows that every broker makes at its start.
        self._system: set[str] = set()
        # System rows that are unchanged since the start, so the journal does not have them.
        self._made: set[str] = set()
        self.get: Callable[[str], Row | None] = self._table.get
        #: How many rows were removed in this run.
        self.removals = 0
        #: Whether this is a copy of a master's table; this broker then adds nothing by itself.
        self.is_mirror = False
        #: Called after each change.
        self.on_change: list[Callable[[], None]] = []
        #: Called with kind and payload of each record of a row.
        self.on_record: list[Callable[[str, Any], None]] = []

    @property
    def data_version(self) -> DataVersion:
        """The version of the table, which each change and each start raises."""
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
        """Whether the broker makes this row at each start."""
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
        """Add the rows that every broker makes at its start; rows that the journal has stay as they are."""
        for row in rows:
            name = self._format.name_of(row)
            self._system.add(name)
            if name not in self._table:
                self._table[name] = row
                self._made.add(name)
        # A new version at each start: these rows may differ from the last run's.
        self._version.advance(self._clock.now_ms())

    def mirror_rows(self, table: Mapping[str, Row]) -> Iterator[None]:
        """Make the rows equal to a master's, and write the differences; call `adopt_version` afterwards.

        System rows that the master lacks stay. Yields after each SLICE of rows.
        """
        gone = [name for name in self._table if name not in table and name not in self._system]
        for number, name in enumerate(gone, 1):
            if number % SLICE == 0:
                yield
            # The table may have changed during the pause: each row is looked up again.
            if name in self._table:
                self._remove(name)
        for number, (name, row) in enumerate(table.items(), 1):
            if number % SLICE == 0:
                yield
            if self._differs(self._table.get(name), row):
                self._put(name, row)

    def adopt_version(self, version: DataVersion) -> None:
        """Set the version of a master, after its rows were mirrored."""
        if self._version.put(version):
            self._call_listeners()

    @property
    def change_kinds(self) -> tuple[str, str]:
        """The kinds of records of rows."""
        return self._format.put, self._format.gone

    def follow(self, kind: str, payload: Any) -> None:
        """Make the change that another broker's table has recorded as ``kind`` and ``payload``."""
        if kind == self._format.gone:
            self.delete(payload)
            return
        row = self._format.from_wire(payload)
        self.put_as_is(row)

    def put_as_is(self, row: Row) -> None:
        """Put a row that another broker has made, without the additions of `put`; no effect if the row exists."""
        name = self._format.name_of(row)
        if self._differs(self._table.get(name), row):
            self._put(name, row)
            self._changed()

    def _differs(self, known: Row | None, row: Row) -> bool:
        """Whether a copy of another broker's row must be written."""
        return known != row

    def _put(self, name: str, row: Row) -> None:
        # The journal is written first, here and in `_remove`: if the write fails, the table is unchanged.
        self._record(self._format.put, self._format.to_wire(row))
        self._table[name] = row
        self._made.discard(name)
        self._row_changed(name)

    def _remove(self, name: str) -> None:
        if name in self._made:
            self._made.discard(name)
        else:
            self._record(self._format.gone, name)
        del self._table[name]
        self.removals += 1
        self._row_changed(name)

    def _record(self, kind: str, payload: Any) -> None:
        self._journal.append(kind, payload)
        for callback in self.on_record:
            callback(kind, payload)

    def _row_changed(self, name: str) -> None:
        """Called for each row that was put or removed; a subclass may keep the names."""

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


#: Returns when all changes so far survive power loss; raises StoreError when they may not survive it.
Durable = Callable[[], Awaitable[None]]


@contextmanager
def refused_when_not_stored() -> Iterator[None]:
    """Refuse a change that could not be written, with the reason; the error would else be logged with a traceback."""
    try:
        yield
    except StoreError as error:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"not changed: {error}") from error
