"""A queue's entries: in memory until a checkpoint, then in its files; and nobody can tell by reading."""

from functools import partial
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.broker.store.queue.consumequeue import ConsumeQueue, QueueFiles, QueueWrite, TopicHead
from skylark.broker.store.queue.entry import BLANK_SIZE, ENTRY, ENTRY_BYTES
from skylark.mqcommon.disk.files import FileSystem, OsFiles
from skylark.mqcommon.errors import DiskFull
from tests.broker.store.support import SMALL, bodies, open_store, put, put_batch
from tests.support.memory_files import MemoryFiles

PER_FILE = SMALL.consumequeue_segment_bytes // ENTRY_BYTES


def files_of(fs: MemoryFiles, topic: str) -> list[str]:
    return [path for path in fs.paths() if f"/consumequeue/{topic}/" in path]


def test_a_first_message_touches_no_file_of_its_queue() -> None:
    fs = MemoryFiles()
    store = open_store(fs)
    touched: list[str] = []
    fs.before_call = lambda operation, path: touched.append(path)
    for n in range(30):
        put(store, f"new-{n % 10}", n % 3, b"x")
    assert not [path for path in touched if "/consumequeue" in path]
    assert bodies(store, "new-1", 1) == [b"x"]
    store.checkpoint()
    assert len(files_of(fs, "new-1")) == 3
    assert sorted(queue.queue_id for queue in open_store(fs.killed()).queues if queue.topic == "new-1") == [0, 1, 2]


def test_what_a_checkpoint_wrote_survives_a_power_loss() -> None:
    fs = MemoryFiles()
    store = open_store(fs)
    put_batch(store, "t", 0, [b"x"] * 15)
    store.checkpoint()
    put(store, "t", 0, b"the last of its file")
    put(store, "t", 0, b"the first of the next")
    store.checkpoint()
    for seed in range(10):
        after = open_store(fs.crash(Random(seed)))
        assert bodies(after, "t", 0)[-2:] == [b"the last of its file", b"the first of the next"]


def test_a_deleted_topic_leaves_no_file_that_brings_it_back() -> None:
    fs = MemoryFiles()
    store = open_store(fs)
    put_batch(store, "t", 0, [b"x"] * PER_FILE)
    store.close()
    # A checkpoint that was killed had begun the next file.
    size = SMALL.consumequeue_segment_bytes
    fs.open_map(f"/store/consumequeue/t/0/{size:020d}", size, create=True).close()
    store = open_store(fs)
    store.delete_topic("t")
    store.checkpoint(with_ends=True)
    assert files_of(fs, "t") == []
    assert open_store(fs.killed()).max_offset("t", 0) == 0


def test_a_queue_that_cannot_be_written_stays_in_memory() -> None:
    fs = MemoryFiles()
    store = open_store(fs)
    put(store, "t", 0, b"written")
    store.checkpoint()
    durable = store.durable_end
    for topic in ("t", "u", "v"):
        put(store, topic, 0, b"x")
    fs.capacity = fs.used()
    with pytest.raises(DiskFull):
        store.checkpoint()
    assert store.durable_end == durable
    assert bodies(store, "u", 0) == [b"x"]
    killed = fs.killed()
    killed.capacity = 1 << 40
    assert bodies(open_store(killed), "u", 0) == [b"x"]
    fs.capacity = 1 << 40
    store.checkpoint()
    assert store.durable_end == store.log.end
    assert len(files_of(fs, "u")) == len(files_of(fs, "v")) == 1


def test_a_stop_on_a_full_disk_leaves_the_rest_to_the_next_start() -> None:
    fs = MemoryFiles()
    store = open_store(fs)
    put(store, "t", 0, b"x")
    fs.capacity = fs.used()
    assert "no room" in store.close()
    fs.capacity = 1 << 40
    after = open_store(fs)
    assert bodies(after, "t", 0) == [b"x"]
    assert after.close() == ""


def test_blocks_of_a_file_come_in_steps() -> None:
    def allocated(entries: int) -> list[int]:
        made: list[int] = []

        class File:
            def allocate(self, end: int) -> None:
                made.append(end)

            def pwrite(self, at: int, data: memoryview) -> None:
                assert len(data) == entries * ENTRY_BYTES

            def close(self) -> None: ...

        class Files(OsFiles):
            def open_map(self, *_: object, **__: object) -> File:  # type: ignore[override]
                return File()

        QueueWrite("d", 300_000 * ENTRY_BYTES, 0, bytes(entries * ENTRY_BYTES)).run(Files())
        return made

    assert [allocated(n) for n in (1, 204, 205, 4000, 5000, 300_000)] == [
        [4096], [4096], [8192], [81920], [163840], [6_000_000],
    ]  # fmt: skip


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 40)),
        st.tuples(st.just("write"), st.just(0)),
        st.tuples(st.just("append beside a write"), st.integers(1, 20)),
        st.tuples(st.just("cut"), st.integers(0, 60)),
        st.tuples(st.just("reopen"), st.just(0)),
    ),
    max_size=12,
)


@given(STEPS)
def test_reading_does_not_tell_where_the_entries_are(steps: list[tuple[str, int]]) -> None:
    fs = MemoryFiles()
    queue = new_queue(fs)
    model: list[tuple[int, int, int]] = []

    def append(count: int) -> None:
        for _ in range(count):
            entry = (len(model) * 100, 99, len(model) * 7)
            queue.append(*entry)
            model.append(entry)

    def write(beside: int = 0) -> None:
        step = queue.unwritten()
        append(beside)
        for file in step.run(fs):
            file.close()
        queue.written(step)

    for what, count in steps:
        if what == "append":
            append(count)
        elif what == "cut":
            if count < queue.next_offset:
                queue.move_to(count)
                del model[count:]
        elif what == "reopen":
            write()
            queue.close()
            if model:
                queue = new_queue(fs)
                assert queue.resume(0, len(model)) == model[-1][:2]
        else:
            write(count)
        assert queue.next_offset == len(model)
        assert [queue.entry(n) for n in range(len(model))] == model
        for start in range(0, len(model), 7):
            read = list(queue.entries(start, len(model) - start))
            assert read
            assert read == model[start : start + len(read)]


def new_queue(fs: FileSystem) -> ConsumeQueue:
    segment_bytes = PER_FILE * ENTRY_BYTES
    files = QueueFiles(fs, "/store/consumequeue", segment_bytes, lambda segment: None, lambda queue, number: None)
    return ConsumeQueue(files, TopicHead("t", 0, b"", 0), 0)


def test_a_queue_is_not_resumed_from_files_that_say_otherwise() -> None:
    def fresh() -> MemoryFiles:
        fs = MemoryFiles()
        queue = new_queue(fs)
        for n in range(5):
            queue.append(n * 100, 99, 0)
        for file in queue.unwritten().run(fs):
            file.close()
        return fs

    path = "/store/consumequeue/t/0/" + "0" * 20
    assert new_queue(fresh()).resume(0, 5) == (400, 99)
    assert new_queue(fresh()).resume(0, 4) is None
    assert new_queue(fresh()).resume(0, 6) is None
    for bad in (b"", bytes(PER_FILE * ENTRY_BYTES), ENTRY.pack(1, 2, 3) * 5):
        fs = fresh()
        fs.overwrite(path, bad)
        assert new_queue(fs).resume(0, 5) is None
    fs = fresh()
    fs.remove(path)
    assert new_queue(fs).resume(0, 5) is None


def written(fs: FileSystem, queue: ConsumeQueue) -> ConsumeQueue:
    """The queue after a checkpoint."""
    write = queue.unwritten()
    for file in write.run(fs):
        file.close()
    queue.written(write)
    return queue


def filled(count: int, *, is_written: bool) -> tuple[MemoryFiles, ConsumeQueue]:
    """A queue of messages of 10 bytes at 0, 10, 20 and so on."""
    fs = MemoryFiles()
    queue = new_queue(fs)
    for number in range(count):
        queue.append(number * 10, 10, number)
    return fs, written(fs, queue) if is_written else queue


@pytest.mark.parametrize("is_written", [False, True])
@pytest.mark.parametrize(("log_end", "end"), [(191, 20), (190, 19), (160, 16), (155, 16), (150, 15), (10, 1), (0, 0)])
def test_entries_past_the_end_of_the_log_are_dropped(log_end: int, end: int, is_written: bool) -> None:
    fs, queue = filled(20, is_written=is_written)
    queue.drop_past(log_end)
    assert queue.next_offset == end
    assert [queue.entry(offset)[0] for offset in range(end)] == [offset * 10 for offset in range(end)]
    again = new_queue(fs)
    assert again.load()
    again.find_ends(0, (0, 0), None)
    assert again.next_offset == (end if is_written else 0), "the files end there, too"


def test_blanks_before_entries_past_the_end_of_the_log_are_dropped_with_them() -> None:
    _, queue = filled(2, is_written=True)
    queue.move_to(5)
    queue.append(50, 10, 0)
    queue.drop_past(50)
    assert queue.next_offset == 2


def test_the_last_entry_is_that_of_the_last_message_and_not_a_blank() -> None:
    _, queue = filled(2, is_written=True)
    queue.move_to(5)
    assert queue.last_entry() == (1, 10, 10)
    assert new_queue(MemoryFiles()).last_entry() == (0, 0, 0)


@pytest.mark.parametrize(
    ("before", "physical", "is_after"),
    [((100, 50), 150, True), ((100, 50), 149, False), ((0, BLANK_SIZE), 1, True), ((0, 0), 150, False)],
)
def test_an_entry_is_after_the_one_before_it(before: tuple[int, int], physical: int, is_after: bool) -> None:
    fs = MemoryFiles()
    queue = new_queue(fs)
    queue.append(*before, 0)
    queue.append(physical, 10, 0)
    written(fs, queue)
    assert queue.is_after_previous(1, physical) is is_after
    assert queue.is_after_previous(0, 0), "a first entry has none before it"


def test_a_message_of_the_tail_that_is_not_blank_tells_where_the_files_end_in_the_log() -> None:
    _, queue = filled(2, is_written=True)
    assert queue.tail_start(99) == 99
    queue.move_to(4)
    assert queue.tail_start(99) == 99
    queue.append(70, 10, 0)
    assert queue.tail_start(99) == 70


def test_an_empty_queue_that_goes_on_far_later_leaves_no_earlier_file() -> None:
    fs, queue = filled(3, is_written=True)
    queue.continue_at(3)
    assert queue.is_empty
    queue.move_to(3 * PER_FILE + 2)
    assert files_of(fs, "t") == []
    queue.append(500, 10, 7)
    written(fs, queue)
    assert files_of(fs, "t") == [f"/store/consumequeue/t/0/{3 * PER_FILE * ENTRY_BYTES:020d}"]
    assert (queue.min_offset, queue.entry(3 * PER_FILE + 2)) == (3 * PER_FILE + 2, (500, 10, 7))


def test_a_queue_that_is_cut_before_its_first_file_starts_again_there() -> None:
    fs = MemoryFiles()
    queue = new_queue(fs)
    queue.move_to(2 * PER_FILE)
    queue.append(500, 10, 7)
    written(fs, queue)
    queue.move_to(5)
    assert files_of(fs, "t") == [] and (queue.min_offset, queue.next_offset) == (5, 5)


def test_readers_see_blanks_for_skipped_messages_until_these_are_mended() -> None:
    _, queue = filled(5, is_written=True)
    damaged = {1, 3}
    news = [queue.skip(offset, partial(damaged.__contains__, offset)) for offset in (1, 3, 1)]
    assert news == [True, True, False]
    sizes = [BLANK_SIZE if offset in damaged else 10 for offset in range(5)]
    assert [size for _, size, _ in queue.entries(0, 5)] == sizes
    damaged.remove(1)
    assert (queue.entry(1), queue.entry(3)[1]) == ((10, 10, 1), BLANK_SIZE)
    damaged.clear()
    assert list(queue.entries(0, 5)) == [(offset * 10, 10, offset) for offset in range(5)]
