"""What the file ``inventory`` says when others write it at once, and after a full disk."""

import errno
from threading import Lock
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.broker.store.inventory import Inventoried, Inventory, read_inventory
from skylark.broker.store.removal import Removal
from tests.broker.store.support import open_store, put
from tests.support.memory_files import MemoryFiles


def test_a_checkpoint_does_not_take_back_what_the_cleaner_notes_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    fs = MemoryFiles()
    store = open_store(fs)
    for _ in range(60):
        put(store, "t", 0, b"x" * 200)
    store.checkpoint(with_ends=True)
    removal, lock = Removal(fs, "/store", store), Lock()

    class Late:
        """A lock that the cleaner has just before the checkpoint gets it."""

        def __enter__(self) -> None:
            monkeypatch.setattr(store.inventory, "_lock", lock)
            assert removal.retire_log_file(store.durable_end) is not None
            removal.remove_log_files()
            lock.acquire()

        def __exit__(self, *_: Any) -> None:
            lock.release()

    monkeypatch.setattr(store.inventory, "_lock", Late())
    put(store, "t", 0, b"last")
    store.checkpoint()
    assert store.log.start and read_inventory(fs, "/store").log_start == store.log.start
    assert open_store(fs.killed()).max_offset("t", 0) == 61


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EMFILE])
def test_after_a_full_disk_the_inventory_is_whole_again(code: int) -> None:
    fs = MemoryFiles()
    fs.mkdirs("/store")
    inventory = Inventory(fs, "/store")
    inventory.note_metadata()
    inventory.note_log_start(lambda: 0)
    fs.faults.fail("open", code=code)
    inventory.note_log_start(lambda: 4096)
    assert read_inventory(fs, "/store") == Inventoried()
    inventory.note_log_start(lambda: 4096)
    assert read_inventory(fs, "/store") == Inventoried(4096, has_metadata=True)


def test_an_inventory_that_could_not_be_written_is_written_by_the_next_note() -> None:
    fs = MemoryFiles()
    fs.mkdirs("/store")
    inventory = Inventory(fs, "/store")
    fs.faults.fail("sync")
    with pytest.raises(OSError, match="injected"):
        inventory.note_log_start(lambda: 4096)
    inventory.note_log_start(lambda: 4096)
    assert read_inventory(fs, "/store") == Inventoried(4096)


@given(st.frozensets(st.integers(0, 30), max_size=20))
def test_the_list_of_sums_is_read_as_it_was_noted(numbers: frozenset[int]) -> None:
    fs = MemoryFiles()
    fs.mkdirs("/store")
    inventory = Inventory(fs, "/store")
    inventory.note_sums([number << 30 for number in numbers])
    assert read_inventory(fs, "/store").sums == {number << 30 for number in numbers}
    inventory.forget_sums([1 << 30])
    assert read_inventory(fs, "/store").sums == {number << 30 for number in numbers if number != 1}
