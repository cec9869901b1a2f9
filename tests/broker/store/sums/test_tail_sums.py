"""The block in which a start goes on: the checkpoint knows its first bytes, so it gets a sum as soon as it is full."""

from random import Random
from zlib import crc32

import pytest

from skylark.broker.store.checkpoint import TailSum, read_checkpoint
from skylark.broker.store.store import DamagedTail, MessageStore
from skylark.broker.store.sums.block_sums import Block, BlockSum
from skylark.broker.tasks.block_sealing import BlockSealing
from tests.broker.store.support import SMALL, open_store, put
from tests.broker.store.truncation.support import cut_at
from tests.support.memory_files import MemoryFiles

FILE = SMALL.commitlog_segment_bytes
CHECKPOINT = "/store/checkpoint"


def fill(store: MessageStore, end: int) -> MessageStore:
    while store.log.end < end:
        put(store, "topic", 0, bytes(700), b"KEYS\x01a key\x02")
    return store


async def seal(store: MessageStore) -> list[int]:
    """Seal what may be sealed; returns the numbers of all sealed files."""
    store.flush()
    await BlockSealing(store.log, lambda: store.safe_end).seal()
    for block in store.log.sums.newest():
        assert store.log.sums.is_right(block, store.log.chain.read_file(block.start, block.size))
    return sorted(block.start // FILE for block in store.log.sums.newest())


def change(fs: MemoryFiles, offset: int, data: bytes = b"\xff") -> None:
    fs.damage(f"/store/commitlog/{offset // FILE * FILE:020d}", offset % FILE, data)


def last_property(fs: MemoryFiles, store: MessageStore) -> int:
    """Where the last property of the log is, which no CRC of RocketMQ covers."""
    base = store.log.sums.block_at(store.log.end).start
    return base + fs.read(f"/store/commitlog/{base:020d}").rindex(b"a key")


async def test_after_a_stop_the_last_block_is_sealed_when_it_is_full() -> None:
    fs = MemoryFiles()
    store = fill(open_store(fs), FILE + 1500)
    assert await seal(store) == [0]
    store.close()
    store = open_store(fs)
    assert store.damaged_tail is None and store.log.sums.next_to_seal == FILE
    assert await seal(fill(store, 3 * FILE)) == [0, 1, 2]


async def test_a_property_of_the_last_block_that_changes_while_nobody_runs_is_noticed_by_the_start() -> None:
    fs = MemoryFiles()
    store = fill(open_store(fs), FILE + 1500)
    await seal(store)
    end, part = store.log.end, fs.read(f"/store/commitlog/{FILE:020d}")
    store.close()
    change(fs, last_property(fs, store))
    store = open_store(fs)
    crc = crc32(part[: end - FILE])
    assert store.damaged_tail == DamagedTail(Block(FILE, end - FILE), BlockSum(crc, False))
    assert await seal(fill(store, 3 * FILE)) == [0, 2], "and no sum is made of the changed bytes"


async def test_after_a_kill_blocks_whose_sums_were_not_written_yet_get_them_from_the_page_cache() -> None:
    fs = MemoryFiles()
    store = fill(open_store(fs), FILE + 1500)
    await seal(store)
    store.checkpoint(with_ends=True)
    await seal(fill(store, 4 * FILE + 1500))
    store.checkpoint(as_flushed=True)
    fill(store, 5 * FILE + 1500)
    store = open_store(fs.killed())
    assert [block.start // FILE for block in store.log.sums.newest()] == [0]
    assert await seal(store) == [0, 1, 2, 3, 4]


async def test_after_a_kill_a_block_of_before_the_killed_process_which_it_could_not_prove_gets_no_sum() -> None:
    fs = MemoryFiles()
    store = fill(open_store(fs), FILE + 1500)
    await seal(store)
    store.close()
    change(fs, last_property(fs, store))
    store = open_store(fs)
    fill(store, 3 * FILE + 1500)
    store.flush()
    store.checkpoint(with_ends=True)
    assert await seal(open_store(fs.killed())) == [0, 2]


@pytest.mark.parametrize("seed", range(8))
async def test_after_a_power_loss_the_last_block_is_as_the_checkpoint_says_and_the_rest_is_read(seed: int) -> None:
    fs = MemoryFiles()
    store = fill(open_store(fs), FILE + 1500)
    await seal(store)
    store.checkpoint(with_ends=True)
    fill(store, FILE + 2500 + 1000 * seed)
    if seed % 2:
        store.flush()
    fs = fs.crash(Random(seed))
    store = open_store(fs)
    assert store.damaged_tail is None and store.log.sums.next_to_seal == FILE
    assert await seal(fill(store, 6 * FILE)) == [0, 1, 2, 3, 4, 5]
    fs = fs.crash(Random(seed))
    change(fs, last_property(fs, store))
    if store.durable_end % FILE:
        assert open_store(fs).damaged_tail is None, "after the checkpoint only bodies are checked"


async def test_a_block_that_nobody_can_vouch_for_is_left_to_the_scrub() -> None:
    fs = MemoryFiles()
    store = fill(open_store(fs), FILE + 1500)
    await seal(store)
    store.close()
    assert isinstance(read_checkpoint(fs, CHECKPOINT).tail, TailSum)
    older, rocketmq = fs.killed(), fs.killed()
    for slot in (2048, 3072):  # an older version writes no such mark
        write(older, slot + 320, bytes(24))
    write(rocketmq, 16, b"\1")
    change(rocketmq, last_property(rocketmq, store))
    for disk in (older, rocketmq):
        store = open_store(disk)
        assert store.damaged_tail is None
        assert await seal(fill(store, 3 * FILE)) == [0, 2]


async def test_a_checkpoint_after_a_cut_says_nothing_of_the_last_block() -> None:
    fs = MemoryFiles()
    store = fill(open_store(fs), FILE + 3000)
    await seal(store)
    store.checkpoint()
    cut_at(fs, store, FILE)
    fill(store, FILE + 1500)
    cut = store.log.end
    fill(store, FILE + 3000)
    cut_at(fs, store, cut)
    assert read_checkpoint(fs, CHECKPOINT).tail is None
    store.checkpoint()
    assert read_checkpoint(fs, CHECKPOINT).tail is None, "it keeps bytes of before the cut"
    fill(store, 2 * FILE + 1500)
    store.checkpoint()
    assert read_checkpoint(fs, CHECKPOINT).tail is not None


def write(fs: MemoryFiles, at: int, data: bytes) -> None:
    file = fs.open_map(CHECKPOINT, create=False)
    file.pwrite(at, memoryview(data))
    file.close()
