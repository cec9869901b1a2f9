"""A queue's entries: in memory until a checkpoint, then in its files; and nobody can tell by reading."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.broker.store.queue.consumequeue import ConsumeQueue, QueueFiles, QueueWrite, TopicHead
from skylark.broker.store.queue.entry import ENTRY, ENTRY_BYTES
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
