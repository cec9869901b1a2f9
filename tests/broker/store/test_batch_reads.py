"""Reads of batch queues: from any offset, whole batches or single messages, by tags and by properties."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.store.filter import ALL, Filter
from broker.store.log.residency import NotResident, resident_only, warm
from broker.store.queue.entry import MIXED_TAGS, shared_tag, uniform_rows
from broker.store.reader import GetResult, GetStatus, read_queue
from broker.store.store import MessageStore
from mqcommon.errors import ProtocolError
from mqcommon.message.batch import decode_batch, encode_batch
from mqcommon.message.columns import record_starts
from mqcommon.message.flags import WRAPPED
from mqcommon.message.inner import inner_records
from mqcommon.message.javahash import java_hash
from mqcommon.message.record import Record, decode_record
from tests.broker.store.support import open_store, put, put_inner
from tests.support.memory_files import MemoryFiles

Row = tuple[int, bytes, bytes]
RED, BLUE = b"TAGS\x01red\x02", b"TAGS\x01blue\x02"
TAGS = [b"", RED, BLUE]


def batch_store() -> MessageStore:
    store = open_store(MemoryFiles())
    store.queues.use_kinds(lambda topic: topic == "b")
    return store


def filled(random: Random) -> tuple[MessageStore, list[Row]]:
    """A store, and the messages of its queue."""
    store, sent = batch_store(), []
    for number in range(random.randrange(1, 12)):
        tags = random.choice([[b""], [RED], TAGS])
        rows = [(each, b"%d-%d" % (number, each), random.choice(tags)) for each in range(random.choice([1, 2, 9, 30]))]
        if len(rows) == 1:
            put(store, "b", 0, rows[0][1], rows[0][2])
        else:
            put_inner(store, "b", 0, rows, shared_tag(rows))
        sent += rows
    return store, sent


def read(store: MessageStore, offset: int, count: int, wanted: Filter = ALL, *, unwraps: bool = False) -> GetResult:
    queue = store.queues.find("b", 0)
    return read_queue(store.log, queue, offset, count, 1 << 20, wanted, store.confirmed, unwraps=unwraps)


def messages(result: GetResult) -> list[Record]:
    """The messages as a client sees them, which takes batches apart."""
    records = [decode_record(result.records, at) for at in record_starts(result.records)]
    return [
        each
        for record in records
        for each in (inner_records(record) if record.sys_flag & WRAPPED == WRAPPED else [record])
    ]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.booleans(), st.sampled_from(["all", "tag", "properties"]))
def test_every_message_is_read_once_from_any_offset(seed: int, unwraps: bool, how: str) -> None:
    random = Random(seed)
    store, sent = filled(random)
    wanted = {
        "all": ALL,
        "tag": Filter(frozenset({java_hash("red")})),
        "properties": Filter(None, lambda properties: RED in properties, 100),
    }[how]
    first = offset = random.randrange(len(sent))
    found: list[Record] = []
    while offset < len(sent):
        result = read(store, offset, random.choice([1, 7, 32]), wanted, unwraps=unwraps)
        assert result.status in (GetStatus.FOUND, GetStatus.NO_MATCHED_MESSAGE)
        assert offset < result.next_offset <= len(sent)
        here = messages(result)
        assert result.count == len(here)
        assert all(offset <= record.queue_offset < result.next_offset for record in here)
        found += here
        offset = result.next_offset
    if unwraps and how == "tag":
        # A batch with different tags comes whole, and the client looks at the tags.
        found = [record for record in found if record.properties == RED]
    expected = [
        (number, flag, body)
        for number, (flag, body, properties) in enumerate(sent)
        if number >= first and (how == "all" or properties == RED)
    ]
    assert [(record.queue_offset, record.body) for record in found] == [(n, body) for n, _, body in expected]


def test_a_reader_that_cannot_take_batches_apart_gets_as_many_as_it_asks_for() -> None:
    store = batch_store()
    rows = [(7, b"%d" % number, RED) for number in range(30)]
    physical = put_inner(store, "b", 0, rows).physical_offsets[0]
    result = read(store, 3, 10)
    found = messages(result)
    assert (result.count, result.next_offset, result.max_offset) == (10, 13, 30)
    assert [record.body for record in found] == [b"%d" % number for number in range(3, 13)]
    assert {(record.flag, record.sys_flag, record.physical_offset) for record in found} == {(7, 0, physical)}
    whole = read(store, 0, 10, unwraps=True)
    assert (whole.count, whole.next_offset, len(record_starts(whole.records))) == (30, 30, 1)


def test_a_part_of_the_log_that_is_not_confirmed_is_hidden() -> None:
    store = batch_store()
    put_inner(store, "b", 0, [(0, b"x", b"")] * 5)
    end = store.log.end
    put_inner(store, "b", 0, [(0, b"y", b"")] * 5)
    store.confirmed = lambda: end
    assert store.visible_end("b", 0) == 5
    assert read(store, 2, 32).next_offset == 5
    assert read(store, 5, 32).status is GetStatus.OFFSET_OVERFLOW_ONE
    store.confirmed = lambda: store.log.end
    assert read(store, 2, 32).next_offset == 10


def test_batches_on_disk_only_are_read_by_a_thread() -> None:
    store, sent = filled(Random(5))
    store.checkpoint()
    store.queues.close()
    queue, offset, found = store.queues.find("b", 0), 0, []
    assert queue is not None
    for segment in [*store.log.chain.segments, *queue.chain.segments]:
        segment.file.resident = lambda at, size: False  # type: ignore[method-assign]
    store.log._opened_at = store.log.end + 1
    while offset < len(sent):
        got = None
        for _ in range(20):
            try:
                with resident_only(got):
                    result = read(store, offset, 32)
                break
            except NotResident as missing:
                got = {**(got or {}), **warm(missing)}
                for span in missing.spans:
                    span.file.resident = lambda at, size: True  # type: ignore[method-assign]
        found += messages(result)
        offset = result.next_offset
    assert [record.body for record in found] == [body for _, body, _ in sent]


PROPERTIES = st.sampled_from([b"UNIQ_KEY\x01ab\x02", RED, b""])


@given(st.lists(st.tuples(st.integers(0, 3), st.binary(max_size=3), PROPERTIES)))
def test_uniform_rows_are_those_that_decode_so(rows: list[Row]) -> None:
    batch = encode_batch(rows)
    is_uniform = len({len(body) for _, body, _ in rows}) == 1 and all(p.startswith(b"UNIQ") for _, _, p in rows)
    assert uniform_rows(batch) == (len(rows) if is_uniform else 0)


@given(st.binary(max_size=200))
def test_uniform_rows_of_any_bytes_are_a_batch(data: bytes) -> None:
    if count := uniform_rows(data):
        assert len(decode_batch(data)[0]) == count


@given(st.integers(1, 4), st.integers(0, 200), st.binary(min_size=1, max_size=1))
def test_a_spoiled_uniform_batch_is_not_uniform(count: int, at: int, byte: bytes) -> None:
    batch = bytearray(encode_batch([(0, b"body", b"UNIQ_KEY\x01%032d\x02" % number) for number in range(count)]))
    batch[at % len(batch) : at % len(batch) + 1] = byte
    if found := uniform_rows(bytes(batch)):
        rows, end = decode_batch(bytes(batch))
        assert (len(rows), end) == (found, len(batch))
        assert all(properties.startswith(b"UNIQ_KEY\x01") and properties[-1] == 2 for _, _, properties in rows)


@pytest.mark.parametrize(
    ("tags", "code"), [([b"", b""], 0), ([RED, RED], java_hash("red")), ([RED, b""], MIXED_TAGS), (TAGS, MIXED_TAGS)]
)
def test_the_tags_code_of_a_batch(tags: list[bytes], code: int) -> None:
    store = batch_store()
    rows = [(0, b"x", properties) for properties in tags]
    put_inner(store, "b", 0, rows, shared_tag(rows))
    fs = store._fs
    assert isinstance(fs, MemoryFiles)
    for each in (store, open_store(fs.killed())):
        assert each.queues.get("b", 0).entry(0)[2] == code


def test_a_batch_that_cannot_be_taken_apart_is_read_as_it_is() -> None:
    store = batch_store()
    store.put_inner("b", 0, b"no batch", 3, b"INNER_NUM\x013\x02", born_timestamp=1, born_host=bytes(8))
    result = read(store, 1, 32)
    (record,) = [decode_record(result.records, at) for at in record_starts(result.records)]
    assert (record.body, result.next_offset) == (b"no batch", 3)
    with pytest.raises(ProtocolError):
        inner_records(record)
