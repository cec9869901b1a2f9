"""An index file has the bytes of RocketMQ's algorithm, however its entries come."""

import struct
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from skylark.broker.store.index import index_file
from skylark.broker.store.index.index_file import SLOTS_AT, IndexFile, index_file_bytes
from skylark.mqcommon.disk.files import MappedFile
from tests.support.memory_files import MemoryFiles

SLOTS, CAPACITY = 7, 60
# The fixture changes nothing from example to example.
fixed = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
SIZE = index_file_bytes(SLOTS, CAPACITY)
Row = tuple[int, int, int]


def new_file(fs: MemoryFiles) -> MappedFile:
    fs.mkdirs("/index")
    return fs.open_map("/index/1", SIZE, create=True)


def by_the_book(rows: list[Row]) -> bytes:
    """RocketMQ's putKey, entry by entry."""
    file = bytearray(SIZE)
    slots = [0] * SLOTS
    begin_ms = begin_physical = end_ms = end_physical = used = 0
    for number, (key_hash, physical, time_ms) in enumerate(rows, 1):
        if number == 1:
            begin_ms, begin_physical = time_ms, physical
        slot = key_hash % SLOTS
        used += not slots[slot]
        seconds = max((time_ms - begin_ms) // 1000, 0)
        at = SLOTS_AT + SLOTS * 4 + number * 20
        struct.pack_into(">iqii", file, at, key_hash, physical, seconds, slots[slot])
        slots[slot] = number
        end_ms, end_physical = time_ms, physical
    struct.pack_into(">qqqqii", file, 0, begin_ms, end_ms, begin_physical, end_physical, used, len(rows) + 1)
    struct.pack_into(f">{SLOTS}i", file, SLOTS_AT, *slots)
    return bytes(file)


rows = st.lists(
    st.tuples(st.integers(0, 2**31 - 1), st.integers(0, 2**40), st.integers(10**12, 10**12 + 5_000)),
    max_size=CAPACITY - 1,
)


def put(file: IndexFile, rows: list[Row], np: Any = None) -> None:
    if rows:
        hashes, physicals, times_ms = map(list, zip(*rows, strict=True))
        file.put_many(hashes, physicals, times_ms, np)


@pytest.fixture(params=["rows", "columns"])
def np(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """How entries are made: one by one, or with numpy."""
    monkeypatch.setattr(index_file, "LEAST_COLUMNS", 1)
    return pytest.importorskip("numpy") if request.param == "columns" else None


@given(rows=rows, step=st.integers(1, 20))
@fixed
def test_entries_chain_as_rocketmq_chains_them(np: Any, rows: list[Row], step: int) -> None:
    mapped = new_file(MemoryFiles())
    file = IndexFile(mapped, SLOTS, CAPACITY)
    for start in range(0, len(rows), step):
        put(file, rows[start : start + step], np)
    if rows:
        assert mapped.view[:] == by_the_book(rows)
    for key_hash, _, _ in rows:
        same = [physical for h, physical, _ in rows if h == key_hash]
        assert file.walk(file.newest(key_hash), key_hash, 0, 1 << 60, 1 << 30)[0] == same[::-1]
    file.close()


def test_a_slot_whose_entries_point_at_themselves_is_walked_once() -> None:
    """Such a file is damaged. A walk without end would hold up the broker."""
    file = IndexFile(new_file(MemoryFiles()), SLOTS, CAPACITY)
    put(file, [(7, 100, 10**12), (7, 200, 10**12)])
    for previous in (2, 5, -1):
        struct.pack_into(">i", file.view, file.entries_at + 2 * 20 + 16, previous)
        assert file.walk(2, 7, 0, 1 << 60, 50) == ([200], 1, 0)
    file.close()


@given(rows=rows, sure=st.integers(0, CAPACITY), again=st.booleans())
@fixed
def test_a_kill_between_slots_and_header_loses_no_older_entry(np: Any, rows: list[Row], sure: int, again: bool) -> None:
    fs = MemoryFiles()
    mapped = new_file(fs)
    file = IndexFile(mapped, SLOTS, CAPACITY)
    put(file, rows[:sure], np)
    header = mapped.view[:SLOTS_AT]
    put(file, rows[sure:], np)
    mapped.view[:SLOTS_AT] = header
    file.close()
    mapped = fs.killed().open_map("/index/1", SIZE, create=False)
    file = IndexFile(mapped, SLOTS, CAPACITY)
    known = rows[:sure]
    if again:
        put(file, rows[sure:], np)
        known = rows
        if rows:
            assert mapped.view[:] == by_the_book(rows)
    for key_hash, _, _ in known:
        same = [physical for h, physical, _ in known if h == key_hash]
        assert file.walk(file.newest(key_hash), key_hash, 0, 1 << 60, 1 << 30)[0] == same[::-1]
