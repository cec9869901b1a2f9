"""What has left the store is read from the bucket, as if it were still in the log."""

import logging
import threading
from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from skylark.broker.store.filter import ALL, Filter
from skylark.broker.store.older import OlderRead
from skylark.broker.store.reader import GetResult, GetStatus, read_queue
from skylark.broker.store.store import MessageStore
from skylark.broker.tier import reads
from skylark.broker.tier.reads import LEAST_PAUSE_MS, MOST_PAUSE_MS, OlderReads
from skylark.broker.tier.taking import Taking
from skylark.mqcommon.errors import RequestRefused, StoreError
from skylark.mqcommon.message.columns import record_starts
from skylark.mqcommon.message.javahash import java_hash
from skylark.mqcommon.message.record import decode_record
from skylark.mqcommon.tier import index_builder, segment_index
from skylark.mqcommon.tier.bucket import BucketAway, BucketRefused, ObjectInfo
from skylark.mqcommon.tier.manifest import Segment, Tombstone
from skylark.mqcommon.tier.view import Located
from skylark.remoting.protocol.codes import ResponseCode
from tests.broker.store.support import open_store, put, put_inner
from tests.broker.tier.uploaded import Uploaded, asked
from tests.support.amounts import amount
from tests.support.clock import ManualClock
from tests.support.memory_bucket import MemoryBucket
from tests.support.memory_files import MemoryFiles
from tests.support.tier_segments import Sent, record_of
from tests.support.waiting import DEADLINE_S, until


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
        result = asked(partial(read_queue, store.log, queue, offset, max_count, max_bytes, wanted, unwraps=unwraps))
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


@settings(max_examples=amount(12, 300))
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


@settings(max_examples=amount(12, 300))
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


class LostBucket(MemoryBucket):
    """A bucket that can be away, refuse, and be asked how often it was read."""

    def __init__(self) -> None:
        super().__init__()
        self.failure: Exception | None = None
        self.ranges: list[tuple[str, int, int]] = []

    def get_range(self, name: str, start: int, size: int) -> bytes:
        if self.failure is not None:
            raise self.failure
        self.ranges.append((name, start, size))
        return super().get_range(name, start, size)

    def head(self, name: str) -> ObjectInfo:
        if self.failure is not None:
            raise self.failure
        return super().head(name)

    def objects_read(self) -> list[str]:
        """The object of each request for a range."""
        return [name for name, _, _ in self.ranges]


def filled(bucket: LostBucket, *, count: int = 60, clock: ManualClock | None = None) -> tuple[MessageStore, Uploaded]:
    """A store of which all but the last file is in ``bucket`` only; 13 messages of topic t in each file."""
    fs = MemoryFiles()
    store = open_store(fs, clock)
    for number in range(count):
        put(store, "t", 0, b"%d" % number + b"x" * 200, b"KEYS\x01k%d all\x02UNIQ_KEY\x01u%d\x02" % (number, number))
        if clock is not None:
            clock.advance(10)
    store.build_index(1_000)
    uploaded = Uploaded(fs, store, bucket=bucket)
    assert uploaded.clean()
    return store, uploaded


def get(store: MessageStore, offset: int, count: int = 1) -> GetResult:
    return asked(partial(store.get, "t", 0, offset, count, 1 << 20))


def test_searches_find_what_only_the_bucket_has() -> None:
    clock = ManualClock()
    start_ms = clock.now_ms()
    store, uploaded = filled(LostBucket(), clock=clock)
    low = store.queues.get("t", 0).min_offset
    assert low > 40
    by_time = partial(store.offset_by_time, "t", 0)
    for number in (0, 1, 20, low - 1, low, low + 1, 59):
        time_ms = start_ms + number * 10
        assert asked(partial(by_time, time_ms)) == asked(partial(by_time, time_ms, "UPPER")) == number
        assert asked(partial(by_time, time_ms - 1)) == number
        assert asked(partial(by_time, time_ms + 1, "UPPER")) == number
        assert asked(partial(store.store_time, "t", 0, number)) == time_ms
        raw = get(store, number).records
        record = decode_record(raw)
        assert asked(partial(store.record_at, record.physical_offset)) == raw
        assert asked(partial(store.record_at, record.physical_offset + 1)) is None
        for key, unique in ((f"k{number}", False), (f"u{number}", True), (f"u{number}", False)):
            assert found_by(store, key, unique=unique) == [raw]
    assert asked(partial(by_time, start_ms - 1, "UPPER")) == 0
    assert asked(partial(store.first_store_time, "t", 0)) == start_ms
    assert store.earliest_store_time() == start_ms
    assert len(found_by(store, "all", most=7)) == 7
    assert [decode_record(raw).queue_offset for raw in found_by(store, "all")] == list(range(59, -1, -1))
    assert found_by(store, "other") == []
    assert uploaded.reads._health.problem == ""


def found_by(store: MessageStore, key: str, *, unique: bool = False, most: int = 100) -> list[bytes]:
    search = store.start_query("t", key, most, 0, 1 << 60, unique=unique)
    while asked(search.step):
        pass
    return search.result.records


def test_a_search_during_which_files_leave_the_disk_finds_each_message_once() -> None:
    fs = MemoryFiles()
    store = open_store(fs)
    for number in range(60):
        put(store, "t", 0, b"%d" % number + b"x" * 200, b"KEYS\x01all\x02")
    uploaded = Uploaded(fs, store, bucket=LostBucket())
    search = store.start_query("t", "all", 100, 0, 1 << 60)
    while len(search.result.records) < 30:
        assert asked(search.step)
    assert uploaded.clean()
    assert store.log.start > decode_record(search.result.records[-1]).physical_offset
    while asked(search.step):
        pass
    assert [decode_record(raw).queue_offset for raw in search.result.records] == list(range(59, -1, -1))


def test_no_reader_is_moved_while_the_bucket_is_away(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    bucket = LostBucket()
    store, uploaded = filled(bucket)
    assert asked(partial(store.min_offset, "t", 0)) == 0
    bucket.failure = BucketAway("no route to host")
    for _ in range(3):
        with pytest.raises(RequestRefused, match="no route to host") as refused:
            get(store, 0)
        assert refused.value.code == ResponseCode.SYSTEM_BUSY
    assert asked(partial(store.store_time, "t", 0, 0)) == -1, "a figure is left out"
    assert store.min_offset("t", 0) == 0 and uploaded.reads._health.problem == "no route to host"
    assert get(store, store.queues.get("t", 0).min_offset).count == 1, "what is in the log is read"
    bucket.failure = None
    with pytest.raises(RequestRefused):
        get(store, 0)  # for a while nobody asks the bucket again
    uploaded.clock.advance(LEAST_PAUSE_MS)
    assert get(store, 0).count == 1
    assert uploaded.reads._health.problem == ""
    lines = [record.getMessage() for record in caplog.records]
    assert lines == [
        "old messages cannot be read from the bucket, their readers wait: no route to host",
        "old messages can be read from the bucket again",
    ]


def test_a_bucket_that_is_away_at_the_start_leaves_the_first_offset_open(caplog: pytest.LogCaptureFixture) -> None:
    bucket = LostBucket()
    store, uploaded = filled(bucket)
    bucket.failure = BucketRefused("the token has expired")
    OlderReads(uploaded.view, store, uploaded.clock, why_refused=str, cache_bytes=1 << 20)
    low = store.queues.get("t", 0).min_offset
    with pytest.raises(RequestRefused, match="the token has expired"):
        asked(partial(store.min_offset, "t", 0))
    assert store.shown_min_offset("t", 0) == low
    assert [record.levelname for record in caplog.records] == ["ERROR"]


def test_pauses_grow_while_the_bucket_is_away() -> None:
    bucket = LostBucket()
    store, uploaded = filled(bucket)
    bucket.failure = BucketAway("slow")
    tries = []
    for second in range(60):
        before = uploaded.reads.figures.failures
        with pytest.raises(RequestRefused):
            get(store, 0)
        if uploaded.reads.figures.failures > before:
            tries.append(second)
        uploaded.clock.advance(1_000)
    assert tries == [0, 1, 3, 7, 15, 30, 45]


def test_what_is_read_from_memory_does_not_count_as_an_answer_of_the_bucket(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    bucket = LostBucket()
    store, uploaded = filled(bucket)
    assert get(store, 0).count == 1
    bucket.failure = BucketAway("slow")
    tries = []
    for second in range(20):
        before = uploaded.reads.figures.failures
        for offset in (0, 30):  # only the first one is in memory
            with suppress(RequestRefused):
                get(store, offset)
        if uploaded.reads.figures.failures > before:
            tries.append(second)
        uploaded.clock.advance(1_000)
    assert tries == [0, 1, 3, 7, 15] and len(caplog.messages) == 1
    bucket.failure = None
    uploaded.clock.advance(MOST_PAUSE_MS)
    assert get(store, 0).count == 1 and uploaded.reads._health.problem == ""


def test_a_damaged_object_fails_loudly_and_the_others_are_read(caplog: pytest.LogCaptureFixture) -> None:
    bucket = LostBucket()
    store, uploaded = filled(bucket)
    name = uploaded.manifest.segments[1].classes[0][1].name
    data, modified_ms = bucket.objects[name]
    bucket.objects[name] = data[:-1] + b"?", modified_ms
    for _ in range(2):
        with pytest.raises(StoreError, match="missing or damaged"):
            get(store, 14)
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "mqadmin tierVerify" in caplog.text
    assert get(store, 0).count == get(store, 27).count == 1
    del bucket.objects[name]
    with pytest.raises(StoreError, match="missing or damaged"):
        get(store, 14)
    bucket.objects[name] = data, modified_ms
    assert get(store, 14).count == 1


def test_messages_of_a_deleted_topic_are_hidden_from_the_topic_that_was_made_again() -> None:
    bucket = LostBucket()
    store, uploaded = filled(bucket)
    end = store.log.end
    store.delete_topic("t")
    store.checkpoint()
    uploaded.manifest = uploaded.manifest.successor(2).with_tombstone(Tombstone("t", end))
    uploaded.manifests.append(uploaded.manifest)
    for number in range(60):
        put(store, "t", 0, b"new %d" % number + b"x" * 150)
    assert uploaded.clean()
    low = store.queues.get("t", 0).min_offset
    assert low > 30
    bodies = [decode_record(raw).body for _, raw in read_on(store, 0, ALL, 5, 1 << 20)]
    assert bodies == [b"new %d" % number + b"x" * 150 for number in range(60)]
    assert found_by(store, "k3") == []
    assert asked(partial(store.record_at, 0)) is None


def test_what_retention_has_removed_moves_a_reader_to_the_first_message() -> None:
    bucket = LostBucket()
    store, uploaded = filled(bucket)
    assert asked(partial(store.min_offset, "t", 0)) == 0
    gone, *kept = uploaded.manifest.segments
    uploaded.manifest = uploaded.manifest.successor(2).with_segments_changed(kept, [gone.index.name])
    uploaded.manifests.append(uploaded.manifest)
    for name in [name for name in bucket.objects if name.startswith(gone.folder)]:
        del bucket.objects[name]
    first = kept[0].start
    result = get(store, 3)
    assert result.status is GetStatus.OFFSET_TOO_SMALL
    assert decode_record(get(store, result.next_offset).records).physical_offset == first
    assert asked(partial(store.min_offset, "t", 0)) == result.next_offset == 12
    assert get(store, -1).next_offset == 12
    assert uploaded.reads.store_time("t", 0, 3) == -1 < uploaded.reads.store_time("t", 0, 12)


def test_a_queue_that_the_bucket_lacks_is_asked_for_again_only_when_there_are_new_segments() -> None:
    bucket, fs = LostBucket(), MemoryFiles()
    store = open_store(fs)
    put(store, "u", 0, b"expired")
    for number in range(60):
        put(store, "t", 0, b"%d" % number + b"x" * 200)
    uploaded = Uploaded(fs, store, bucket=bucket)
    assert uploaded.clean()
    gone, *kept = uploaded.manifest.segments
    uploaded.manifest = uploaded.manifest.successor(2).with_segments_changed(kept, [gone.index.name])
    uploaded.manifests.append(uploaded.manifest)
    assert asked(partial(store.min_offset, "u", 0)) == 1
    # The event loop knows it now, whether the bucket is there or not.
    bucket.failure = BucketAway("unplugged")
    assert store.min_offset("u", 0) == store.shown_min_offset("u", 0) == 1
    bucket.failure = None
    put(store, "u", 0, b"new")
    put(store, "u", 0, b"newer")
    for number in range(60):
        put(store, "t", 0, b"%d" % number + b"x" * 200)
    assert uploaded.clean()
    uploaded.view.use(uploaded.manifest)  # as the uploader does before a file may leave the disk
    assert store.queues.get("u", 0).min_offset == 3
    assert asked(partial(store.min_offset, "u", 0)) == store.min_offset("u", 0) == 1


def test_the_event_loop_never_waits_for_the_bucket() -> None:
    bucket = LostBucket()
    store, _ = filled(bucket)
    asked_before = len(bucket.ranges)
    with pytest.raises(RequestRefused) as refused:
        store.get("t", 0, 0, 1, 1 << 20)
    assert refused.value.code == ResponseCode.SYSTEM_BUSY
    assert store.store_time("t", 0, 0) == -1
    assert len(bucket.ranges) == asked_before


async def test_what_a_reader_will_want_is_read_ahead() -> None:
    bucket = LostBucket()
    store, uploaded = filled(bucket, count=400)
    bucket.ranges.clear()
    first, second = [segment.classes[0][1].name for segment in uploaded.manifest.segments[:2]]
    async with trio.open_nursery() as nursery:
        await nursery.start(uploaded.reads.run)
        for offset in (0, 4, 8):
            await trio.to_thread.run_sync(get, store, offset, 4)
        await until(lambda: second in bucket.objects_read(), "a download ahead")
        await trio.to_thread.run_sync(get, store, 13, 4)
        nursery.cancel_scope.cancel()
    assert bucket.objects_read().count(first) == bucket.objects_read().count(second) == 1


class HeldBucket(LostBucket):
    """A bucket in which reads of the objects ``held`` wait until ``go_on`` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.held: Collection[str] = ()
        self.waiting: set[str] = set()
        self.go_on = threading.Event()

    def get_range(self, name: str, start: int, size: int) -> bytes:
        if name in self.held:
            # Taken first: whoever waits for ``waiting`` may replace it.
            go_on = self.go_on
            self.waiting.add(name)
            assert go_on.wait(DEADLINE_S)
        return super().get_range(name, start, size)


async def test_several_downloads_are_read_ahead_at_the_same_time() -> None:
    bucket = HeldBucket()
    store, uploaded = filled(bucket, count=400)
    segments = uploaded.manifest.segments
    names = [segment.classes[0][1].name for segment in segments]
    firsts = [offsets_of(uploaded, segment) for segment in segments]
    bucket.held = names[3:]
    # The uploader has read all of them back.
    bucket.ranges.clear()
    async with trio.open_nursery() as nursery:
        await nursery.start(uploaded.reads.run)
        for offset in firsts[:2]:
            assert (await trio.to_thread.run_sync(get, store, offset, 32)).next_offset in firsts
        await until(lambda: names[2] in bucket.objects_read(), "the first download ahead")
        await trio.to_thread.run_sync(get, store, firsts[2], 32)
        await until(lambda: bucket.waiting == {*names[3:5]}, "two downloads")
        bucket.held, bucket.waiting = names[5:], set()
        bucket.go_on.set()
        bucket.go_on = threading.Event()
        for offset in firsts[3:5]:
            await trio.to_thread.run_sync(get, store, offset, 32)
        await until(lambda: bucket.waiting == {*names[5:9]}, "four downloads")
        bucket.go_on.set()
        nursery.cancel_scope.cancel()


def offsets_of(uploaded: Uploaded, segment: Segment) -> int:
    """The first offset of topic t in a segment."""
    row = uploaded.view.table(segment).find("t", 0)
    assert row is not None
    return row.first_offset


async def test_what_retention_removes_while_it_is_read_ahead_is_no_damage(caplog: pytest.LogCaptureFixture) -> None:
    bucket = LostBucket()
    store, uploaded = filled(bucket, count=400)
    first, second, third, *others = uploaded.manifest.segments
    for each in (first, second, third):
        uploaded.view.stretches_of(Located(each, uploaded.view.table(each).queues()[0]))
    gone = third.classes[0][1].name
    kept = [first, second, replace(third, classes=()), *others]
    uploaded.manifest = uploaded.manifest.successor(2).with_segments_changed(kept, [gone])
    uploaded.manifests.append(uploaded.manifest)
    del bucket.objects[gone]
    wanted = others[0].classes[0][1].name
    bucket.ranges.clear()
    async with trio.open_nursery() as nursery:
        await nursery.start(uploaded.reads.run)
        for each in (first, second):
            await trio.to_thread.run_sync(get, store, offsets_of(uploaded, each), 32)
        await until(lambda: wanted in bucket.objects_read(), "a download ahead")
        nursery.cancel_scope.cancel()
    assert not caplog.records


def test_a_whole_download_is_answered_without_a_copy() -> None:
    data = b"".join(record_of(Sent("t", 0, offset, b"x" * 1_000, 1), 2_000 * offset) for offset in range(9))
    for max_count, is_whole in ((9, True), (8, False)):
        taking = Taking("t", 0, 9, max_count, 1 << 20, ALL, unwraps=False)
        taking.add(memoryview(data))
        assert (taking.result.records is data) is is_whole and data.startswith(taking.result.records)


def test_a_reader_of_few_messages_downloads_little_and_no_byte_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (segment_index, index_builder):
        monkeypatch.setattr(module, "STRETCH_BYTES", 400)
    monkeypatch.setattr(reads, "PIECE_BYTES", 1_000)
    bucket = LostBucket()
    store, uploaded = filled(bucket)
    bucket.ranges.clear()
    name = uploaded.manifest.segments[0].classes[0][1].name
    for offset in (5, 3, 4, 12, 0):
        record = asked(partial(store.get, "t", 0, offset, 1, 100)).records
        assert decode_record(record).queue_offset == offset
    found = sorted((start, size) for each, start, size in bucket.ranges if each == name)
    assert all(size <= 2_000 for _, size in found) and len(found) > 1
    assert all(begin + size <= after for (begin, size), (after, _) in pairwise(found))


def test_a_reader_in_a_hole_before_the_end_of_what_it_wants_gets_on() -> None:
    data = b"".join(record_of(Sent("t", 0, offset, b"x", 1), 1_000 * offset) for offset in (5, 9, 20))
    for wanted in FILTERS.values():
        for offset in range(10, 15):
            taking = Taking("t", offset, 15, 32, 1 << 20, wanted, unwraps=False)
            taking.add(memoryview(data))
            assert taking.result == OlderRead(15) and taking.is_full
