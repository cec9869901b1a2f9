"""A batch queue against a list of batches: whatever is added, written, cut and opened again."""

import struct
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.broker.store.queue.batch_queue import BatchAt, BatchConsumeQueue
from skylark.broker.store.queue.entry import BATCH_ENTRY, BLANK_SIZE, messages_in
from skylark.broker.store.store import MessageStore
from skylark.mqcommon.disk.files import FileSystem
from skylark.mqcommon.message.flags import INNER_BATCH
from skylark.mqcommon.message.record import decode_record
from tests.broker.store.support import SMALL, new_store, put, put_inner
from tests.broker.store.support import open_store as open_plain
from tests.support.memory_files import MemoryFiles

PATH = "/store/batchconsumequeue/b/0/00000000000000000000"


def open_store(fs: FileSystem) -> MessageStore:
    store = open_plain(fs)
    store.queues.use_kinds(lambda topic: topic == "b")
    return store


def queue_of(store: MessageStore) -> BatchConsumeQueue:
    queue = store.queues.get("b", 0)
    assert isinstance(queue, BatchConsumeQueue)
    return queue


def rows(count: int) -> list[tuple[int, bytes, bytes]]:
    return [(0, b"%d" % number, b"") for number in range(count)]


def test_the_layout_is_rocketmqs() -> None:
    fs = MemoryFiles()
    store = open_store(fs)
    put(store, "b", 0, b"alone", b"TAGS\x01a\x02")
    result = put_inner(store, "b", 0, rows(5))
    store.close()
    single, batch = (fs.read(PATH)[at : at + 46] for at in (0, 46))
    wanted = (result.physical_offsets[0], result.end - result.physical_offsets[0], 0, result.store_timestamp)
    assert batch == struct.pack(">qiqqqhii", *wanted, 1, 5, -1, 0)
    assert struct.unpack(">qiqqqhii", single)[2:] == (97, result.store_timestamp, 0, 1, -1, 0)


def test_a_message_is_found_in_its_batch() -> None:
    store = open_store(MemoryFiles())
    places = [put_inner(store, "b", 0, rows(count)).physical_offsets[0] for count in (3, 1, 30, 2)]
    store.checkpoint()
    places += [put_inner(store, "b", 0, rows(count)).physical_offsets[0] for count in (4, 1)]
    queue = queue_of(store)
    found = [queue.entry(offset)[0] for offset in range(queue.next_offset)]
    assert found == [place for place, many in zip(places, (3, 1, 30, 2, 4, 1), strict=True) for _ in range(many)]


def test_messages_that_are_missing_are_blank_and_skipped() -> None:
    queue = queue_of(open_store(MemoryFiles()))
    queue.append(0, 10, 7, 1, 2)
    queue.move_to(5)
    queue.append(10, 10, 8, 1, 2)
    blank = (0, BLANK_SIZE, 0)
    assert list(queue.entries(1, 5)) == [(0, 10, 7), blank, blank, blank, (10, 10, 8)]
    assert queue.entry(3) == (10, 10, 8)
    assert [batch.base for batch in queue.batches(2)] == [5]


@pytest.mark.parametrize("batch", [False, True])
def test_a_queue_that_had_no_message_is_of_the_kind_of_its_topic(batch: bool) -> None:
    fs = MemoryFiles()
    store = open_plain(fs)
    store.queues.use_kinds(lambda topic: not batch)
    put(store, "b", 0, b"x")
    store.checkpoint()
    store.delete_topic("b")
    store.checkpoint(with_ends=True)
    store.close()
    store = open_plain(fs)
    store.queues.use_kinds(lambda topic: batch)
    put(store, "b", 0, b"x")
    assert store.queues.get("b", 0).is_batch == batch == store.queues.keeps_batches("b", 0)
    store.close()
    assert open_plain(fs).queues.get("b", 0).is_batch == batch


def test_a_torn_entry_is_none() -> None:
    whole = BATCH_ENTRY.pack(100, 50, 0, 1, 0, 300, -1, 0)
    for cut in range(38):
        assert not BatchAt._make(BATCH_ENTRY.unpack(whole[:cut].ljust(46, b"\0"))).is_entry
    assert BatchAt._make(BATCH_ENTRY.unpack(whole)).is_entry


@pytest.mark.parametrize("seed", range(20))
def test_what_a_killed_process_wrote_past_the_checkpoint_is_made_again(seed: int) -> None:
    fs = MemoryFiles()
    store = open_store(fs)
    for number in range(30):
        put_inner(store, "b", 0, rows(1 + number % 7))
        if number == 9:
            store.checkpoint()
    for _, write in store.take_queues(store.begin_checkpoint()):
        for file in write.run(fs):
            file.close()
    expected = list(queue_of(store).batches(0))
    killed = fs.killed()
    assert list(queue_of(open_plain(killed)).batches(0)) == expected
    left = killed.crash(Random(seed))
    again = open_plain(left)
    assert list(queue_of(again).batches(0)) == expected
    again.close()
    assert list(queue_of(open_plain(left)).batches(0)) == expected


@given(st.integers(0, 2**32))
def test_a_batch_queue_is_a_list_of_batches(seed: int) -> None:
    random = Random(seed)
    fs = MemoryFiles()
    store = open_store(fs)
    known: list[BatchAt] = []
    for _ in range(40):
        queue = queue_of(store)
        what = random.random()
        if what < 0.6:
            many = random.choice([1, 2, 9])
            result = put_inner(store, "b", 0, rows(many))
            start = result.physical_offsets[0]
            known.append(BatchAt(start, result.end - start, 0, result.store_timestamp, result.queue_offset, many))
        elif what < 0.75:
            store.checkpoint(with_ends=random.random() < 0.5)
        elif what < 0.8:
            store.close()
            store = open_store(fs)
        elif what < 0.9:
            fs = fs.killed()
            store = open_store(fs)
        elif known:
            # As recovery does, when a later message has the number of an earlier one.
            first = random.choice(known)
            queue.move_to(first.base)
            for batch in known[known.index(first) :]:
                queue.append(*batch[:4], batch.messages)
            store.queues.touch(queue)
            store.checkpoint()
        queue = queue_of(store)
        assert list(queue.batches(0)) == known
        assert queue.next_offset == (known[-1].end if known else 0)
        for batch in known[:: max(len(known) // 4, 1)]:
            assert queue.entry(batch.base) == queue.entry(batch.end - 1) == batch[:3]
        if random.random() < 0.7:
            continue
        place = random.choice(known).physical if known else 0
        store.checkpoint()
        search = queue.bounds_search()
        assert search.run(place) == next((batch.base for batch in known if batch.physical >= place), 0)
        assert search.find_end(place) == max((batch.end for batch in known if batch.physical < place), default=0)


def test_files_before_the_start_go() -> None:
    fs = MemoryFiles()
    store = open_store(fs)
    for _ in range(3 * SMALL.batchqueue_segment_bytes // 46):
        put_inner(store, "b", 0, rows(10))
    store.checkpoint()
    queue = queue_of(store)
    queue.start_at(55)
    queue.chain.remove_retired()
    assert (queue.min_offset, queue.next_offset) == (55, 120)
    assert [batch.base for batch in queue.batches(55)] == list(range(50, 120, 10))
    assert len([path for path in fs.paths() if "/batchconsumequeue/" in path]) == 2


@pytest.mark.parametrize("goes_on", [False, True])
def test_the_first_batch_makes_a_plain_queue_a_batch_queue(goes_on: bool) -> None:
    """RocketMQ does not mark single messages of batch queues, so they may have made a plain one."""
    fs = MemoryFiles()
    store = open_plain(fs)
    for _ in range(5):
        put(store, "b", 0, b"x")
    store.checkpoint()
    plain = store.queues.get("b", 0)
    found = store.queues.of_record("b", 0, 0x80, 5 if goes_on else 0)
    assert isinstance(found, BatchConsumeQueue) and found is store.queues.get("b", 0) is not plain
    assert [batch.base for batch in found.batches(0)] == (list(range(5)) if goes_on else [])
    assert not [path for path in fs.paths() if "/consumequeue/b/" in path]
    assert store.queues.of_record("b", 0, 0, 5) is found


PER_FILE = SMALL.batchqueue_segment_bytes // BATCH_ENTRY.size


def filled(count: int, *, is_written: bool) -> tuple[MemoryFiles, MessageStore, BatchConsumeQueue]:
    """A queue of ``count`` batches with 3 messages each."""
    fs = MemoryFiles()
    store = open_store(fs)
    for _ in range(count):
        put_inner(store, "b", 0, rows(3))
    if is_written:
        store.checkpoint()
    return fs, store, queue_of(store)


@pytest.mark.parametrize("is_written", [False, True])
@pytest.mark.parametrize("kept", range(7))
def test_entries_past_the_end_of_the_log_are_dropped(kept: int, is_written: bool) -> None:
    _, _, queue = filled(6, is_written=is_written)
    known = list(queue.batches(0))
    end = known[kept].physical if kept < 6 else known[-1].physical + 1
    queue.drop_past(end)
    assert (list(queue.batches(0)), queue.next_offset) == (known[:kept], 3 * kept)


@pytest.mark.parametrize("offset", [0, 1, 3, 11, 12, 17])
def test_entries_that_are_taken_back_are_written_once_more(offset: int) -> None:
    fs, store, queue = filled(6, is_written=True)
    known = list(queue.batches(0))
    queue.take_back(offset, 0)
    queue.take_back(17, 0)  # it is there already
    taken = known[offset // 3 :]
    assert list(queue.batches(0)) == known
    assert queue.tail() == b"".join(BATCH_ENTRY.pack(*each) for each in taken)
    assert not any(fs.read(f"{PATH[:-20]}{5 // PER_FILE * PER_FILE * 46:020d}")[5 % PER_FILE * 46 :][:46])
    store.queues.touch(queue)
    store.close()
    assert list(queue_of(open_store(fs)).batches(0)) == known


def test_a_record_that_the_queue_has_leaves_later_entries_as_they_are() -> None:
    _, store, queue = filled(4, is_written=True)
    known = list(queue.batches(0))
    raw = store.log.record_at(known[1].physical)
    assert raw is not None
    record = decode_record(raw)
    queue.put_record(record, 0)
    assert list(queue.batches(0)) == known
    moved = record._replace(physical_offset=known[3].physical + known[3].size)
    queue.put_record(moved, 0)
    assert [(batch.base, batch.physical) for batch in queue.batches(0)] == [
        (0, known[0].physical),
        (3, moved.physical_offset),
    ]


def fresh_of(fs: MemoryFiles) -> BatchConsumeQueue:
    """The queue as a start sees it, before its files are looked at."""
    queue = new_store(fs).queues.of_record("b", 0, INNER_BATCH, 0)
    assert isinstance(queue, BatchConsumeQueue)
    return queue


def test_a_queue_is_resumed_from_files_that_end_as_noted_only() -> None:
    fs, store, queue = filled(6, is_written=True)
    last = queue.last_entry()
    store.close()
    assert fresh_of(fs).resume(0, 18) == last[1:]
    assert fresh_of(fs).resume(0, 15) is None
    assert fresh_of(fs).resume(0, 21) is None
    assert fresh_of(MemoryFiles()).resume(0, 18) is None
    fs.overwrite(PATH, fs.read(PATH)[:46])
    assert fresh_of(fs).resume(0, 18) is None, "its first file is short"


def test_a_file_that_was_begun_and_has_no_entry_is_not_part_of_the_queue() -> None:
    fs, store, _ = filled(PER_FILE, is_written=True)
    store.close()
    size = SMALL.batchqueue_segment_bytes
    fs.open_map(f"{PATH[:-20]}{size:020d}", size, create=True).close()
    queue = fresh_of(fs)
    assert queue.load()
    assert not queue.find_ends(0, (0, 0), None)
    assert (queue.min_offset, queue.next_offset, queue.chain.end) == (0, 3 * PER_FILE, size)
    assert fs.paths().count(f"{PATH[:-20]}{size:020d}") == 0


def test_only_an_entry_that_points_past_the_one_before_it_is_after_it() -> None:
    _, _, queue = filled(3, is_written=True)
    _, second, third = queue.batches(0)
    assert queue.is_after_previous(third.base, second.physical + second.size)
    assert not queue.is_after_previous(third.base, second.physical + second.size - 1)
    segment = queue.chain.at(0)
    assert segment is not None
    segment.file.pwrite(46, memoryview(bytes(46)))
    assert not queue.is_after_previous(third.base, third.physical), "the entry before it is none"


def test_messages_that_are_missing_at_the_end_have_no_entries() -> None:
    queue = queue_of(open_store(MemoryFiles()))
    queue.append(0, 10, 7, 1, 2)
    queue.move_to(5)
    assert list(queue.entries(0, 9)) == [(0, 10, 7)] * 2


def test_a_record_that_does_not_say_how_many_messages_it_has_counts_as_one() -> None:
    _, store, queue = filled(1, is_written=False)
    raw = store.log.record_at(queue.entry(0)[0])
    assert raw is not None
    record = decode_record(raw)
    assert messages_in(record) == 3
    for number in (b"", b"x", b"-1"):
        assert messages_in(record._replace(properties=b"INNER_NUM\x01%s\x02" % number)) == 1
