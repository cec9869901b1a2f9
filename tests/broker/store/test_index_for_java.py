"""The index between Skylark and RocketMQ: whatever one leaves, the other finds each message by its keys."""

import struct
from dataclasses import replace
from functools import partial
from random import Random
from zlib import crc32

import pytest

from skylark.broker.store.checkpoint import read_checkpoint
from skylark.broker.store.store import MessageStore
from tests.broker.store.support import SMALL, new_store, open_store, put
from tests.support.amounts import amount
from tests.support.clock import ManualClock
from tests.support.java_recovery import start_java
from tests.support.memory_files import MemoryFiles

START_MS = 1_700_000_000_000
STOPS = ("killed", "power lost", "stopped")


def busy_store(random: Random) -> tuple[MemoryFiles, MessageStore]:
    """A store in use: its index lags behind the log."""
    fs, clock = MemoryFiles(), ManualClock(START_MS)
    store = open_store(fs, clock)
    for number in range(random.randrange(10, 250)):
        put(store, "t", number % 2, b"x" * random.randrange(300), b"UNIQ_KEY\x01id%d\x02KEYS\x01a b\x02" % number)
        clock.advance(random.choice((0, 0, 10, 2000)))
        if random.random() < 0.1:
            store.build_index(random.choice((1, 5, 30)))
        if random.random() < 0.1:
            store.checkpoint(as_flushed=random.random() < 0.5)
        if random.random() < 0.05:
            store.flush()
    return fs, store


def leave(fs: MemoryFiles, store: MessageStore, how: str, random: Random) -> MemoryFiles:
    if how == "stopped":
        store.close()
    return fs.crash(random) if how == "power lost" else fs.killed()


@pytest.mark.parametrize("how", STOPS)
def test_a_java_broker_indexes_what_our_index_lacks(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(amount(10, 600)):
        random = Random(seed)
        # A stop lets the index catch up, if it can.
        monkeypatch.setattr("skylark.broker.store.store.CLOSE_CATCH_UP", random.choice((0, 10, 1000)))
        fs, store = busy_store(random)
        fs = leave(fs, store, how, random)
        java = start_java(fs, SMALL.directory, SMALL.index_slots, SMALL.index_capacity)
        lacking = set(java.log) - java.indexed
        assert not lacking, f"seed {seed}: {len(lacking)} of {len(java.log)} messages, the first at {min(lacking)}"


def test_a_java_broker_does_not_read_the_whole_log_again() -> None:
    fs, clock = MemoryFiles(), ManualClock(START_MS)
    store = open_store(fs, clock)
    for number in range(400):
        put(store, "t", 0, b"x" * 200, b"UNIQ_KEY\x01id%d\x02" % number)
        clock.advance(1000)
        store.build_index(10)
    store.checkpoint()
    java = start_java(fs.killed(), SMALL.directory, SMALL.index_slots, SMALL.index_capacity)
    assert java.read_from > store.log.end // 2


def found(store: MessageStore, number: int) -> int:
    return len(store.query("t", f"id{number}", 9, 0, 1 << 60).records)


def as_java_leaves_it(fs: MemoryFiles) -> MemoryFiles:
    """RocketMQ has used the store, and says so in the checkpoint; `abort` is gone."""
    after = fs.killed()
    data = fs.read("/store/checkpoint")
    after.overwrite("/store/checkpoint", struct.pack(">qqq", *[START_MS + 99_999] * 3) + data[24:])
    if after.exists("/store/abort"):
        after.remove("/store/abort")
    return after


@pytest.mark.parametrize("clean", [True, False])
def test_messages_that_a_java_broker_left_out_of_the_index_are_found_again(
    clean: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skylark.broker.store.store.CLOSE_CATCH_UP", 0)
    fs, clock = MemoryFiles(), ManualClock(START_MS)
    store = open_store(fs, clock)
    for number in range(20):
        put(store, "t", 0, b"x", b"UNIQ_KEY\x01id%d\x02" % number)
    store.build_index(10)
    if clean:
        store.close()
    else:
        store.checkpoint(with_ends=True)
    # RocketMQ goes on behind what the index lacks, and stores more.
    fs = fs.killed()
    java = open_store(fs, clock)
    java.index.position = java.log.end
    for number in range(20, 30):
        put(java, "t", 0, b"x", b"UNIQ_KEY\x01id%d\x02" % number)
    java.build_index(1000)
    java.flush()
    sides = {path: fs.read(path) for path in ("/store/checkpoint", "/store/queueEnds")}
    lost = [number for number in range(30) if not found(java, number)]
    assert lost == [*range(10, 20)]
    fs = fs.killed()
    for path, data in sides.items():
        fs.overwrite(path, data)
    fs = as_java_leaves_it(fs)
    assert read_checkpoint(fs, "/store/checkpoint").used_by_rocketmq
    store = new_store(fs, clock)
    store.open()
    store.build_index(1000)
    assert [found(store, number) for number in range(30)] == [1] * 30
    store.close()
    # The next start has nothing to do again.
    store = open_store(fs.killed(), clock)
    assert not store.index_behind


def test_a_stop_leaves_an_index_that_holds_everything_or_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    fs = MemoryFiles()
    store = open_store(fs)
    for number in range(20):
        put(store, "t", 0, b"x", b"UNIQ_KEY\x01id%d\x02" % number)
    monkeypatch.setattr("skylark.broker.store.store.CLOSE_CATCH_UP", 5)
    store.close()
    assert fs.exists("/store/abort")
    monkeypatch.undo()
    store = new_store(fs)
    assert store.open().clean and store.index_behind
    store.close()
    assert not fs.exists("/store/abort")
    store = new_store(fs)
    assert store.open().clean and not store.index_behind
    assert [found(store, number) for number in range(20)] == [1] * 20


def test_a_checkpoint_of_an_older_version_is_read() -> None:
    fs = MemoryFiles()
    store = open_store(fs, ManualClock(START_MS))
    put(store, "t", 0, b"x", b"UNIQ_KEY\x01id0\x02")
    store.close()
    old = struct.pack(">IqqI", 0x534B594C, 9, store.log.end, 1)

    data = struct.pack(">qqq", START_MS, START_MS, START_MS).ljust(2048, b"\0")
    data += (old + struct.pack(">I", crc32(old))).ljust(2048, b"\0")
    fs.overwrite("/store/checkpoint", data)
    state = read_checkpoint(fs, "/store/checkpoint")
    assert (state.log_offset, state.clean, state.log_timestamp) == (store.log.end, True, START_MS)
    assert not state.used_by_rocketmq
    fs.overwrite("/store/checkpoint", struct.pack(">q", START_MS + 1) + data[8:])
    assert read_checkpoint(fs, "/store/checkpoint").used_by_rocketmq
    assert new_store(fs).open().clean


def test_the_times_in_the_checkpoint_claim_no_entry_that_is_in_memory_only() -> None:
    """RocketMQ does not read again what they say is in the queues."""
    for seed in range(20):
        random = Random(seed)
        fs, clock = MemoryFiles(), ManualClock(START_MS)
        store = open_store(fs, clock, replace(SMALL, index_enabled=False))
        stored: list[tuple[int, int, int]] = []

        put_some = partial(put_any, store, clock, random, stored)
        put_some()
        store.flush()
        put_some()
        mark = store.begin_checkpoint(as_flushed=random.random() < 0.5)
        put_some()
        while steps := store.take_queues(mark, limit=2):
            put_some()
            store.write_queues(steps)
            store.queues_written(steps)
        put_some()
        store.finish_checkpoint(mark)
        after = fs.crash(random)
        physical_ms, queues_ms, _ = struct.unpack_from(">qqq", after.read("/store/checkpoint"))
        assert physical_ms == queues_ms
        for stored_ms, queue_id, offset in stored:
            if stored_ms <= queues_ms:
                assert entry_size(after, queue_id, offset), f"seed {seed}"


def put_any(store: MessageStore, clock: ManualClock, random: Random, stored: list[tuple[int, int, int]]) -> None:
    """Put some messages; (store time, queue, offset) of each is noted."""
    for _ in range(random.randrange(10)):
        clock.advance(10)
        queue_id = random.randrange(5)
        stored.append((clock.now_ms(), queue_id, put(store, "t", queue_id, b"x")))


def entry_size(fs: MemoryFiles, queue_id: int, offset: int) -> int:
    """The size in the entry of a message of topic t, from its queue's file."""
    base = offset * 20 // SMALL.consumequeue_segment_bytes * SMALL.consumequeue_segment_bytes
    data = fs.read(f"/store/consumequeue/t/{queue_id}/{base:020d}")
    return int.from_bytes(data[offset * 20 - base + 8 :][:4], "big")
