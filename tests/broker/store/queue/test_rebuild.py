"""Queue and index files that are missing, empty, short or zeroed are made anew at the start."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from broker.store.queue.ends import FILE_NAME
from broker.store.store import MessageStore
from tests.broker.store.cleaning import clean
from tests.broker.store.support import SMALL, bodies, new_store, open_store, put
from tests.support.clock import ManualClock
from tests.support.memory_files import MemoryFiles

SENT = [b"%03d" % n * 10 for n in range(90)]
SPOILS: dict[str, Callable[[MemoryFiles, str], None]] = {
    "missing": lambda fs, path: fs.remove(path),
    "empty": lambda fs, path: fs.overwrite(path, b""),
    "short": lambda fs, path: fs.overwrite(path, fs.read(path)[:7]),
    "zeroed": lambda fs, path: fs.overwrite(path, bytes(fs.size(path))),
}


def stored(*, stopped: bool) -> MemoryFiles:
    """Queues of several files, and one that is short; after a kill, some of it behind the checkpoint."""
    fs = MemoryFiles()
    store = open_store(fs)
    put(store, "small", 3, b"alone")
    for n, body in enumerate(SENT):
        put(store, "t", n % 2, body, b"KEYS\x01k%d\x02" % n)
        if n == 80:
            store.build_index(1000)
            store.checkpoint(with_ends=True)
    store.build_index(1000)
    if stopped:
        store.close()
        return fs
    return fs.killed()


def side_files(fs: MemoryFiles) -> list[str]:
    return [path for path in fs.paths() if path.startswith(("/store/consumequeue/", "/store/index/"))]


def check_all(store: MessageStore) -> None:
    assert bodies(store, "t", 0) == SENT[0::2] and bodies(store, "t", 1) == SENT[1::2]
    assert bodies(store, "small", 3) == [b"alone"]
    assert all(len(store.query("t", f"k{n}", 9, 0, 1 << 60).records) == 1 for n in range(len(SENT)))
    assert put(store, "t", 0, b"more") == len(SENT[0::2])


FILES = side_files(stored(stopped=True))


@pytest.mark.parametrize("stopped", [True, False], ids=["clean stop", "killed"])
@pytest.mark.parametrize("how", SPOILS)
@pytest.mark.parametrize("path", FILES)
def test_one_side_file_is_made_anew(path: str, how: str, stopped: bool) -> None:
    fs = stored(stopped=stopped)
    SPOILS[how](fs, path)
    store = new_store(fs)
    report = store.open()
    check_all(store)
    if path.startswith("/store/consumequeue/small") or (stopped and "consumequeue" in path):
        assert report.rebuilt == (path.removeprefix("/store/consumequeue/").rpartition("/")[0],)
    store.close()
    assert new_store(fs).open().rebuilt == ()


@pytest.mark.parametrize("stopped", [True, False], ids=["clean stop", "killed"])
@pytest.mark.parametrize("noted", [True, False], ids=["noted", "not noted"])
def test_all_side_files_are_made_anew(stopped: bool, noted: bool) -> None:
    fs = stored(stopped=stopped)
    for path in side_files(fs):
        fs.remove(path)
    if not noted:
        fs.remove(f"/store/{FILE_NAME}")
    store = open_store(fs)
    check_all(store)


def test_an_empty_queue_goes_on_where_it_was_when_its_files_are_lost() -> None:
    fs = MemoryFiles()
    store = open_store(fs)
    for _ in range(20):
        put(store, "old", 0, b"x" * 300)
    for _ in range(20):
        put(store, "new", 0, b"x" * 300)
    assert clean(fs, store, 2) == 2
    assert store.min_offset("old", 0) == store.max_offset("old", 0) == 20
    store.close()
    for path in side_files(fs):
        fs.remove(path)
    store = open_store(fs)
    assert store.min_offset("old", 0) == store.max_offset("old", 0) == 20
    assert put(store, "old", 0, b"x") == 20


def test_a_clean_start_maps_no_queue_and_reads_no_record_but_the_last() -> None:
    fs = stored(stopped=True)
    fs.calls.clear()
    opened: list[str] = []
    fs.before_call = lambda operation, path: opened.append(path) if operation == "open" else None
    store = open_store(fs)
    assert not [path for path in opened if "/consumequeue/" in path]
    assert {path for path in opened if "/commitlog/" in path} == {store.log.chain.segments[-1].path}


def test_a_long_recovery_says_how_far_it_is() -> None:
    class Slow(ManualClock):
        def monotonic_ms(self) -> int:
            self.advance(600)
            return super().monotonic_ms()

    fs = MemoryFiles()
    options = replace(SMALL, commitlog_segment_bytes=1 << 20)
    store = open_store(fs, options=options)
    for _ in range(9000):
        put(store, "t", 0, b"x")
    lines: list[str] = []
    new_store(fs.killed(), Slow(), options).open(lines.append)
    assert lines and all("of the commit log" in line for line in lines)


def test_without_a_checkpoint_the_queues_tell_where_a_clean_log_ends() -> None:
    fs = stored(stopped=True)
    fs.remove("/store/checkpoint")
    store = new_store(fs)
    report = store.open()
    assert report.records == 0 and report.rebuilt == ()
    check_all(store)
