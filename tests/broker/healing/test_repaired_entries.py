"""Messages whose entries a start could not make of damaged bytes get them when the block is right again."""

import logging
from random import Random

import pytest

from skylark.broker.healing.repaired_entries import MOST_BLANKS, fill_blanks, records_in
from skylark.broker.healing.rewriting import LogBlocks
from skylark.broker.store.queue.entry import BLANK_SIZE, ENTRY, ENTRY_BYTES
from skylark.broker.store.reader import GetStatus
from skylark.broker.store.store import MessageStore
from skylark.broker.store.sums.block_sums import Block
from skylark.broker.writing.light import LightQueues
from skylark.mqcommon.message.record import Record, decode_record
from tests.broker.store.support import BORN_HOST, open_store, put
from tests.support.memory_files import MemoryFiles

BLANK = ENTRY.pack(0, BLANK_SIZE, 0)
COUNT, MISSING = 9, 4
QUEUE_FILE = f"/store/consumequeue/t/0/{0:020d}"


def filled_store(fs: MemoryFiles, count: int = COUNT) -> MessageStore:
    store = open_store(fs)
    for number in range(count):
        put(store, "t", 0, b"message %d" % number, b"TAGS\x01a\x02")
    store.checkpoint(with_ends=True)
    return store


def entries(store: MessageStore, topic: str = "t") -> list[tuple[int, int, int]]:
    queue = store.queues.get(topic, 0)
    return [queue.entry(offset) for offset in range(queue.min_offset, queue.next_offset)]


def blank_out(store: MessageStore, *offsets: int, topic: str = "t") -> None:
    queue = store.queues.get(topic, 0)
    for offset in offsets:
        assert queue.replace_entries(offset, ENTRY.pack(*queue.entry(offset)), BLANK) == [offset]


def records(fs: MemoryFiles, store: MessageStore, block: Block | None = None) -> list[Record]:
    """The records of ``block``, by default of the first file of the log."""
    segment = store.log.chain.at(block.start if block else 0)
    assert segment is not None
    block = block or Block(0, min(segment.end, store.log.end))
    return records_in(LogBlocks(fs, "/store"), segment, block, store.log.end)


async def fill(store: MessageStore, found: list[Record], *, is_current: bool = True) -> int:
    return await fill_blanks(store, found, lambda: is_current)


async def test_a_blank_entry_is_filled_with_the_record_that_belongs_there(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    store = filled_store(fs := MemoryFiles())
    before = entries(store)
    blank_out(store, MISSING)
    assert store.get("t", 0, MISSING, 1, 1000).status is GetStatus.NO_MATCHED_MESSAGE
    assert await fill(store, records(fs, store)) == 1
    assert entries(store) == before
    assert decode_record(store.get("t", 0, MISSING, 1, 1000).records).body == b"message %d" % MISSING
    assert await fill(store, records(fs, store)) == 0
    assert [each.getMessage() for each in caplog.records] == [
        "readers find messages of a repaired block again: 1 of queue t/0, from offset 4 on"
    ]


async def test_a_record_of_an_earlier_topic_of_the_name_fills_no_blank() -> None:
    store = filled_store(fs := MemoryFiles())
    of_earlier_topic = records(fs, store)
    store.delete_topic("t")
    for number in range(COUNT):
        put(store, "t", 0, b"new %d" % number)
    store.checkpoint(with_ends=True)
    blank_out(store, MISSING)
    assert await fill(store, of_earlier_topic) == 0


async def test_a_long_hole_is_filled_from_its_start_on_only() -> None:
    store = filled_store(fs := MemoryFiles(), 2 * MOST_BLANKS + 20)
    before, hole = entries(store), range(5, 2 * MOST_BLANKS + 10)
    found = [record for block in store.log.sums.blocks(0, store.log.end) for record in records(fs, store, block)]
    assert [record.queue_offset for record in found] == list(range(len(before)))
    blank_out(store, *hole)
    middle = hole.start + MOST_BLANKS + 1
    assert await fill(store, found[middle : middle + 1]) == 0, "no message near says whether the record belongs there"
    assert await fill(store, found) == len(hole) and entries(store) == before


async def test_a_record_that_begins_before_the_block_or_ends_after_it_belongs_to_it() -> None:
    store = filled_store(fs := MemoryFiles())
    (start, size, _), (after, *_), *_ = entries(store)[MISSING:]
    topic_only = Block(start + size - 12, 2)
    assert [record.queue_offset for record in records(fs, store, topic_only)] == [MISSING]
    assert [record.queue_offset for record in records(fs, store, Block(after - 1, 2))] == [MISSING, MISSING + 1]


async def test_bytes_after_the_block_that_the_disk_cannot_read_keep_nobody_from_the_block() -> None:
    fs = MemoryFiles()
    store = open_store(fs)
    put(store, "t", 0, bytes(3000))
    put(store, "t", 0, bytes(3000))
    store.checkpoint(with_ends=True)
    path = store.log.chain.segments[0].path
    fs.make_unreadable(path, 4096, 512)
    fs.cold.mark(path)
    assert [record.queue_offset for record in records(fs, store, Block(0, 2048))] == [0]


async def test_light_queues_get_their_entries_too() -> None:
    store = open_store(fs := MemoryFiles())
    light = LightQueues(store, 100)
    for number in range(COUNT):
        properties = b"INNER_MULTI_DISPATCH\x01%LMQ%a\x02"
        light.put("t", 0, b"message %d" % number, properties, born_timestamp=1, born_host=BORN_HOST)
    store.checkpoint(with_ends=True)
    before = entries(store, "%LMQ%a")
    assert len(before) == COUNT
    blank_out(store, MISSING, topic="%LMQ%a")
    assert await fill(store, records(fs, store)) == 1 and entries(store, "%LMQ%a") == before


async def test_entries_that_are_on_disk_only_are_read_in_a_thread() -> None:
    store = filled_store(fs := MemoryFiles())
    before = entries(store)
    blank_out(store, MISSING)
    fs.cold.mark(QUEUE_FILE)
    assert await fill(store, records(fs, store)) == 1 and entries(store) == before


async def test_entries_that_the_disk_cannot_read_are_named(caplog: pytest.LogCaptureFixture) -> None:
    store = filled_store(fs := MemoryFiles())
    blank_out(store, MISSING)
    found = records(fs, store)[MISSING : MISSING + 1]
    fs.make_unreadable(QUEUE_FILE, 0, 512)
    fs.cold.mark(QUEUE_FILE)
    assert await fill(store, found) == 0
    (line,) = [each.getMessage() for each in caplog.records]
    assert line.startswith("the entry of message 4 of queue t/0 cannot be read, so readers may skip the message: ")


async def test_filled_entries_survive_a_power_loss() -> None:
    store = filled_store(fs := MemoryFiles())
    before = entries(store)[MISSING]
    blank_out(store, MISSING)
    store.queues.get("t", 0).chain.segments[0].file.sync()
    assert await fill(store, records(fs, store)) == 1
    for seed in range(10):
        after = fs.crash(Random(seed)).read(QUEUE_FILE)
        assert ENTRY.unpack_from(after, MISSING * ENTRY_BYTES) == before


async def test_nothing_is_filled_when_the_log_was_cut_meanwhile() -> None:
    store = filled_store(fs := MemoryFiles())
    blank_out(store, MISSING)
    assert await fill(store, records(fs, store), is_current=False) == 0
