"""Reads with a filter by properties give the messages that it lets pass, and each of them once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.store import reader
from broker.store.filter import Filter
from broker.store.log.residency import NotResident, resident_only, warm
from broker.store.reader import GetStatus
from broker.store.store import MessageStore
from mqcommon.message.columns import record_starts
from mqcommon.message.flags import BORN_HOST_V6
from mqcommon.message.ids import encode_host
from mqcommon.message.record import decode_record
from tests.broker.store.support import BORN_HOST, open_store, put
from tests.support.memory_files import MemoryFiles

V6 = encode_host("::1", 5)


def wanted(raw: bytes) -> bool:
    assert raw.startswith(b"\x02") and raw.endswith(b"\x02")
    return b"\x02a\x011\x02" in raw


def read_on(store: MessageStore, topic: str, end: int, *, max_count: int = 32, max_bytes: int = 1 << 20) -> list[bytes]:
    """The bodies of all messages that match."""
    found: list[bytes] = []
    offset = 0
    while offset < end:
        result = store.get(topic, 0, offset, max_count, max_bytes, Filter(None, wanted, 7))
        assert result.next_offset > offset
        assert result.count <= max_count
        assert (result.status is GetStatus.FOUND) == (result.count > 0)
        records = [decode_record(result.records, at) for at in record_starts(result.records)]
        assert len(records) == result.count
        found += [record.body for record in records]
        offset = result.next_offset
    return found


@given(
    messages=st.lists(st.tuples(st.sampled_from(["1", "2", ""]), st.integers(0, 300), st.booleans()), max_size=60),
    max_count=st.integers(1, 8),
    max_bytes=st.sampled_from([1, 500, 1 << 20]),
    topic=st.sampled_from(["t", "t" * 200]),
    is_written=st.booleans(),
)
def test_a_queue_that_is_read_to_its_end(
    messages: list[tuple[str, int, bool]], max_count: int, max_bytes: int, topic: str, is_written: bool
) -> None:
    store = open_store(MemoryFiles())
    bodies = [b"%d" % number + b"x" * size for number, (_, size, _) in enumerate(messages)]
    for body, (value, _, is_v6) in zip(bodies, messages, strict=True):
        properties = f"b\x011\x02a\x01{value}\x02" if value else ""
        flag, host = (BORN_HOST_V6, V6) if is_v6 else (0, BORN_HOST)
        store.put(topic, 0, body, properties.encode(), born_timestamp=1, born_host=host, sys_flag=flag)
        put(store, "other", 0, b"between", b"a\x011\x02")
    if is_written:
        store.checkpoint()
    found = read_on(store, topic, len(messages), max_count=max_count, max_bytes=max_bytes)
    assert found == [body for body, (value, *_) in zip(bodies, messages, strict=True) if value == "1"]


def test_long_properties_end_a_read_early(monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(MemoryFiles())
    for _ in range(10):
        put(store, "t", 0, b"x", b"a\x012\x02" + b"b\x01" + b"x" * 100 + b"\x02")
    monkeypatch.setattr(reader, "MAX_PROPERTIES_BYTES", 250)
    result = store.get("t", 0, 0, 32, 1 << 20, Filter(None, wanted, 100))
    assert (result.status, result.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, 3)


def test_what_is_on_disk_only_is_read_by_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    files = MemoryFiles()
    store = open_store(files)
    for number in range(50):
        put(store, "t", 0, b"%d" % number, b"a\x01%d\x02" % (number % 2))
    store.checkpoint()
    monkeypatch.setattr(type(store.log), "is_recent", lambda log, offset: False)
    file = store.log.span(0, 100).file
    monkeypatch.setattr(type(file), "resident", lambda file, at, size: file.path.endswith("consumequeue"))
    monkeypatch.setattr("broker.store.queue.consumequeue.check_resident", lambda *_, **__: None)
    monkeypatch.setattr(reader, "COLD_MATCHING_BYTES", 1_000)
    found: list[bytes] = []
    offset = 0
    while offset < 50:
        with pytest.raises(NotResident) as cold, resident_only():
            store.get("t", 0, offset, 32, 1 << 20, Filter(None, wanted, 100))
        assert sum(span.size for span in cold.value.spans) <= 1_000
        with resident_only(warm(cold.value)):
            result = store.get("t", 0, offset, 32, 1 << 20, Filter(None, wanted, 100))
        found += [decode_record(result.records, at).body for at in record_starts(result.records)]
        offset = result.next_offset
    assert found == [b"%d" % number for number in range(1, 50, 2)]
