"""Which blocks of the log are sealed, and when: full, on disk, confirmed, from memory, and not cut meanwhile."""

from random import Random
from zlib import crc32

import pytest
import trio
from trio.testing import MockClock

from skylark.broker.options import BrokerOptions
from skylark.broker.replication.replica import Replica
from skylark.broker.store.store import MessageStore
from skylark.broker.store.sums.sum_files import bases_in
from skylark.broker.tasks import block_sealing
from skylark.broker.tasks.block_sealing import BlockSealing
from skylark.broker.tasks.flush import Flusher
from skylark.broker.writing.admission import Admission
from skylark.broker.writing.waits import LogWaits
from skylark.mqcommon.errors import DiskFull
from tests.broker.replication.test_replica import build_all, feed, log_bytes, master
from tests.broker.running import running, send_request
from tests.broker.store.support import SMALL, open_store, put
from tests.broker.store.truncation.support import cut_at
from tests.support.clock import pass_until
from tests.support.memory_files import MemoryFiles

FILE = SMALL.commitlog_segment_bytes


def fill(store: MessageStore, files: int) -> list[int]:
    """Store messages until the log has so many full files and a little more; returns where messages begin."""
    places = []
    while store.log.end <= files * FILE:
        places.append(store.log.end)
        put(store, "t", 0, bytes(900))
    return places


def sealing_of(store: MessageStore) -> BlockSealing:
    return BlockSealing(store.log, lambda: store.safe_end)


def sealed(store: MessageStore) -> list[int]:
    return sorted(block.start // FILE for block in store.log.sums.newest())


async def test_full_blocks_are_sealed_once_they_are_on_disk() -> None:
    store = open_store(MemoryFiles())
    sealing = sealing_of(store)
    fill(store, 2)
    await sealing.seal()
    assert sealed(store) == []
    store.flush()
    fill(store, 3)
    await sealing.seal()
    assert sealed(store) == [0, 1] and sealing.sealed_to == 2 * FILE
    for block in store.log.sums.newest():
        own = store.log.sums.sum_of(block)
        assert own is not None and own.crc == crc32(store.log.chain.read_file(block.start, block.size))
        assert not own.is_attested


async def test_where_a_set_confirms_no_block_is_sealed_before() -> None:
    store = open_store(MemoryFiles())
    confirmed = [0]
    store.confirmed = lambda: confirmed[0]
    sealing = sealing_of(store)
    fill(store, 3)
    store.flush()
    for end, expected in ((0, []), (FILE - 1, []), (FILE, [0]), (3 * FILE - 1, [0, 1]), (1 << 40, [0, 1, 2])):
        confirmed[0] = end
        await sealing.seal()
        assert sealed(store) == expected


async def test_blocks_from_before_the_start_are_left_to_the_scrub_except_for_the_last_block() -> None:
    fs = MemoryFiles()
    store = open_store(fs)
    fill(store, 2)
    store.close()
    store = open_store(fs)
    sealing = sealing_of(store)
    assert sealing.sealed_to == 2 * FILE
    fill(store, 5)
    store.flush()
    await sealing.seal()
    assert sealed(store) == [2, 3, 4]


async def test_bytes_that_are_not_in_memory_get_no_sum() -> None:
    fs = MemoryFiles()
    store = open_store(fs)
    sealing = sealing_of(store)
    fill(store, 3)
    store.flush()
    path = f"/store/commitlog/{FILE:020d}"
    fs.cold.mark(path, 100, 1)
    await sealing.seal()
    assert sealed(store) == [0, 2] and sealing.sealed_to == 3 * FILE


async def test_a_block_of_a_file_that_was_removed_meanwhile_gets_no_sum() -> None:
    store = open_store(MemoryFiles())
    sealing = sealing_of(store)
    fill(store, 3)
    store.flush()
    work = sealing.due()
    assert work is not None
    oldest = store.log.chain.segments[0]
    oldest.file.view.close()
    assert sealing.crcs(work)[0] is None
    store.log.chain.retire_before(FILE)
    sealing.keep(work, [1, 2, 3])
    assert sealed(store) == [1, 2]


async def test_what_is_cut_while_a_thread_makes_its_sum_is_not_sealed() -> None:
    fs = MemoryFiles()
    store = open_store(fs)
    sealing = sealing_of(store)
    places = fill(store, 3)
    store.flush()
    work = sealing.due()
    assert work is not None
    crcs = sealing.crcs(work)
    cut = max(place for place in places if place < 2 * FILE)
    cut_at(fs, store, cut)
    while store.log.end <= 4 * FILE:
        put(store, "other", 0, bytes(700))
    sealing.keep(work, crcs)
    assert sealed(store) == []
    store.flush()
    await sealing.seal()
    assert sealed(store) == [0, 1, 2, 3]
    for block in store.log.sums.newest():
        assert store.log.sums.is_right(block, store.log.chain.read_file(block.start, block.size))


async def test_a_cut_takes_the_sums_of_its_bytes_from_memory_and_disk() -> None:
    fs = MemoryFiles()
    store = open_store(fs)
    sealing = sealing_of(store)
    places = fill(store, 4)
    store.flush()
    await sealing.seal()
    store.checkpoint(with_ends=True)
    assert len(bases_in(fs, "/store")) == 4
    cut_at(fs, store, max(place for place in places if place < 2 * FILE))
    assert sealed(store) == [0] and bases_in(fs, "/store") == [0]
    assert sealed(open_store(fs.crash(Random(1)))) == [0]
    fill(store, 3)
    store.flush()
    await sealing.seal()
    # The scrub checks the block of the cut, which has bytes of before it.
    assert sealed(store) == [0, 2]


async def test_a_slaves_blocks_have_the_sums_of_its_masters() -> None:
    its_master = master(Random(1), 80)
    slave = open_store(MemoryFiles())
    of_master, of_slave = sealing_of(its_master), sealing_of(slave)
    its_master.log.sums.next_to_seal = 0
    its_master.flush()
    await of_master.seal()
    replica = Replica(slave)
    replica.begin_at(0)
    feed(replica, log_bytes(its_master, 0, its_master.log.end))
    slave.flush()
    await of_slave.seal()
    assert not sealed(slave)  # no record is checked yet
    build_all(replica)
    slave.flush()
    await of_slave.seal()
    own = {block: slave.log.sums.sum_of(block) for block in slave.log.sums.newest()}
    assert len(own) > 3
    assert own == {block: its_master.log.sums.sum_of(block) for block in its_master.log.sums.newest()}


async def test_much_is_sealed_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_sealing, "STEP_BYTES", 2 * FILE)
    store = open_store(MemoryFiles())
    sealing = sealing_of(store)
    fill(store, 5)
    store.flush()
    for expected in (2, 4, 5, 5):
        await sealing.seal()
        assert len(sealed(store)) == expected


async def test_a_broker_seals_while_it_runs_and_what_is_left_when_it_stops(mock_clock: MockClock) -> None:
    fs = MemoryFiles()

    async def send(count: int) -> None:
        for _ in range(count):
            assert (await client.invoke(addr, send_request("t", bytes(1000)), 5_000)).code == 0

    async with running(fs, mapped_file_size_commit_log=4 * FILE) as (client, addr):
        await send(20)
        await pass_until(mock_clock, lambda: bool(bases_in(fs, "/store")))
        before = len(bases_in(fs, "/store"))
        await send(40)
    assert before < len(bases_in(fs, "/store")) == 4


async def test_sums_that_cannot_be_written_hold_up_nothing_and_are_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    fs = MemoryFiles()
    store = open_store(fs)
    flusher = Flusher(store, LogWaits(), Admission(), BrokerOptions(), trio.lowlevel.checkpoint)
    sealing = sealing_of(store)
    fill(store, 2)
    store.flush()
    await sealing.seal()

    def full(operation: str, path: str) -> None:
        if operation == "write" and "/sums/" in path:
            raise DiskFull(path)

    fs.before_call = full
    for _ in range(3):
        await flusher.checkpoint(note_ends=True)
    assert store.durable_end == store.log.end and not flusher.unwritten
    assert caplog.text.count("block sums cannot be written") == 1 and store.log.sums.has_changed
    fs.before_call = None
    await flusher.checkpoint(note_ends=True)
    assert len(bases_in(fs, "/store")) == 2 and not store.log.sums.has_changed
