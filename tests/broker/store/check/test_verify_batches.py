"""verifyStore and batch queues: each damage is told with file and offset, and a repair makes the queue again."""

import pytest

from broker.store.queue.entry import BATCH_ENTRY
from tests.broker.store.check.test_verify import damage, look, snapshot
from tests.broker.store.support import SMALL, bodies, open_store, put, put_inner
from tests.support.memory_files import MemoryFiles

DIRECTORY = "/store/batchconsumequeue/b/0"
PATH = f"{DIRECTORY}/{0:020d}"
SENT = [b"%d" % number for number in range(26)]


def stored() -> MemoryFiles:
    """Batches of 5 and one message alone, in two files of entries."""
    fs = MemoryFiles()
    store = open_store(fs)
    store.queues.use_kinds(lambda topic: topic == "b")
    for start in range(0, 25, 5):
        put_inner(store, "b", 0, [(0, body, b"") for body in SENT[start : start + 5]])
    put(store, "b", 0, SENT[25])
    put(store, "plain", 0, b"x")
    store.close()
    return fs


def test_a_sound_batch_queue_is_said_to_be_sound() -> None:
    fs = stored()
    before = snapshot(fs)
    sound, text = look(fs)
    assert sound and "no damage" in text and "2 consume queues" in text
    assert snapshot(fs) == before


@pytest.mark.parametrize(
    ("at", "data", "told"),
    [
        (46 * 2 + 36, b"\0\x04", "offset 92: the entry of messages 10 to 14 is"),
        (46 * 2 + 12, b"\0" * 7 + b"\x05", "offset 92: the entry of messages 10 to 14 is"),
        (46 * 1, bytes(46), f"{184:020d}: offset 0: messages 5 to 9 have no entry"),
        (46 * 3, BATCH_ENTRY.pack(7, 1, 0, 1, 15, 5, -1, 0), "offset 138: messages 15 to 19 are not in the log"),
    ],
)
def test_each_damage_is_told_and_repaired(at: int, data: bytes, told: str) -> None:
    fs = stored()
    damage(fs, PATH, at, data)
    sound, text = look(fs)
    assert not sound and told in text, text
    sound, text = look(fs, repair=True)
    assert sound, text
    store = open_store(fs)
    assert bodies(store, "b", 0) == SENT and store.queues.get("b", 0).is_batch


def test_a_missing_queue_is_told_and_made_again() -> None:
    fs = stored()
    for path in fs.paths():
        if path.startswith(DIRECTORY):
            fs.remove(path)
    sound, text = look(fs)
    assert not sound and f"{DIRECTORY}: offset 0: no file, but the log has messages up to 25" in text
    assert bodies(open_store(fs), "b", 0) == SENT


def test_a_short_file_is_told() -> None:
    fs = stored()
    fs.overwrite(f"{DIRECTORY}/{SMALL.batchqueue_segment_bytes:020d}", bytes(46))
    _, text = look(fs)
    assert "the file ends after 46 of 184 bytes" in text
