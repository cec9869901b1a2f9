"""The noted ends equal the queues' ends, whatever failed before: a start misses no queue, and seeks no removed one."""

import errno
from contextlib import suppress
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from skylark.broker.store.queue.ends import read_queue_ends
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
