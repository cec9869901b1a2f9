"""What a start does after a kill or a power loss; test_schedules.py and test_damage.py have all that can happen."""

import pytest

from tests.broker.store.support import bodies, new_store, open_store, put
from tests.support.memory_files import MemoryFiles


def test_after_a_kill_everything_is_there() -> None:
    fs = MemoryFiles()
    store = open_store(fs)
    sent = [b"%03d" % n * 11 for n in range(100)]
    for n, body in enumerate(sent):
        put(store, "t", n % 3, body, b"KEYS\x01k%d\x02" % n)
    fs = fs.killed()
    store = new_store(fs)
    report = store.open()
    assert not report.clean and report.records == 100 and not report.torn_file
    assert [bodies(store, "t", queue_id) for queue_id in range(3)] == [sent[0::3], sent[1::3], sent[2::3]]
    assert len(store.query("t", "k57", 32, 0, 1 << 60).records) == 1


def test_recovery_reads_from_the_checkpoint_only() -> None:
    fs = MemoryFiles()
    store = open_store(fs)
    for n in range(50):
        put(store, "t", 0, b"%d" % n)
    store.build_index(1000)
    store.checkpoint()
    for n in range(50, 55):
        put(store, "t", 0, b"%d" % n)
    store = new_store(fs.killed())
    assert store.open().records == 5
    assert bodies(store, "t", 0) == [b"%d" % n for n in range(55)]


def test_a_torn_tail_is_cut_reported_and_never_seen_again() -> None:
    fs = MemoryFiles()
    store = open_store(fs)
    put(store, "t", 0, b"whole")
    end = store.log.end
    put(store, "t", 0, b"torn!")
    segment = store.log.chain.segments[0]
    segment.file.view[end + 90] ^= 0xFF
    fs = fs.killed()
    fs.boots += 1
    store = new_store(fs)
    report = store.open()
    assert report.end == end and report.torn_file == segment.path and report.torn_reason
    assert bodies(store, "t", 0) == [b"whole"]
    # The same size again: were the old tail still there, what follows it could come back.
    put(store, "t", 0, b"other")
    store = open_store(fs.killed())
    assert bodies(store, "t", 0) == [b"whole", b"other"]


@pytest.mark.parametrize("kind", ["consumequeue", "index", "checkpoint"])
def test_lost_side_files_are_made_anew(kind: str) -> None:
    fs = MemoryFiles()
    store = open_store(fs)
    for n in range(60):
        put(store, "t", 0, b"%d" % n, b"KEYS\x01k%d\x02" % n)
    store.build_index(1000)
    fs = fs.killed()
    for path in [path for path in fs.paths() if path.startswith(f"/store/{kind}")]:
        fs.remove(path)
    store = open_store(fs)
    assert bodies(store, "t", 0) == [b"%d" % n for n in range(60)]
    assert len(store.query("t", "k3", 32, 0, 1 << 60).records) == 1
