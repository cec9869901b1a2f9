"""Reads with a filter give the messages that it lets pass, and each of them once."""

from hypothesis import given
from hypothesis import strategies as st

from broker.store.filter import Filter
from broker.store.reader import GetStatus
from mqcommon.message.columns import record_starts
from mqcommon.message.javahash import java_hash
from mqcommon.message.record import decode_record
from tests.broker.store.support import open_store, put
from tests.support.memory_files import MemoryFiles

# "Aa" and "BB" have the same hash.
TAGS = st.sampled_from(["", "Aa", "BB", "c"])


@given(
    tags=st.lists(TAGS, max_size=40),
    wanted=st.none() | st.frozensets(TAGS.filter(bool)),
    max_count=st.integers(1, 8),
    is_written=st.booleans(),
)
def test_a_queue_that_is_read_to_its_end(
    tags: list[str], wanted: frozenset[str] | None, max_count: int, is_written: bool
) -> None:
    store = open_store(MemoryFiles())
    for tag in tags:
        put(store, "t", 0, tag.encode(), f"TAGS\x01{tag}\x02".encode() if tag else b"")
    if is_written:
        store.checkpoint()
    codes = None if wanted is None else frozenset(map(java_hash, wanted))
    found: list[str] = []
    offset = 0
    while offset < len(tags):
        result = store.get("t", 0, offset, max_count, 1 << 20, Filter(codes))
        assert result.next_offset > offset
        assert result.count <= max_count
        assert (result.status is GetStatus.FOUND) == (result.count > 0)
        found += [decode_record(result.records, at).body.decode() for at in record_starts(result.records)]
        offset = result.next_offset
    assert found == [tag for tag in tags if codes is None or (tag and java_hash(tag) in codes)]
