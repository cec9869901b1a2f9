"""Faults that random schedules found, each alone: broken syncs, removed files, deleted topics, full disks."""

import errno
from random import Random

import pytest

from skylark.broker.commands.verify_store import verify
from skylark.broker.store.log.commitlog import refuse_other_size
from skylark.broker.store.removal import Removal
from skylark.mqcommon.errors import ConfigError, StoreError
from tests.broker.store.support import SMALL, bodies, new_store, open_store, put
from tests.support.amounts import share_of
from tests.support.clock import ManualClock
from tests.support.memory_files import MemoryFiles

SEEDS = tuple(share_of(range(20), 5))


def test_after_a_failed_sync_a_stop_does_not_say_that_all_is_on_disk() -> None:
    fs = MemoryFiles()
    store = open_store(fs)
    put(store, "t", 0, b"on disk")
    store.flush()
    put(store, "t", 0, b"not on disk" * 100)
    fs.faults.fail("sync")
    with pytest.raises(StoreError, match="cannot be made durable"):
        store.flush()
    store.close()
    for seed in SEEDS:
        after = new_store(fs.crash(Random(seed)))
        assert not after.open().clean
        assert bodies(after, "t", 0)[:1] == [b"on disk"]


@pytest.mark.parametrize("path_part", ["commitlog", "consumequeue"])
def test_what_a_failed_sync_did_not_write_the_next_process_writes(path_part: str) -> None:
    fs = MemoryFiles()
    store = open_store(fs)
    put(store, "t", 0, b"on disk")
    store.checkpoint()
    sent = [b"on disk", *(b"lost %d" % n * 60 for n in range(15))]
    for body in sent[1:]:
        put(store, "t", 0, body)
    fs.faults.fail("sync", path_part=path_part)
    with pytest.raises(StoreError, match="cannot be made durable"):
        store.checkpoint()
    fs = fs.killed()
    store = open_store(fs)
    put(store, "t", 0, b"acknowledged")
    store.flush()
    for seed in range(8):
        assert bodies(open_store(fs.crash(Random(seed))), "t", 0) == [*sent, b"acknowledged"]


def test_a_stop_whose_sync_fails_gives_the_directory_up_all_the_same() -> None:
    fs = MemoryFiles()
    store = open_store(fs)
    put(store, "t", 0, b"x")
    fs.faults.fail("sync")
    with pytest.raises(StoreError, match="cannot be made durable"):
        store.close()
    assert not new_store(fs).open().clean


def test_a_deleted_topic_stays_deleted_when_the_power_goes() -> None:
    fs = MemoryFiles()
    store = open_store(fs)
    put(store, "t", 0, b"x")
    store.checkpoint()
    store.delete_topic("t")
    store.checkpoint(with_ends=True)
    for seed in SEEDS:
        assert open_store(fs.crash(Random(seed))).max_offset("t", 0) == 0


def test_a_topic_made_again_while_its_deletion_was_cut_off_keeps_the_new_messages() -> None:
    fs = MemoryFiles()
    store = open_store(fs)
    for _ in range(8):
        put(store, "t", 0, b"old")
    store.checkpoint(with_ends=True)
    put(store, "t", 0, b"old, behind the checkpoint")
    store.delete_topic("t")
    put(store, "t", 0, b"new")
    assert bodies(open_store(fs.killed()), "t", 0) == [b"new"]


def test_messages_of_a_deleted_topic_do_not_follow_the_new_ones() -> None:
    fs = MemoryFiles()
    store = open_store(fs)
    for number in range(5):
        put(store, "t", 0, b"old %d" % number)
    store.delete_topic("t")
    for number in range(3):
        put(store, "t", 0, b"new %d" % number)
    assert bodies(open_store(fs.killed()), "t", 0) == [b"new 0", b"new 1", b"new 2"]


def test_a_deletion_that_power_loss_undid_hides_no_new_message() -> None:
    fs = MemoryFiles()
    store = open_store(fs)
    for _ in range(2):
        put(store, "t", 0, b"old")
    store.checkpoint()
    store.delete_topic("t")
    put(store, "t", 0, b"new")
    store.flush()
    for seed in SEEDS:
        assert bodies(open_store(fs.crash(Random(seed))), "t", 0) == [b"new"]


@pytest.mark.parametrize("power_loss", [False, True])
def test_a_queue_whose_making_anew_was_broken_off_is_made_anew_again(power_loss: bool) -> None:
    fs = MemoryFiles()
    store = open_store(fs)
    sent = [b"%d" % n for n in range(50)]
    for n, body in enumerate(sent):
        put(store, "t", 0, body)
        if n in (20, 49):
            store.checkpoint(with_ends=n == 20)
    fs = fs.killed()
    for path in [path for path in fs.paths() if "consumequeue" in path]:
        fs.remove(path)
    fs.fsync_dir("/store/consumequeue/t/0")
    images: list[MemoryFiles] = []

    def before_call(operation: str, path: str) -> None:
        images.extend(fs.crash(Random(seed)) for seed in SEEDS if power_loss)
        images.extend([] if power_loss else [fs.killed()])

    fs.before_call = before_call
    assert bodies(open_store(fs), "t", 0) == sent
    assert len(images) > 10
    for image in share_of(images, 3):
        assert bodies(open_store(image), "t", 0) == sent


def test_power_loss_while_a_torn_tail_is_cut_leaves_no_gap_in_the_log() -> None:
    fs = MemoryFiles()
    store = open_store(fs)
    put(store, "t", 0, b"first")
    torn = store.log.end
    for _ in range(30):
        put(store, "t", 0, bytes(1000))
    removed: list[MemoryFiles] = []

    def before_call(operation: str, path: str) -> None:
        if operation == "remove" and "commitlog" in path:
            removed.extend(fs.crash(Random(seed)) for seed in SEEDS)

    first_file = store.log.chain.segments[0].path
    fs = fs.killed()
    fs.boots += 1
    fs.overwrite(first_file, fs.read(first_file)[:torn] + bytes(4096 - torn))
    fs.before_call = before_call
    assert bodies(open_store(fs), "t", 0) == [b"first"]
    assert len(removed) > 2 * len(SEEDS)
    for image in removed:
        assert bodies(open_store(image), "t", 0)[:1] == [b"first"]


def test_a_query_right_after_a_roll_finds_the_new_message() -> None:
    store = open_store(MemoryFiles())
    put(store, "t", 0, bytes(2000))
    put(store, "t", 0, bytes(1500))
    store.build_index(1000)
    put(store, "t", 0, bytes(1500), b"KEYS\x01k\x02")
    assert len(store.log.chain.segments) == 2
    assert len(store.query("t", "k", 1, 0, 1 << 60).records) == 1


def test_keys_of_a_message_stand_in_one_index_file() -> None:
    fs = MemoryFiles()
    store = open_store(fs)
    for n in range(100):
        put(store, "t", 0, b"x", b"KEYS\x01a%d b%d c%d\x02" % (n, n, n))
    store.build_index(1000)
    newest = store.index.files[-1].file.path
    fs = fs.killed()
    fs.remove(newest)
    store = open_store(fs)
    for n in range(100):
        for key in (f"a{n}", f"b{n}", f"c{n}"):
            assert len(store.query("t", key, 2, 0, 1 << 60).records) == 1, key


def test_index_files_keep_their_order_when_the_clock_is_set_back() -> None:
    fs, clock = MemoryFiles(), ManualClock()
    store = open_store(fs, clock)
    for n in range(60):
        put(store, "t", 0, b"x", b"KEYS\x01k%d\x02" % n)
    store.build_index(1000)
    store.close()
    clock.advance(-3_600_000)
    store = open_store(fs, clock)
    for n in range(60, 120):
        put(store, "t", 0, b"x", b"KEYS\x01k%d\x02" % n)
    store.build_index(1000)
    store.close()
    store = open_store(fs, clock)
    for n in range(120):
        assert len(store.query("t", f"k{n}", 2, 0, 1 << 60).records) == 1, n


def test_a_cleaned_queue_that_is_begun_anew_is_rebuilt() -> None:
    fs = MemoryFiles()
    store = open_store(fs)
    for _ in range(60):
        put(store, "t", 0, bytes(200))
    store.checkpoint(with_ends=True)
    removal = Removal(fs, "/store", store)
    for _ in range(2):
        removal.retire_log_file(store.log.flushed)
    removal.remove_log_files()
    first_kept = store.queues.get("t", 0).bounds_search().run(store.log.start)
    assert first_kept > 16
    store.delete_topic("t")
    put(store, "t", 0, b"new")
    assert bodies(open_store(fs.killed()), "t", 0) == [b"new"]


def test_a_full_disk_stops_neither_checkpoint_nor_stop() -> None:
    fs = MemoryFiles()
    store = open_store(fs)
    put(store, "t", 0, b"x")
    store.checkpoint()
    fs.capacity = fs.used()
    store.checkpoint(with_ends=True)
    put(store, "t", 0, b"y")
    store.close()
    fs.capacity = 1 << 40
    store = new_store(fs)
    assert store.open().clean
    assert bodies(store, "t", 0) == [b"x", b"y"]


def test_a_store_opens_when_the_disk_is_full() -> None:
    fs = MemoryFiles()
    store = open_store(fs)
    put(store, "t", 0, b"x")
    store.close()
    fs.capacity = fs.used()
    assert bodies(open_store(fs), "t", 0) == [b"x"]
    fs = fs.killed()
    fs.faults.fail("write", times=100, code=errno.ENOSPC)
    assert bodies(open_store(fs), "t", 0) == [b"x"]


def test_a_store_opens_without_room_for_its_mark_and_knows_of_a_crash_all_the_same() -> None:
    fs = MemoryFiles()
    store = open_store(fs)
    put(store, "t", 0, b"x")
    store.close()
    fs.faults.fail("create", path_part="abort", code=errno.ENOSPC)
    store = open_store(fs)
    assert not fs.exists("/store/abort")
    put(store, "t", 0, b"y")
    store = new_store(fs.killed())
    assert not store.open().clean
    assert bodies(store, "t", 0) == [b"x", b"y"]
    fs = fs.killed()
    fs.faults.fail("create", path_part="abort", code=errno.ENOSPC)
    open_store(fs).close()
    assert new_store(fs).open().clean


def test_verify_store_finds_no_damage_in_topics_that_were_deleted_and_made_again() -> None:
    fs = MemoryFiles()
    store = open_store(fs)
    for topic in ("t", "u"):
        for _ in range(9):
            put(store, topic, 0, b"old")
        store.delete_topic(topic)
    for _ in range(3):
        put(store, "t", 0, b"new")
    store.close()
    open_store(fs).close()
    said: list[str] = []
    assert verify(fs, SMALL, repair=False, say=said.append), said


def test_a_file_whose_tail_was_being_cut_is_not_taken_for_one_of_another_size() -> None:
    fs = MemoryFiles()
    fs.overwrite("/store/commitlog/00000000000000008192", bytes(4016))
    refuse_other_size(fs, "/store/commitlog", 4096, ours=False)
    fs.overwrite("/store/commitlog/00000000000000008192", bytes(2048))
    with pytest.raises(ConfigError, match="mappedFileSizeCommitLog=2048"):
        refuse_other_size(fs, "/store/commitlog", 4096, ours=False)
