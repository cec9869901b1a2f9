"""Files of queues that are gone after a stop: they are made again from the log, and the report says so."""

from collections.abc import Callable

import pytest

from broker.store.recovery import RecoveryReport
from tests.broker.store.support import bodies, new_store, open_store, put, put_inner
from tests.support.memory_files import MemoryFiles

COUNT = 12


def removed(fs: MemoryFiles, path: str) -> None:
    fs.remove(path)


def emptied(fs: MemoryFiles, path: str) -> None:
    fs.overwrite(path, b"")


def cut(fs: MemoryFiles, path: str) -> None:
    fs.overwrite(path, fs.read(path)[:60])


def zeroed(fs: MemoryFiles, path: str) -> None:
    fs.overwrite(path, bytes(len(fs.read(path))))


def end_zeroed(fs: MemoryFiles, path: str) -> None:
    raw = fs.read(path)
    fs.overwrite(path, raw[:60] + bytes(len(raw) - 60))


def directory_removed(fs: MemoryFiles, path: str) -> None:
    for each in fs.paths():
        if each.startswith(path.rpartition("/")[0]):
            fs.remove(each)


DAMAGES = [removed, emptied, cut, zeroed, end_zeroed, directory_removed]


def stopped(last_stop: str, path: str, *, later: bool) -> MemoryFiles:
    """``later``: messages come after the last checkpoint, too."""
    fs = MemoryFiles()
    store = open_store(fs)
    store.queues.use_kinds(lambda topic: topic == "b")

    def send(start: int) -> None:
        for number in range(start, start + COUNT):
            put(store, "t", 0, b"%d" % number)
            put(store, "u", 0, b"%d" % number)
        put_inner(store, "b", 0, [(0, b"%d" % number, b"") for number in range(start, start + COUNT)])
        put_inner(store, "b", 0, [(0, b"and %d" % number, b"") for number in range(3)])

    send(0)
    store.checkpoint()
    assert fs.exists(path)
    if later:
        send(COUNT)
    if last_stop == "clean":
        store.close()
    return fs.killed()


def opened(fs: MemoryFiles) -> tuple[dict[str, list[bytes]], dict[str, int], RecoveryReport]:
    store = new_store(fs)
    report = store.open()
    store.queues.use_kinds(lambda topic: topic == "b")
    found = {topic: bodies(store, topic, 0) for topic in ("t", "u", "b")}
    ends = {topic: store.max_offset(topic, 0) for topic in ("t", "u", "b")}
    store.close()
    return found, ends, report


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("last_stop", ["clean", "killed"])
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize(
    "path",
    [
        "/store/consumequeue/t/0/00000000000000000000",
        "/store/batchconsumequeue/b/0/00000000000000000000",
    ],
)
def test_it_is_made_again(path: str, damage: Callable[[MemoryFiles, str], None], last_stop: str, later: bool) -> None:
    fs = stopped(last_stop, path, later=later)
    whole = opened(fs.killed())
    damage(fs, path)
    found, ends, report = opened(fs)
    assert (found, ends) == whole[:2]
    assert report.rebuilt == (f"{path.split('/')[3]}/0",)


@pytest.mark.parametrize("entry", [0, COUNT - 2, COUNT - 1])
def test_a_damaged_entry_of_a_message_that_the_start_reads(entry: int) -> None:
    """After a kill the messages since the checkpoint are compared with the queues, whose files may have them."""
    path = "/store/consumequeue/t/0/00000000000000000000"
    fs = MemoryFiles()
    store = open_store(fs)
    store.checkpoint()
    for number in range(COUNT):
        put(store, "t", 0, b"%d" % number)
        put(store, "u", 0, b"%d" % number)
    # Written, and then killed before the checkpoint was.
    mark = store.begin_checkpoint()
    while steps := store.take_queues(mark):
        store.write_queues(steps)
        store.queues_written(steps)
    left = fs.killed()
    for bit in range(96):
        fs = left.killed()
        fs.flip(path, entry * 20 + bit // 8, bit % 8)
        store = open_store(fs)
        assert bodies(store, "t", 0) == [b"%d" % number for number in range(COUNT)], bit
        store.close()
