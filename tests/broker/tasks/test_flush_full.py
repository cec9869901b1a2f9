"""A full disk: entries of queues cannot be written, and the ends of the queues are noted all the same."""

from random import Random

import pytest

from broker.options import BrokerOptions
from broker.store.queue.ends import read_queue_ends
from broker.store.removal import Removal
from broker.store.store import MessageStore
from broker.tasks.clean import Cleaner
from mqcommon.errors import DiskFull
from tests.broker.store.support import bodies, open_store, put
from tests.broker.tasks.test_flush import OPTIONS, Parts
from tests.support.clock import ManualClock

SENT = [b"message %d" % n for n in range(50)]
# Enough for the ends, too little for the first block of a queue's file.
SOME_FREE = 2_000


def full_disk(free: int) -> Parts:
    """A store on a disk that has ``free`` bytes left; the entries of ``SENT`` are in memory only."""
    parts = Parts()
    for body in SENT:
        put(parts.store, "t", 0, body)
    parts.fs.capacity = parts.fs.used() + free
    return parts


def after_power_loss(parts: Parts, seed: int) -> MessageStore:
    left = parts.fs.crash(Random(seed))
    left.capacity = 1 << 40
    return open_store(left, options=OPTIONS)


async def test_the_ends_are_noted_and_the_log_is_as_durable_as_they_say() -> None:
    parts = full_disk(SOME_FREE)
    store = parts.store
    await parts.flusher.checkpoint(note_ends=True)
    assert store.refusal
    ends = read_queue_ends(parts.fs, "/store")
    assert ends is not None and ends.queues["t"] == {0: (0, len(SENT))}
    assert store.log.flushed == store.log.end
    assert store.ends_noted_to == store.durable_end < store.log.end
    for seed in range(10):
        assert bodies(after_power_loss(parts, seed), "t", 0) == SENT


async def test_without_room_for_the_ends_the_old_ones_go() -> None:
    parts = full_disk(0)
    await parts.flusher.checkpoint(note_ends=True)
    assert read_queue_ends(parts.fs, "/store") is None
    assert parts.store.ends_noted_to == parts.store.durable_end
    for seed in range(10):
        assert bodies(after_power_loss(parts, seed), "t", 0) == SENT


async def test_ends_are_not_noted_when_nobody_asked() -> None:
    parts = full_disk(SOME_FREE)
    before = read_queue_ends(parts.fs, "/store")
    await parts.flusher.checkpoint()
    assert read_queue_ends(parts.fs, "/store") == before and parts.store.refusal


@pytest.mark.parametrize("free", [0, SOME_FREE])
async def test_the_cleaner_makes_room_for_the_queues(free: int) -> None:
    parts = Parts()
    store = parts.store
    while len(store.log.chain.segments) < 6:
        put(store, "t", 0, bytes(30_000))
    await parts.flusher.checkpoint()
    put(store, "u", 0, b"last")
    parts.fs.capacity = parts.fs.used() + free
    options = BrokerOptions(delete_commit_log_files_interval=0, delete_when="00")
    cleaner = Cleaner(store, Removal(parts.fs, "/store", store), parts.flusher, options, ManualClock())
    await parts.flusher.checkpoint()
    with pytest.raises(DiskFull):
        put(store, "u", 0, b"refused")
    noted = store.log.start
    assert await cleaner._clean(await cleaner._look(asked=True))
    assert noted < store.log.start <= store.ends_noted_to
    await parts.flusher.checkpoint()
    assert bodies(store, "u", 0) == [b"last"]
    for seed in range(10):
        again = after_power_loss(parts, seed)
        assert bodies(again, "u", 0) == [b"last"]
        assert again.max_offset("t", 0) == store.max_offset("t", 0)
