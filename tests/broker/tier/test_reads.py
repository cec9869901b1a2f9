"""What has left the store is read from the bucket, as if it were still in the log."""

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.broker.store.filter import ALL, Filter
from skylark.broker.store.reader import GetStatus, read_queue
from skylark.broker.store.store import MessageStore
from skylark.mqcommon.message.columns import record_starts
from skylark.mqcommon.message.javahash import java_hash
from skylark.mqcommon.message.record import Record, decode_record
from tests.broker.store.support import open_store, put, put_inner
from tests.broker.tier.uploaded import Uploaded, asked
from tests.support.memory_files import MemoryFiles


def wanted(raw: bytes) -> bool:
    return b"\x02a\x011\x02" in raw


FILTERS = {
    "all": ALL,
    "tag": Filter(frozenset({java_hash("Aa")})),
    "sql": Filter(None, wanted, 7),
    "none": Filter(frozenset({1})),
}


def read_on(
    store: MessageStore, queue_id: int, wanted: Filter, max_count: int, max_bytes: int, *, unwraps: bool = False
) -> list[tuple[int, bytes]]:
    """(queue offset, record) of all messages of topic t that match, read as a consumer does from offset 0 on."""
    found: list[tuple[int, bytes]] = []
    queue = store.queues.find("t", queue_id)
    assert queue is not None
    offset = 0
    while offset < queue.next_offset:
        result = asked(
            partial(read_queue, store.log, queue, offset, max_count, max_bytes, wanted, unwraps=unwraps)  # noqa: B023
        )
        assert result.status in (GetStatus.FOUND, GetStatus.NO_MATCHED_MESSAGE)
        assert (result.status is GetStatus.FOUND) == (result.count > 0)
        assert result.next_offset > offset and (unwraps or result.count <= max_count)
        for at in record_starts(result.records):
            record = decode_record(result.records, at)
            found.append((record.queue_offset, result.records[at : at + record.size]))
        offset = result.next_offset
    return found


MESSAGES = st.tuples(
    st.integers(0, 2),
    st.sampled_from([b"", b"TAGS\x01Aa\x02", b"TAGS\x01BB\x02a\x011\x02", b"a\x011\x02"]),
    st.sampled_from([1, 50, 700]),
)


@given(
    messages=st.lists(MESSAGES, min_size=20, max_size=120),
    name=st.sampled_from(sorted(FILTERS)),
    max_count=st.integers(1, 9),
    max_bytes=st.sampled_from([1, 500, 1 << 20]),
    removed=st.integers(1, 20),
)
def test_a_reader_from_the_first_message_on_gets_the_same_messages_as_from_the_log(
    messages: list[tuple[int, bytes, int]], name: str, max_count: int, max_bytes: int, removed: int
) -> None:
    fs = MemoryFiles()
    store = open_store(fs)
    for number, (queue_id, properties, size) in enumerate(messages):
        put(store, "t", queue_id, b"%d" % number + b"x" * size, properties)
        put(store, "other", 0, b"between", b"a\x011\x02")
    queues = [queue for queue in store.queues if queue.topic == "t"]
    before = {q.queue_id: read_on(store, q.queue_id, FILTERS[name], max_count, max_bytes) for q in queues}
    Uploaded(fs, store).clean(removed)
    for queue in queues:
        assert read_on(store, queue.queue_id, FILTERS[name], max_count, max_bytes) == before[queue.queue_id]
        assert asked(partial(store.min_offset, "t", queue.queue_id)) == 0


@given(
    batches=st.lists(st.lists(st.sampled_from([b"", b"Aa", b"BB"]), min_size=1, max_size=6), min_size=30, max_size=60),
    name=st.sampled_from(sorted(FILTERS)),
    max_count=st.integers(1, 9),
    unwraps=st.booleans(),
)
def test_a_reader_of_inner_batches_gets_the_same_messages_as_from_the_log(
    batches: list[list[bytes]], name: str, max_count: int, unwraps: bool
) -> None:
    fs = MemoryFiles()
    store = open_store(fs)
    store.queues.use_kinds(lambda topic: topic == "t")
    for number, tags in enumerate(batches):
        rows = [(0, b"%d" % number * 30, b"TAGS\x01%s\x02" % tag if tag else b"a\x011\x02") for tag in tags]
        put_inner(store, "t", 0, rows, tags[0] if tags[0] and len(set(tags)) == 1 else None)
    before = read_on(store, 0, FILTERS[name], max_count, 1 << 20, unwraps=unwraps)
    assert Uploaded(fs, store).clean()
    assert read_on(store, 0, FILTERS[name], max_count, 1 << 20, unwraps=unwraps) == before
