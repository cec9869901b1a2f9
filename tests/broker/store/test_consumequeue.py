"""A queue's files: what a sync reaches, what may be torn."""

from random import Random

from tests.broker.store.support import bodies, open_store, put, put_batch
from tests.support.memory_files import MemoryFiles


def test_a_sync_reaches_what_is_written_before_room_that_was_made_ahead() -> None:
    fs = MemoryFiles()
    store = open_store(fs)
    put_batch(store, "t", 0, [b"x"] * 15)
    queue = store.queues.get("t", 0)
    # As a batch does that is refused in the end because the disk is full.
    queue.reserve(16)
    store.finish_checkpoint(store.begin_checkpoint())
    put(store, "t", 0, b"the last of its file")
    store.finish_checkpoint(store.begin_checkpoint())
    for seed in range(10):
        after = open_store(fs.crash(Random(seed)))
        assert bodies(after, "t", 0)[-1] == b"the last of its file"
