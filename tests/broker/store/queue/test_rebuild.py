"""Queue and index files that are missing, empty, short or zeroed are made again at the start, from the log."""

from collections.abc import Callable
from dataclasses import replace
from itertools import product

import pytest

from skylark.broker.store.queue.ends import FILE_NAME
from skylark.broker.store.queue.rebuild import find_incomplete
from skylark.broker.store.store import MessageStore
from skylark.mqcommon.message.flags import TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from tests.broker.store.cleaning import clean
from tests.broker.store.support import SMALL, bodies, new_store, open_store, put, put_inner
from tests.support.amounts import share_of
from tests.support.clock import ManualClock
from tests.support.memory_files import MemoryFiles

SENT = [b"%03d" % n * 10 for n in range(90)]
BATCH = [b"first", b"second", b"third"]
SPOILS: dict[str, Callable[[MemoryFiles, str], None]] = {
    "missing": lambda fs, path: fs.remove(path),
    "empty": lambda fs, path: fs.overwrite(path, b""),
    "short": lambda fs, path: fs.overwrite(path, fs.read(path)[:7]),
    "zeroed": lambda fs, path: fs.overwrite(path, bytes(fs.size(path))),
    "end zeroed": lambda fs, path: fs.overwrite(path, fs.read(path)[:20].ljust(fs.size(path), b"\0")),
}
# The message after which the checkpoint is written, by the last stop.
STOPS = {"clean stop": 80, "killed": 80, "killed after a checkpoint": len(SENT) - 1}


def stored(stop: str = "clean stop") -> MemoryFiles:
    """Queues of several files, a short queue, and a batch queue."""
    fs = MemoryFiles()
    store = open_store(fs)
    store.queues.use_kinds(lambda topic: topic == "batch")
    put(store, "small", 3, b"alone")
    put_inner(store, "batch", 0, [(0, body, b"") for body in BATCH])
    for n, body in enumerate(SENT):
        put(store, "t", n % 2, body, b"KEYS\x01k%d\x02" % n)
        if n == STOPS[stop]:
            store.build_index(1000)
            store.checkpoint(with_ends=True)
    store.build_index(1000)
    if stop == "clean stop":
        store.close()
        return fs
    return fs.killed()


def side_files(fs: MemoryFiles) -> list[str]:
    return [
        path
        for path in fs.paths()
        if path.startswith(("/store/consumequeue/", "/store/batchconsumequeue/", "/store/index/"))
    ]


def check_all(store: MessageStore) -> None:
    assert bodies(store, "t", 0) == SENT[0::2] and bodies(store, "t", 1) == SENT[1::2]
    assert bodies(store, "small", 3) == [b"alone"] and bodies(store, "batch", 0) == BATCH
    assert all(len(store.query("t", f"k{n}", 9, 0, 1 << 60).records) == 1 for n in range(len(SENT)))
    assert put(store, "t", 0, b"more") == len(SENT[0::2])


FILES = side_files(stored())


# Each file with each way to spoil it, after one of the stops.
@pytest.mark.parametrize(("path", "how", "stop"), tuple(share_of(product(FILES, SPOILS, STOPS), len(STOPS))))
def test_a_damaged_side_file_is_made_again(path: str, how: str, stop: str) -> None:
    fs = stored(stop)
    before = fs.read(path)
    SPOILS[how](fs, path)
    store = new_store(fs)
    is_whole = fs.exists(path) and fs.read(path) == before  # a single entry has no end
    report = store.open()
    check_all(store)
    if not is_whole and "/index/" not in path and (stop != "killed" or "/small/" in path or "/batch/" in path):
        assert report.rebuilt == ("/".join(path.split("/")[3:5]),)
    store.close()
    assert new_store(fs).open().rebuilt == ()


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("gone", ["nothing else", FILE_NAME, "checkpoint"])
def test_all_side_files_are_made_again(stop: str, gone: str) -> None:
    fs = stored(stop)
    for path in side_files(fs):
        fs.remove(path)
    if gone != "nothing else":
        fs.remove(f"/store/{gone}")
    check_all(open_store(fs))


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
    fs = stored()
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
    fs = stored()
    fs.remove("/store/checkpoint")
    store = new_store(fs)
    report = store.open()
    assert report.records == 0 and report.rebuilt == ()
    check_all(store)


@pytest.mark.parametrize("entry", [0, 10, 11])
def test_a_damaged_entry_of_a_message_that_the_start_reads(entry: int) -> None:
    """After a kill the messages since the checkpoint are compared with the queues, whose files may have them."""
    path = "/store/consumequeue/t/0/00000000000000000000"
    fs = MemoryFiles()
    store = open_store(fs)
    store.checkpoint()
    for number in range(12):
        put(store, "t", 0, b"%d" % number)
        put(store, "u", 0, b"%d" % number)
    # Written, and then killed before the checkpoint was.
    mark = store.begin_checkpoint()
    while steps := store.take_queues(mark):
        store.write_queues(steps)
        store.queues_written(steps)
    left = fs.killed()
    for bit in share_of(range(96), 8):
        fs = left.killed()
        fs.flip(path, entry * 20 + bit // 8, bit % 8)
        store = open_store(fs)
        assert bodies(store, "t", 0) == [b"%d" % number for number in range(12)], bit
        store.close()


@pytest.mark.parametrize("sys_flag", [TRANSACTION_PREPARED, TRANSACTION_ROLLBACK])
def test_a_queue_has_more_than_the_log_when_it_has_a_half_message(sys_flag: int) -> None:
    store = open_store(MemoryFiles())
    put(store, "t", 0, b"a")
    put(store, "t", 0, b"half", sys_flag=sys_flag)
    queue = store.queues.get("t", 0)
    assert find_incomplete(store.log, store.queues, lambda at: None) == [queue]
    queue.move_to(1)
    assert find_incomplete(store.log, store.queues, lambda at: None) == []


def test_files_of_a_plain_queue_whose_topic_was_made_again_with_batches_are_removed() -> None:
    fs = stored("killed")
    plain = "/store/consumequeue/batch/0/" + "0" * 20
    fs.mkdirs("/store/consumequeue/batch/0")
    fs.mkdirs("/store/consumequeue/t/notes")
    size = SMALL.consumequeue_segment_bytes
    fs.open_map(plain, size, create=True).close()
    store = open_store(fs)
    check_all(store)
    assert plain not in fs.paths()


def test_a_queue_without_messages_becomes_what_its_topic_is_said_to_be() -> None:
    store = open_store(MemoryFiles())
    put(store, "t", 0, b"plain")
    empty = [store.queues.get("t", 1), store.queues.get("u", 0)]
    store.queues.use_kinds(lambda topic: True)
    assert not any(queue in list(store.queues) for queue in empty)
    assert [store.queues.get(*place).is_batch for place in (("t", 0), ("t", 1), ("u", 0))] == [False, True, True]
