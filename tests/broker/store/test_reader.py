"""Reads: any filter gives the messages that it lets pass, each once; long runs; batch queues from any offset."""

from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from skylark.broker.store import reader
from skylark.broker.store.expanded import expanded
from skylark.broker.store.filter import ALL, Filter
from skylark.broker.store.log.residency import NotResident, resident_only, warm
from skylark.broker.store.queue.entry import BLANK_SIZE, ENTRY, MIXED_TAGS, shared_tag, uniform_rows
from skylark.broker.store.reader import GetResult, GetStatus, Range, long_runs, read_queue
from skylark.broker.store.store import MessageStore
from skylark.mqcommon.errors import ProtocolError
from skylark.mqcommon.message.batch import decode_batch, encode_batch
from skylark.mqcommon.message.columns import record_starts
from skylark.mqcommon.message.flags import BORN_HOST_V6, WRAPPED
from skylark.mqcommon.message.ids import encode_host
from skylark.mqcommon.message.inner import inner_records
from skylark.mqcommon.message.javahash import java_hash
from skylark.mqcommon.message.record import Record, decode_record
from tests.broker.store.support import BORN_HOST, open_store, put, put_inner
from tests.support.memory_files import MemoryFiles

V6 = encode_host("::1", 5)


def wanted(raw: bytes) -> bool:
    assert raw.startswith(b"\x02") and raw.endswith(b"\x02")
    return b"\x02a\x011\x02" in raw


def read_on(
    store: MessageStore, topic: str, end: int, wanted: Filter, *, max_count: int = 32, max_bytes: int = 1 << 20
) -> list[bytes]:
    """The bodies of all messages that match."""
    found: list[bytes] = []
    offset = 0
    while offset < end:
        result = store.get(topic, 0, offset, max_count, max_bytes, wanted)
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
    some = Filter(None, wanted, 7)
    found = read_on(store, topic, len(messages), some, max_count=max_count, max_bytes=max_bytes)
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
    monkeypatch.setattr(type(file), "resident", lambda file, at, size: "/consumequeue/" in file.path)
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


# "Aa" and "BB" have the same hash.
TAGS = st.sampled_from(["", "Aa", "BB", "c"])


@given(
    tags=st.lists(TAGS, max_size=40),
    wanted=st.none() | st.frozensets(TAGS.filter(bool)),
    max_count=st.integers(1, 8),
    is_written=st.booleans(),
)
def test_any_filter_gives_the_messages_that_it_lets_pass(
    tags: list[str], wanted: frozenset[str] | None, max_count: int, is_written: bool
) -> None:
    store = open_store(MemoryFiles())
    for tag in tags:
        put(store, "t", 0, tag.encode(), f"TAGS\x01{tag}\x02".encode() if tag else b"")
    if is_written:
        store.checkpoint()
    codes = None if wanted is None else frozenset(map(java_hash, wanted))
    found = read_on(store, "t", len(tags), Filter(codes), max_count=max_count)
    assert found == [tag.encode() for tag in tags if codes is None or (tag and java_hash(tag) in codes)]


SEGMENT_BYTES = 1 << 30
MAX_RANGES = 50


class Entries:
    """A queue in memory, whose files have ``per_file`` entries."""

    def __init__(self, entries: list[tuple[int, int]], per_file: int) -> None:
        self.raw = b"".join([ENTRY.pack(physical, size, 0) for physical, size in entries])
        self.per_file = per_file

    def raw_entries(self, offset: int, count: int) -> bytes:
        upto = min(offset + count, (offset // self.per_file + 1) * self.per_file)
        return self.raw[offset * ENTRY.size : upto * ENTRY.size]


def plain(entries: list[tuple[int, int]], max_count: int, max_bytes: int) -> tuple[list[Range], int, int]:
    ranges: list[Range] = []
    count = taken = 0
    for physical, size in entries[:max_count]:
        if count and taken + size > max_bytes:
            break
        if ranges and ranges[-1][1] == physical:
            ranges[-1] = (ranges[-1][0], physical + size)
        elif len(ranges) == MAX_RANGES:
            break
        else:
            ranges.append((physical, physical + size))
        count, taken = count + 1, taken + size
    return ranges, count, taken


# For each run: the bytes of other messages before it, the sizes of its messages, and how often the sizes repeat.
RUNS = st.lists(
    st.tuples(st.integers(1, 10_000), st.lists(st.integers(91, 5_000), min_size=1, max_size=5), st.integers(2, 500)),
    max_size=30,
)


def laid_out(runs: list[tuple[int, list[int], int]]) -> list[tuple[int, int]]:
    entries: list[tuple[int, int]] = []
    end = 0
    for others, sizes, times in runs:
        end += others
        for size in sizes * times:
            entries.append((end, size))
            end += size
    return entries


@given(RUNS, st.integers(1, 20_000), st.integers(0, 4_000_000), st.integers(1_024, 9_000))
@example([(1, [100], 500)] * 5, 20_000, 0, 9_000)
@example([(1, [100], 500)] * 9, 2_048, 4_000_000, 1_024)
def test_long_runs_are_what_a_loop_over_the_entries_finds(
    runs: list[tuple[int, list[int], int]], max_count: int, max_bytes: int, per_file: int
) -> None:
    entries = laid_out(runs)
    found = long_runs(Entries(entries, per_file), 0, max_count, max_bytes, MAX_RANGES, SEGMENT_BYTES)
    if found is not None:
        # Reads may stop at the end of a file.
        ranges, count, size = plain(entries, max_count, max_bytes)
        if found[1] < count:
            assert found[1] % per_file == 0 and found[1]
            ranges, count, size = plain(entries, found[1], max_bytes)
        assert found[:3] == (ranges, count, size)
        assert found[3].startswith(Entries(entries, 1 << 20).raw_entries(0, count))
    else:
        upto = plain(entries, max_count, max_bytes)
        assert upto[1] < 8 * len(upto[0]) or any(len(sizes) * times < 64 for _, sizes, times in runs)


def test_blanks_and_the_end_of_a_file_of_the_log_are_for_the_loop() -> None:
    messages = laid_out([(0, [100], 3_000)])
    for blank in (0, 1_000, 2_999):
        entries = [*messages[:blank], (0, BLANK_SIZE), *messages[blank:]]
        assert long_runs(Entries(entries, 9_000), 0, 9_000, 1 << 30, MAX_RANGES, SEGMENT_BYTES) is None
    assert long_runs(Entries(messages, 9_000), 0, 9_000, 1 << 30, MAX_RANGES, 150_000) is None
    found = long_runs(Entries(messages, 9_000), 0, 1_000, 1 << 30, MAX_RANGES, 150_000)
    assert found is not None and found[:3] == ([(0, 100_000)], 1_000, 100_000)


def test_a_large_read_returns_what_small_ones_do() -> None:
    store = open_store(MemoryFiles())
    for number in range(600):
        put(store, "t", 0, b"%d" % number)
    large = store.get("t", 0, 1, 500, 1 << 20)
    assert (large.status, large.count, large.next_offset) == (GetStatus.FOUND, 500, 501)
    small = [store.get("t", 0, offset, 100, 1 << 20) for offset in range(1, 501, 100)]
    assert large.records == b"".join([result.records for result in small])


Row = tuple[int, bytes, bytes]
RED, BLUE = b"TAGS\x01red\x02", b"TAGS\x01blue\x02"
BATCH_TAGS = [b"", RED, BLUE]


def batch_store() -> MessageStore:
    store = open_store(MemoryFiles())
    store.queues.use_kinds(lambda topic: topic == "b")
    return store


def filled(random: Random) -> tuple[MessageStore, list[Row]]:
    """A store, and the messages of its queue."""
    store, sent = batch_store(), []
    for number in range(random.randrange(1, 12)):
        tags = random.choice([[b""], [RED], BATCH_TAGS])
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


@pytest.mark.parametrize("max_count", [0, -1, -(1 << 31)])
@pytest.mark.parametrize("how", ["all", "tags", "properties"])
def test_who_asks_for_no_message_gets_one(max_count: int, how: str) -> None:
    plain, batches = open_store(MemoryFiles()), batch_store()
    filters = {
        "all": ALL,
        "tags": Filter(tag_codes=frozenset([java_hash("red")])),
        "properties": Filter(matches=lambda raw: b"TAGS" in raw, max_messages=100),
    }
    for n in range(5):
        put(plain, "t", 0, b"%d" % n, RED)
    put_inner(batches, "b", 0, [(0, b"%d" % n, RED) for n in range(5)])
    for store, topic in [(plain, "t"), (batches, "b")]:
        result = store.get(topic, 0, 2, max_count, 1 << 20, filters[how])
        assert (result.status, result.count, result.next_offset) == (GetStatus.FOUND, 1, 3)


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
                    file = getattr(span.file, "file", span.file)  # a file of the log is compared
                    file.resident = lambda at, size: True
        found += messages(result)
        offset = result.next_offset
    assert [record.body for record in found] == [body for _, body, _ in sent]


PROPERTIES = st.sampled_from([b"UNIQ_KEY\x01ab\x02", RED, b""])


@given(st.lists(st.tuples(st.integers(0, 3), st.binary(max_size=3), PROPERTIES)))
def test_uniform_rows_are_those_that_decode_so(rows: list[Row]) -> None:
    batch = encode_batch(rows)
    is_uniform = len({len(body) for _, body, _ in rows}) == 1 and all(p.startswith(b"UNIQ") for _, _, p in rows)
    count = len(rows) if is_uniform else 0
    assert uniform_rows(batch, 0, len(batch)) == count
    assert uniform_rows(b"before" + batch + b"after", 6, 6 + len(batch)) == count


@given(st.binary(max_size=200))
def test_uniform_rows_of_any_bytes_are_a_batch(data: bytes) -> None:
    if count := uniform_rows(data, 0, len(data)):
        assert len(decode_batch(data)[0]) == count


@given(st.integers(1, 4), st.integers(0, 200), st.binary(min_size=1, max_size=1))
def test_a_spoiled_uniform_batch_is_not_uniform(count: int, at: int, byte: bytes) -> None:
    batch = bytearray(encode_batch([(0, b"body", b"UNIQ_KEY\x01%032d\x02" % number) for number in range(count)]))
    batch[at % len(batch) : at % len(batch) + 1] = byte
    if found := uniform_rows(bytes(batch), 0, len(batch)):
        rows, end = decode_batch(bytes(batch))
        assert (len(rows), end) == (found, len(batch))
        assert all(properties.startswith(b"UNIQ_KEY\x01") and properties[-1] == 2 for _, _, properties in rows)


@pytest.mark.parametrize(
    ("tags", "code"),
    [([b"", b""], 0), ([RED, RED], java_hash("red")), ([RED, b""], MIXED_TAGS), (BATCH_TAGS, MIXED_TAGS)],
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


@pytest.mark.parametrize(
    ("skipped", "body"),
    [
        (1, encode_batch([(0, b"a", b"")])),
        (2, encode_batch([(0, b"a", b"")]) + b"\0\0\0\3" + bytes(30)),
        (2, encode_batch([(0, b"a", b"")]) + b"\0\0"),
        (1, b"\xff\xff\xff\xff" + bytes(30)),
        (1, b""),
    ],
    ids=["it has fewer messages", "too small a size", "a part of a size", "a negative size", "empty"],
)
def test_a_batch_whose_sizes_are_wrong_is_read_as_it_is(skipped: int, body: bytes) -> None:
    store = batch_store()
    store.put_inner("b", 0, body, 3, b"INNER_NUM\x013\x02", born_timestamp=1, born_host=bytes(8))
    raw = store.log.record_at(store.queues.get("b", 0).entry(0)[0])
    assert raw is not None
    assert list(expanded(raw, skipped, ALL)) == [(0, raw)]


@pytest.mark.parametrize(("tag", "count"), [("red", 1), ("blue", 0)])
def test_a_single_message_of_a_batch_queue_is_filtered_by_its_tag(tag: str, count: int) -> None:
    store = batch_store()
    put(store, "b", 0, b"x", RED)
    raw = store.log.record_at(store.queues.get("b", 0).entry(0)[0])
    assert raw is not None
    assert list(expanded(raw, 0, Filter(frozenset([java_hash(tag)])))) == [(0, raw)] * count
