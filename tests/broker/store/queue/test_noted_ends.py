"""The noted ends equal the queues' ends, whatever failed before: a start misses no queue, and seeks no removed one."""

import errno
from contextlib import suppress
from typing import Any

import cbor2
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from skylark.broker.store.queue.ends import (
    FILE_NAME,
    SINCE_NAME,
    QueueEnds,
    is_whole_since,
    read_queue_ends,
    write_queue_ends,
)
from skylark.mqcommon.disk.atomic import read_with_crc, write_with_crc
from skylark.mqcommon.errors import DiskFull, OutOfDescriptors
from tests.broker.store.support import open_store, put
from tests.support.memory_files import MemoryFiles

TOPICS = ("t", "u")
topics = st.sampled_from(TOPICS)
#: Where removals fail: at files of queues. A checkpoint that cannot remove `queueEnds.since` ends the store.
PATH_PARTS = {"remove": "/consumequeue/"}
#: Which call of a checkpoint fails, and how; none of them ends the store.
faults = st.one_of(
    st.tuples(st.sampled_from(["allocate", "create", "write"]), st.integers(1, 4), st.just(errno.ENOSPC)),
    st.tuples(st.sampled_from(["open", "sync", "fsync_dir"]), st.integers(1, 6), st.just(errno.EMFILE)),
    st.tuples(st.just("remove"), st.integers(1, 2), st.just(errno.EIO)),  # see PATH_PARTS
)
steps = st.one_of(
    st.tuples(st.just("put"), topics, st.integers(0, 2)),
    st.tuples(st.just("delete"), topics),
    st.tuples(st.just("checkpoint"), st.booleans(), st.none() | faults),
    st.tuples(st.just("note ends")),
)


MADE = ("put", "t", 0), ("checkpoint", True, None)
FAILED = "checkpoint", True, ("fsync_dir", 1, errno.EMFILE)
FAILED_EARLY = "checkpoint", True, ("remove", 1, errno.EIO)


@given(st.lists(steps, max_size=30))
@example([*MADE, ("delete", "t"), FAILED_EARLY])
@example([*MADE, ("delete", "t"), ("put", "t", 1), FAILED, ("note ends",), ("put", "t", 2)])
@example([*MADE, ("delete", "t"), FAILED, ("put", "t", 1), FAILED, ("put", "t", 2), FAILED])
def test_noted_ends_are_those_of_the_queues(todo: list[tuple[Any, ...]]) -> None:
    fs = MemoryFiles()
    store = open_store(fs)
    for name, *rest in todo:
        match name, rest:
            case "put", [str(topic), int(queue_id)]:
                put(store, topic, queue_id, b"x")
            case "delete", [str(topic)]:
                store.delete_topic(topic)
            case "checkpoint", [bool(with_ends), fault]:
                if fault is not None:
                    operation, nth, code = fault
                    fs.faults.fail(operation, nth=nth, code=code, path_part=PATH_PARTS.get(operation, ""))
                with suppress(DiskFull, OSError, OutOfDescriptors):
                    store.checkpoint(with_ends=with_ends)
                fs.faults.clear()
            case _:
                store.flush()
                store.note_ends(store.ends_now())
    store.checkpoint(with_ends=True)
    ends = read_queue_ends(fs, "/store")
    assert ends is not None
    assert {topic: by_id for topic, by_id in ends.queues.items() if by_id} == {
        topic: by_id for topic, by_id in store.queues.ends().items() if by_id
    }


def test_no_descriptor_for_the_noted_ends_leaves_the_last_ones() -> None:
    fs = MemoryFiles()
    fs.mkdirs("/store")
    before = QueueEnds(7, {"t": {0: (1, 5)}}, {"20260101": 9}, (("u", 1),))
    write_queue_ends(fs, "/store", before)
    assert read_queue_ends(fs, "/store") == before
    fs.faults.fail("create", code=errno.EMFILE)
    with pytest.raises(OutOfDescriptors):
        write_queue_ends(fs, "/store", QueueEnds(8))
    fs.faults.clear()
    assert read_queue_ends(fs, "/store") == before


def test_ends_that_another_version_noted_are_not_read() -> None:
    fs = MemoryFiles()
    fs.mkdirs("/store")
    write_queue_ends(fs, "/store", QueueEnds(7))
    version, *rows = cbor2.loads(read_with_crc(fs, f"/store/{FILE_NAME}") or b"")
    write_with_crc(fs, f"/store/{FILE_NAME}", cbor2.dumps([version + 1, *rows]))
    assert read_queue_ends(fs, "/store") is None


def test_additions_to_the_noted_ends_are_whole_frames() -> None:
    fs = MemoryFiles()
    store = open_store(fs)
    for topic in TOPICS:
        put(store, topic, 0, b"x")
        store.checkpoint(with_ends=topic == TOPICS[0])
    put(store, "t", 1, b"x")
    store.checkpoint()
    data = fs.read(f"/store/{SINCE_NAME}")
    assert is_whole_since(data)
    assert not any(is_whole_since(data[:size]) for size in range(len(data) - 1, len(data) // 2 + 8, -1))
    for at in range(4, len(data)):
        assert not is_whole_since(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]), f"byte {at}"
    assert not is_whole_since(data + bytes(8)), "zeros at the end"
