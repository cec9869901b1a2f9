"""A small table, which shows all that a new one needs, and what must hold of any table."""

from dataclasses import dataclass
from operator import attrgetter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from skylark.broker.meta import table as table_module
from skylark.broker.meta.journal import END, MARK, Journal
from skylark.broker.meta.table import JournalledTable, JournalledValue, JournalledVersion, TableFormat, Tables
from skylark.mqcommon.errors import DiskFull, StoreCorrupt
from skylark.remoting.net.steps import finish
from skylark.remoting.protocol.body import DataVersion
from tests.broker.meta.support import DIRECTORY
from tests.support.clock import ManualClock
from tests.support.memory_files import MemoryFiles


@dataclass(frozen=True)
class Note:
    """A name and a text."""

    name: str
    text: str

    def to_wire(self) -> list[str]:
        return [self.name, self.text]

    @classmethod
    def from_wire(cls, payload: list[str]) -> "Note":
        name, text = payload
        return cls(name, text)


FORMAT = TableFormat("note", "note-gone", "notes-version", attrgetter("name"), Note.to_wire, Note.from_wire)
SYSTEM = Note("a", "of every broker")
CLOCK = ManualClock()


class Opened:
    """The table after a start; ``found`` is what the journal had."""

    def __init__(self, fs: MemoryFiles) -> None:
        self.fs = fs
        self.journal = Journal(fs, DIRECTORY)
        self.notes = JournalledTable(self.journal, CLOCK, FORMAT)
        self.tables = Tables(self.notes)
        self.journal.replay(self.tables.apply)
        self.found = State(dict(self.notes.all()), self.notes.data_version)
        self.notes.make_system_rows([SYSTEM])


@dataclass(frozen=True)
class State:
    """The state of the journal."""

    rows: dict[str, Note]
    version: DataVersion

    def after(self, rows: dict[str, Note]) -> "State":
        """One record later."""
        return State(rows, self.version.next(self.version.timestamp))


def without(rows: dict[str, Note], name: str) -> dict[str, Note]:
    return {other: row for other, row in rows.items() if other != name}


NAMES = st.sampled_from("abcde")
NOTES = st.builds(Note, NAMES, st.text(max_size=2) | st.just("x" * 300) | st.just(SYSTEM.text))


class TableModel(RuleBasedStateMachine):
    """``states``: what the journal had after each record since the last safe one; a power loss leaves one of them."""

    @initialize()
    def start(self) -> None:
        self.open(MemoryFiles(), [State({}, DataVersion(timestamp=CLOCK.now_ms()))])

    def open(self, fs: MemoryFiles, allowed: list[State]) -> None:
        self.opened = Opened(fs)
        self.notes = self.opened.notes
        assert self.opened.found in allowed
        self.states = [self.opened.found]
        self.rows = {SYSTEM.name: SYSTEM} | self.opened.found.rows
        # Whether the system row is not in the journal.
        self.made = SYSTEM.name not in self.opened.found.rows
        self.removals = 0
        self.version = self.opened.found.version.next(CLOCK.now_ms())

    def was_put(self, row: Note) -> None:
        self.states.append(self.states[-1].after(self.states[-1].rows | {row.name: row}))
        self.rows[row.name] = row
        self.made = self.made and row.name != SYSTEM.name

    def was_removed(self, name: str) -> None:
        if not (self.made and name == SYSTEM.name):
            self.states.append(self.states[-1].after(without(self.states[-1].rows, name)))
        del self.rows[name]
        self.made = self.made and name != SYSTEM.name
        self.removals += 1

    @rule(row=NOTES)
    def put(self, row: Note) -> None:
        self.notes.put(row)
        self.was_put(row)
        self.version = self.version.next(CLOCK.now_ms())

    @rule(name=NAMES)
    def delete(self, name: str) -> None:
        assert self.notes.delete(name) == (name in self.rows)
        if name in self.rows:
            self.was_removed(name)
            self.version = self.version.next(CLOCK.now_ms())

    @rule(rows=st.lists(NOTES), counter=st.integers(1_000, 1_009))
    def mirror(self, rows: list[Note], counter: int) -> None:
        master = {row.name: row for row in rows}
        finish(self.notes.mirror_rows(master))
        for name in [name for name in self.rows if name not in master and name != SYSTEM.name]:
            self.was_removed(name)
        for name, row in master.items():
            if self.rows.get(name) != row:
                self.was_put(row)
        version = DataVersion(0, 1, counter)
        self.notes.adopt_version(version)
        if version != self.version:
            self.version = version
            self.states.append(State(self.states[-1].rows, version))

    @rule(row=NOTES, name=NAMES)
    def change_on_a_full_disk(self, row: Note, name: str) -> None:
        fs = self.opened.fs
        fs.capacity = fs.used()
        with pytest.raises(DiskFull):
            self.notes.put(row)
        if name in self.states[-1].rows:
            with pytest.raises(DiskFull):
                self.notes.delete(name)
        fs.capacity = 1 << 40

    @rule()
    def sync(self) -> None:
        self.opened.journal.sync()
        del self.states[:-1]

    @rule()
    def snapshot(self) -> None:
        self.opened.journal.replace(self.opened.tables.state())
        self.states = [State(self.states[-1].rows, self.version)]

    @rule()
    def kill(self) -> None:
        self.open(self.opened.fs.killed(), self.states[-1:])

    @rule(seed=st.integers(0, 2**32))
    def power_loss(self, seed: int) -> None:
        self.open(self.opened.fs.crash(Random(seed)), self.states)

    @invariant()
    def the_table_is_the_models(self) -> None:
        notes = self.notes
        assert notes.all() == self.rows
        assert all(notes.get(name) == self.rows.get(name) for name in "abcde")
        assert {row.name: row for row in notes.persistent()} == self.states[-1].rows
        assert (notes.removals, notes.data_version) == (self.removals, self.version)


TableModel.TestCase.settings = settings(stateful_step_count=25)
TestTableModel = TableModel.TestCase


def opened(*rows: Note) -> Opened:
    at = Opened(MemoryFiles())
    for row in rows:
        at.notes.put(row)
    return at


def test_each_change_is_told_once_and_what_changes_nothing_is_not() -> None:
    notes = opened().notes
    told: list[int] = []
    notes.on_change.append(lambda: told.append(notes.data_version.counter))
    notes.put(Note("b", "1"))
    notes.delete("b")
    notes.delete("b")
    assert told == [2, 3]
    master = {name: Note(name, "") for name in "bcd"}
    for _ in range(2):
        finish(notes.mirror_rows(master))
        notes.adopt_version(DataVersion(0, 1, 9))
    assert told == [2, 3, 9]


def test_a_mirror_writes_only_what_differs() -> None:
    at = opened(Note("b", "1"), Note("c", "1"))
    appended: list[int] = []
    at.journal.on_append = lambda: appended.append(1)
    finish(at.notes.mirror_rows({"b": Note("b", "1"), "c": Note("c", "2")}))
    assert len(appended) == 1


def test_between_the_steps_of_a_mirror_rows_may_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_module, "SLICE", 2)
    at = opened(*(Note(f"old{number}", "") for number in range(6)))
    master = {f"new{number}": Note(f"new{number}", "of the master") for number in range(6)}
    for number, _ in enumerate(at.notes.mirror_rows(master)):
        if number == 0:
            at.notes.delete("old5")
            at.notes.put(Note("new5", "of a client"))
            at.notes.put(Note("later", "of a client"))
    assert number == 5, "three pauses while rows go, three while they come"
    assert at.notes.all() == {SYSTEM.name: SYSTEM, "later": Note("later", "of a client"), **master}
    assert Opened(at.fs.killed()).notes.all() == at.notes.all()


class OpenedValues:
    """A value and a version, after a start."""

    def __init__(self, fs: MemoryFiles) -> None:
        self.fs = fs
        self.journal = Journal(fs, DIRECTORY)
        self.value = value_of_kind(self.journal, "value")
        self.version = JournalledVersion(self.journal, "version")
        self.tables = Tables(self.value, self.version)
        self.journal.replay(self.tables.apply)


def value_of_kind(journal: Journal, kind: str) -> JournalledValue[tuple[int, ...]]:
    return JournalledValue[tuple[int, ...]](journal, kind, (), list, tuple)


@pytest.mark.parametrize("kind", ["twice", MARK, END])
def test_a_kind_that_exists_already_is_an_error(kind: str) -> None:
    journal = Journal(MemoryFiles(), DIRECTORY)
    with pytest.raises(ValueError, match=rf"JournalledVersion declares records '{kind}', a kind that exists already"):
        Tables(value_of_kind(journal, "twice"), JournalledVersion(journal, kind))


def test_a_record_that_no_table_declared_stops_with_its_place() -> None:
    at = OpenedValues(MemoryFiles())
    at.journal.append("unknown", 1)
    with pytest.raises(StoreCorrupt, match=r"written by a newer Skylark \(it has records 'unknown'\)"):
        OpenedValues(at.fs.killed())


def test_a_snapshot_is_of_the_moment_that_all_tables_were_asked_for_it() -> None:
    at = OpenedValues(MemoryFiles())
    at.value.put((1,))
    at.version.put(DataVersion(0, 1, 1))
    state = at.tables.state()
    at.value.put((2,))
    at.version.put(DataVersion(0, 2, 2))
    assert list(state) == [("value", [1]), ("version", DataVersion(0, 1, 1).to_wire())]


@given(st.lists(st.lists(st.integers(0, 2), max_size=2).map(tuple), max_size=6), st.integers(0, 99))
def test_a_value_is_written_when_it_differs_and_comes_back(values: list[tuple[int, ...]], seed: int) -> None:
    at = OpenedValues(MemoryFiles())
    appended: list[tuple[int, ...]] = []
    at.journal.on_append = lambda: appended.append(at.value.value)
    before: tuple[int, ...] = ()
    for new in values:
        assert at.value.put(new) == (new != before)
        before = new
        at.journal.sync()
    assert len(appended) == sum(a != b for a, b in zip([(), *values], values, strict=False))
    assert OpenedValues(at.fs.crash(Random(seed))).value.value == before
    at.journal.replace(at.tables.state())
    assert OpenedValues(at.fs.crash(Random(seed))).value.value == before


def test_a_value_that_cannot_be_written_stays() -> None:
    at = OpenedValues(MemoryFiles())
    at.fs.capacity = at.fs.used()
    with pytest.raises(DiskFull):
        at.value.put((1,))
    assert at.value.value == ()
