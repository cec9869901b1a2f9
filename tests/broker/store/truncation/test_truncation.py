"""A slave whose log was cut is like a slave that never had more."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skylark.broker.replication.replica import Replica
from skylark.broker.store.queue.entry import messages_in
from skylark.broker.store.store import MessageStore
from skylark.broker.tasks.truncate import Truncation
from skylark.mqcommon.errors import DiskFull, ReplicationRefused
from tests.broker.replication.test_replica import build_all, feed, log_bytes, master, restart
from tests.broker.store.sums.test_sum_files import seal
from tests.broker.store.support import SMALL, bodies, open_store, put
from tests.broker.store.truncation.support import (
    assert_alike,
    begun_again,
    boundaries,
    cut_at,
    records_of,
    slave_of,
    whole,
    write_more,
)
from tests.support.amounts import amount, share_of
from tests.support.memory_files import MemoryFiles


@settings(max_examples=amount(6, 2_000))
@given(
    st.integers(0, 2**32),
    st.sampled_from(["", "clean", "killed", "power loss"]),
    st.sampled_from(["", "clean", "killed", "power loss"]),
)
def test_a_truncated_store_is_like_a_slaves_that_never_had_more(seed: int, before: str, after: str) -> None:
    random = Random(seed)
    its_master = master(random, 80)
    places = boundaries(its_master)
    end = random.choice([its_master.log.end, random.randrange(1, its_master.log.end)])
    slave, replica = slave_of(its_master, end)
    replica.build(random.choice([10_000, random.randrange(100)]), guarded=True)
    slave.build_index(random.choice([10_000, random.randrange(100)]))
    if before:
        slave.flush()
        slave = restart(slave, before, random)
    start = random.choice([place for place in places if place <= slave.log.raw_end])
    fs = slave._fs
    assert isinstance(fs, MemoryFiles)
    again = begun_again(its_master, start)
    if start < slave.log.raw_end:
        cut_at(fs, slave, start)
    replica = Replica(slave)
    build_all(replica)
    expected = whole(its_master, start)
    assert_alike(slave, expected, but=again)
    if after:
        slave = restart(slave, after, random)
        replica = Replica(slave)
        assert_alike(slave, expected, but=again)
    Replica(expected).finish()
    write_more(expected, random)
    feed(replica, log_bytes(expected, start, expected.log.end))
    build_all(replica)
    assert_alike(slave, expected, but=again)
    assert_alike(restart(slave, "killed", random), expected, but=again)


def test_what_is_cut_is_kept_byte_for_byte() -> None:
    its_master = master(Random(1))
    fs = MemoryFiles()
    slave, replica = slave_of(its_master, its_master.log.end, fs)
    build_all(replica)
    start, end = boundaries(its_master)[40], its_master.log.end
    lost = log_bytes(its_master, start, end)
    cut = cut_at(fs, slave, start)
    path = f"/store/cut/000001-{start:020d}-{end:020d}.log"
    assert fs.read(path) == lost
    assert cut.bytes == len(lost)
    assert cut.messages == sum(messages_in(each) for each in records_of(its_master) if each.physical_offset >= start)


def test_a_full_disk_changes_nothing() -> None:
    its_master = master(Random(2))
    fs = MemoryFiles()
    slave, replica = slave_of(its_master, its_master.log.end, fs)
    build_all(replica)
    slave.flush()
    slave.checkpoint(with_ends=True)
    fs.capacity = fs.used() + 500
    cut = Truncation(fs, SMALL.directory, slave, boundaries(its_master)[40])
    with pytest.raises(DiskFull, match="Nothing is cut until there is room"):
        cut.save()
    assert [path for path in fs.paths() if "cut" in path.lower()] == []
    fs.capacity *= 10
    assert_alike(slave, whole(its_master, its_master.log.end))


@pytest.mark.parametrize("where", ["before", "after", "within a record"])
def test_the_log_is_cut_only_between_messages(where: str) -> None:
    its_master = master(Random(3))
    fs = MemoryFiles()
    slave, replica = slave_of(its_master, its_master.log.end, fs)
    build_all(replica)
    start = {"before": -1, "after": slave.log.end + 1, "within a record": boundaries(its_master)[20] + 5}[where]
    with pytest.raises(ReplicationRefused, match="broker resyncSlave /store"):
        cut_at(fs, slave, start)


def test_what_remains_in_a_queue_is_still_there_when_later_files_go() -> None:
    fs = MemoryFiles()
    store = open_store(fs)
    places = []
    for number in range(60):
        places.append(store.log.end)
        put(store, "t", 0, b"%d" % number)
    cut_at(fs, store, places[33])
    assert bodies(store, "t", 0) == [b"%d" % number for number in range(33)]
    put(store, "t", 0, b"new")
    assert bodies(open_store(fs.killed()), "t", 0)[31:] == [b"31", b"32", b"new"]


def test_old_saved_files_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skylark.broker.store.truncation.saved.KEEP_FILES", 3)
    fs = MemoryFiles()
    store = open_store(fs)
    for _ in range(5):
        start = store.log.end
        put(store, "t", 0, b"lost")
        cut_at(fs, store, start)
    assert [path[:17] for path in fs.paths() if "/cut/" in path] == [f"/store/cut/00000{n}" for n in (3, 4, 5)]


@pytest.mark.parametrize("seed", tuple(share_of(range(4), 4)))
def test_power_loss_and_kill_at_any_step_leave_the_old_log_or_the_cut_one(seed: int) -> None:
    interrupt(seed, 10)


@pytest.mark.nightly
@pytest.mark.parametrize("batch", range(10))
def test_power_loss_and_kill_at_any_step_of_long_logs(batch: int) -> None:
    for seed in range(batch * 10, batch * 10 + 10):
        interrupt(seed, 60)


def interrupt(seed: int, count: int) -> None:
    """Cut a log of about ``count`` messages or bursts, and look at what each step would leave."""
    random = Random(seed)
    its_master = master(random, count)
    fs = MemoryFiles()
    slave, replica = slave_of(its_master, its_master.log.end - random.randrange(2), fs)
    build_all(replica)
    slave.build_index(random.randrange(100))
    slave.flush()
    seal(slave)
    slave.checkpoint(with_ends=True)
    start = random.choice([place for place in boundaries(its_master) if place < slave.log.raw_end])
    again = begun_again(its_master, start)
    old, new = open_store(fs.killed()), whole(its_master, start)
    images: list[MemoryFiles] = []

    def before_call(operation: str, path: str) -> None:
        if operation in ("read", "open"):
            return
        images.append(fs.killed())
        images.append(fs.crash(random))

    fs.before_call = before_call
    cut_at(fs, slave, start)
    fs.before_call = None
    assert len(images) > 20
    was_cut = False
    for image in [*share_of(images, 4), fs.killed(), fs.crash(random)]:
        found = open_after(image, random)
        is_cut = found.log.end == new.log.end
        assert_alike(found, new if is_cut else old, but=again if is_cut else frozenset())
        was_cut = was_cut or is_cut
        sums = found.log.sums
        assert all(block.end <= found.log.end for block in sums.newest())
        assert all(sums.is_right(block, log_bytes(found, block.start, block.end)) for block in sums.newest())
    assert was_cut


def open_after(fs: MemoryFiles, random: Random) -> MessageStore:
    """Open the store; sometimes the start itself is killed once."""
    if random.random() < 0.3:
        left = [random.randrange(1, 30)]
        images: list[MemoryFiles] = []

        def before_call(operation: str, path: str) -> None:
            left[0] -= 1
            if left[0] == 0:
                images.append(fs.killed() if random.random() < 0.5 else fs.crash(random))

        fs.before_call = before_call
        found = open_store(fs)
        fs.before_call = None
        return open_store(images[0]) if images else found
    return open_store(fs)


@pytest.mark.parametrize("end", ["clean", "killed"])
def test_the_file_that_a_master_made_ahead_is_not_used_afterwards(end: str) -> None:
    """Only bytes of the last file are cut, so the file made ahead would still be the next one; its name is gone."""
    random = Random(5)
    store = master(random, 40)
    start = boundaries(store)[-3]
    store.log.make_file(store.log.chain.end)
    assert store.log.chain.is_prepared
    cut_at(store._fs, store, start)
    store.log.make_file(store.log.chain.end)
    written = len(records_of(store))
    for _ in range(3 * store.log.chain.segment_bytes // 1_000):
        put(store, "A", 0, bytes(1_000))
        written += 1
    store = restart(store, end, random)
    assert len(records_of(store)) == written
