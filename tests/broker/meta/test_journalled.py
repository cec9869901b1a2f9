"""Which table gets which record, and values that are one record."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.meta.journal import END, MARK, Journal
from broker.meta.table import JournalledValue, JournalledVersion, Tables
from mqcommon.errors import DiskFull, StoreCorrupt
from remoting.protocol.body import DataVersion
from tests.broker.meta.support import DIRECTORY
from tests.support.memory_files import MemoryFiles


class Opened:
    """A value and a version, after a start."""

    def __init__(self, fs: MemoryFiles) -> None:
        self.fs = fs
        self.journal = Journal(fs, DIRECTORY)
        self.value = value(self.journal, "value")
        self.version = JournalledVersion(self.journal, "version")
        self.tables = Tables(self.value, self.version)
        self.journal.replay(self.tables.apply)


def value(journal: Journal, kind: str) -> JournalledValue[tuple[int, ...]]:
    return JournalledValue[tuple[int, ...]](journal, kind, (), list, tuple)


@pytest.mark.parametrize("kind", ["twice", MARK, END])
def test_a_kind_that_exists_already_is_an_error(kind: str) -> None:
    journal = Journal(MemoryFiles(), DIRECTORY)
    with pytest.raises(ValueError, match=rf"JournalledVersion declares records '{kind}', a kind that exists already"):
        Tables(value(journal, "twice"), JournalledVersion(journal, kind))


def test_a_record_that_no_table_declared_stops_with_its_place() -> None:
    at = Opened(MemoryFiles())
    at.journal.append("unknown", 1)
    with pytest.raises(StoreCorrupt, match=r"the record 'unknown' cannot be used .*newer Skylark"):
        Opened(at.fs.killed())


def test_the_state_is_that_of_all_tables_at_the_moment_it_was_asked_for() -> None:
    at = Opened(MemoryFiles())
    at.value.put((1,))
    at.version.put(DataVersion(0, 1, 1))
    state = at.tables.state()
    at.value.put((2,))
    at.version.put(DataVersion(0, 2, 2))
    assert list(state) == [("value", [1]), ("version", DataVersion(0, 1, 1).to_wire())]


def test_a_snapshot_leaves_out_an_empty_value_but_no_version() -> None:
    assert list(Opened(MemoryFiles()).tables.state()) == [("version", DataVersion().to_wire())]


@given(st.lists(st.lists(st.integers(0, 2), max_size=2).map(tuple), max_size=6), st.integers(0, 99))
def test_a_value_is_written_when_it_differs_and_comes_back(values: list[tuple[int, ...]], seed: int) -> None:
    at = Opened(MemoryFiles())
    appended: list[tuple[int, ...]] = []
    at.journal.on_append = lambda: appended.append(at.value.value)
    before: tuple[int, ...] = ()
    for new in values:
        assert at.value.put(new) == (new != before)
        before = new
        at.journal.sync()
    assert len(appended) == sum(a != b for a, b in zip([(), *values], values, strict=False))
    assert Opened(at.fs.crash(Random(seed))).value.value == before
    at.journal.replace(at.tables.state())
    assert Opened(at.fs.crash(Random(seed))).value.value == before


def test_a_value_that_cannot_be_written_stays() -> None:
    at = Opened(MemoryFiles())
    at.fs.capacity = at.fs.used()
    with pytest.raises(DiskFull):
        at.value.put((1,))
    assert at.value.value == ()
