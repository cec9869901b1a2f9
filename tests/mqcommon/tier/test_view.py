"""A view finds what a search through all records would find."""

from bisect import bisect_left
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from random import Random
from typing import NamedTuple
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.mqcommon.message.ids import UniqueKeys
from skylark.mqcommon.message.properties import find_property
from skylark.mqcommon.message.record import decode_record
from skylark.mqcommon.tier import view as view_module
from skylark.mqcommon.tier.bucket import Bucket, BucketAway, DamagedObject, NoSuchObject
from skylark.mqcommon.tier.layout import span_name
from skylark.mqcommon.tier.manifest import Manifest, StoredObject, Tombstone, encode_span, expired, span_of
from skylark.mqcommon.tier.manifests import ManifestLog
from skylark.mqcommon.tier.records import records_between, stored_records
from skylark.mqcommon.tier.view import NEAR_SEGMENTS, TierView, class_object
from tests.support.faulty_bucket import FaultyBucket
from tests.support.memory_bucket import MemoryBucket
from tests.support.tier_segments import SET, Sent, TierWriter

TOPICS = ("kept", "short", "long")
CACHE = 1 << 20
START_MS = 1_700_000_000_000


class Stored(NamedTuple):
    """A message, its place in the log, where its segment begins, and its class there."""

    sent: Sent
    place: int
    segment: int
    retention_class: int


class Model:
    """A set that is written and thinned out by random steps, and all that readers should find."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.bucket = MemoryBucket()
        self.classes = {"kept": 0, "short": 24, "long": 72}
        self.writer = TierWriter(self.bucket, lambda topic: self.classes[topic])
        self.now_ms = 1_000
        self.offsets: dict[tuple[str, int], int] = {}
        #: What was sent since its topic was made, and is not too old.
        self.sent: list[Stored] = []
        self.keys = 0

    def write(self) -> None:
        """Write a segment; while it was written a topic may have been deleted, and may not have come back yet."""
        start = self.writer.end
        messages: list[Sent] = []
        deleted, deleted_at = self.random.choice((*TOPICS, None, None)), self.random.randrange(12)
        for number in range(self.random.randrange(12)):
            queue = self.random.choice(TOPICS), self.random.randrange(2)
            if queue[0] == deleted and number >= deleted_at:
                continue
            offset = self.offsets.get(queue, 0)
            self.offsets[queue] = offset + 1
            # Clocks are set back now and then.
            self.now_ms = max(self.now_ms + self.random.randrange(-60, 80), 0)
            self.keys += 1
            body = b"b" * self.random.choice((10, 100, 30_000, 70_000))
            messages.append(Sent(*queue, offset, body, self.now_ms, f"U{self.keys}", f"even{self.keys % 2}"))
        self.writer.add(messages)
        places = [place for place in self.writer.records if place >= start]
        self.sent += [
            Stored(sent, place, start, self.classes[sent.topic]) for sent, place in zip(messages, places, strict=True)
        ]
        if deleted and deleted_at < len(places):
            mine = [place for sent, place in zip(messages, places, strict=True) if sent.topic == deleted]
            self.delete(deleted, max(mine, default=start) + 1)

    def delete_topic(self) -> None:
        self.delete(self.random.choice(TOPICS), self.writer.end)

    def delete(self, topic: str, place: int) -> None:
        self.writer.change(self.successor().with_tombstone(Tombstone(topic, place)))
        self.sent = [each for each in self.sent if each.sent.topic != topic]
        for queue_id in range(2):
            self.offsets.pop((topic, queue_id), None)

    def change_class(self) -> None:
        self.classes["short"] = 24 if self.classes["short"] == 72 else 72

    def retain(self) -> None:
        """Remove what is old, of the two classes that do not stay for ever."""
        before = {24: self.now_ms - self.random.randrange(100), 72: self.now_ms - self.random.randrange(400)}
        manifest = self.successor()
        is_oldest = not manifest.spans
        kept, gone = expired(manifest.segments, before, is_oldest=is_oldest)
        self.writer.change(manifest.with_segments_changed(kept, gone))
        left = {(each.start, number) for each in kept for number, _ in each.classes}
        firsts = {each.start for each in manifest.segments}
        self.sent = [
            each for each in self.sent if each.segment not in firsts or (each.segment, each.retention_class) in left
        ]

    def make_span(self) -> None:
        manifest = self.successor()
        if len(manifest.segments) < 2:
            return
        oldest = manifest.segments[: self.random.randrange(1, len(manifest.segments))]
        data, name = encode_span(oldest), span_name(SET, len(manifest.spans), "x")
        self.bucket.put(name, [data])
        self.writer.change(manifest.with_span(span_of(oldest, StoredObject(name, len(data), crc32(data)))))

    def successor(self) -> Manifest:
        return self.writer.manifest.successor(self.now_ms)

    def of_queue(self, topic: str, queue_id: int) -> list[Stored]:
        return [each for each in self.sent if (each.sent.topic, each.sent.queue_id) == (topic, queue_id)]


STEPS = {
    "w": Model.write,
    "d": Model.delete_topic,
    "c": Model.change_class,
    "r": Model.retain,
    "s": Model.make_span,
}


def read_from(view: TierView, topic: str, queue_id: int, offset: int, end: int) -> Iterator[tuple[int, bytes]]:
    """(offset, bytes) of all records of a queue from ``offset`` on, as a consumer reads them."""
    while (located := view.locate(topic, queue_id, offset)) is not None and offset < end:
        stretches = view.stretches(located, offset, end)
        data = view.read(located, stretches) if stretches else b""
        for record, raw in records_between(data, offset, end):
            if not view.hides(topic, record.physical_offset):
                yield record.queue_offset, raw
        offset = located.row.next_offset


@given(st.integers(0, 2**32), st.integers(1, 25), st.sampled_from([300, CACHE]))
def test_a_view_finds_what_a_search_through_all_finds(seed: int, steps: int, cache_bytes: int) -> None:
    model = Model(seed)
    view = TierView(model.bucket, SET, cache_bytes)
    for step in model.random.choices("wwwwwdcrs", k=steps):
        STEPS[step](model)
        view.refresh()
        # The segment that is located here is a hint after the next step.
        view.locate("kept", 0, model.random.randrange(20))
    for topic in TOPICS:
        for queue_id in range(2):
            check_queue(model, view, topic, queue_id)
    check_places_and_keys(model, view)


def check_queue(model: Model, view: TierView, topic: str, queue_id: int) -> None:
    sent = model.of_queue(topic, queue_id)
    offsets = [each.sent.offset for each in sent]
    bounds = view.bounds(topic, queue_id)
    assert (bounds is None) == (not sent)
    if bounds is None:
        assert view.locate(topic, queue_id, 0) is None
        return
    assert bounds == (offsets[0], model.offsets[topic, queue_id])
    first = model.random.randrange(offsets[-1] + 2)
    wanted = [(each.sent.offset, model.writer.records[each.place]) for each in sent if each.sent.offset >= first]
    assert list(read_from(view, topic, queue_id, first, 2**62)) == wanted
    located = view.locate(topic, queue_id, first)
    expected = bisect_left(offsets, first)
    assert (located is None) == (expected == len(offsets))
    if located is not None:
        assert located.segment.start == sent[expected].segment
    time_ms = model.random.randrange(model.now_ms + 20)
    late = [each.sent.offset for each in sent if each.sent.store_ms >= time_ms]
    assert view.offset_by_time(topic, queue_id, time_ms) == (late[0] if late else None)


def check_places_and_keys(model: Model, view: TierView) -> None:
    there = {each.place for each in model.sent}
    for place, raw in model.writer.records.items():
        assert view.record_at(place) == (raw if place in there else None)
        assert view.record_at(place + 1) is None
    for topic in TOPICS:
        of_topic = [(each.place, each.sent) for each in model.sent if each.sent.topic == topic]
        for word in ("even0", "even1"):
            places = [place for place, sent in of_topic if sent.keys == word]
            found = view.with_key(topic, word, 0, 2**62, 1000).records
            assert [next(stored_records(raw)).physical_offset for raw in found] == places[::-1]
        if of_topic:
            place, sent = of_topic[len(of_topic) // 2]
            assert view.with_key(topic, sent.unique_key, 0, 2**62, 5, unique=True).records == [
                model.writer.records[place]
            ]
            assert view.with_key(topic, sent.unique_key, 0, sent.store_ms - 1, 5).records == []
            assert view.with_key(topic, sent.unique_key, 0, 2**62, 5, before=place).records == []


def written(segments: int, bucket: Bucket) -> TierWriter:
    """``segments`` segments with a record of queue 0 of topic ``t`` each, one a minute."""
    writer, keys = TierWriter(bucket), UniqueKeys("127.0.0.1", 1, 1)
    for number in range(segments):
        store_ms = START_MS + number * 60_000
        writer.add([Sent("t", 0, number, b"b", store_ms, keys.next(store_ms), "word")])
    return writer


@pytest.fixture(scope="module")
def minutes() -> tuple[MemoryBucket, list[str]]:
    """A bucket with a segment a minute, and the unique keys of the segments' records."""
    bucket = MemoryBucket()
    writer = written(NEAR_SEGMENTS + 10, bucket)
    return bucket, [unique_key_of(raw) for raw in writer.records.values()]


def unique_key_of(raw: bytes) -> str:
    return (find_property(decode_record(raw).properties, b"UNIQ_KEY") or b"").decode()


def opened(bucket: Bucket) -> tuple[TierView, FaultyBucket]:
    """A view, and the bucket that counts its calls."""
    counted = FaultyBucket(bucket, Random(1))
    view = TierView(counted, SET, CACHE)
    view.refresh()
    counted.calls = 0
    return view, counted


def test_a_reader_that_goes_on_needs_few_requests(minutes: tuple[MemoryBucket, list[str]]) -> None:
    view, counted = opened(minutes[0])
    for offset in range(50, 60):
        assert view.locate("t", 0, offset) is not None
    # 7 to bisect, some for the first neighbours, 1 for each next index.
    assert counted.calls < 25
    last, counted.calls = view.locate("t", 0, 59), 0
    assert view.locate("t", 0, 59) == last
    assert counted.calls == 0


def test_a_query_by_key_goes_through_all_segments_of_its_time_newest_first(
    minutes: tuple[MemoryBucket, list[str]],
) -> None:
    view, counted = opened(minutes[0])
    found = view.with_key("t", "word", 0, 2**62, 1000)
    offsets = [decode_record(raw).queue_offset for raw in found.records]
    assert offsets == list(range(len(minutes[1])))[::-1] and not found.cut
    assert len(view.with_key("t", "word", 0, 2**62, 3).records) == 3
    assert len(view.with_key("t", "word", START_MS + 120_000, START_MS + 300_000, 1000).records) == 4
    counted.calls = 0
    assert view.with_key("t", "word", 0, 2**62, 1).records == found.records[:1]
    assert counted.calls <= 4, "the newest segment alone"


def test_a_query_by_key_that_ends_early_says_why(
    minutes: tuple[MemoryBucket, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = MemoryBucket()
    bucket.objects = dict(minutes[0].objects)
    view, _ = opened(bucket)
    count = len(minutes[1])
    left = iter(range(10))
    found = view.with_key("t", "word", 0, 2**62, 1000, is_over=lambda: next(left, None) is None)
    assert len(found.records) == 10
    since_ms = START_MS + (count - 10) * 60_000
    assert found.cut == f"the time was over; to go on ask for messages stored until {since_ms}"
    # The segments around the time in a unique key are not searched from the newest on.
    found = view.with_key("t", minutes[1][0], 0, 2**62, 1, unique=True, now_ms=START_MS, is_over=lambda: True)
    assert found == ([], "the time was over; ask again", None)
    for name in (view.segment(3).keys.name, view.segment(5).index.name):
        del bucket.objects[name]
    view, _ = opened(bucket)
    found = view.with_key("t", "word", 0, 2**62, 1000)
    assert len(found.records) == count - 2 and found.cut.startswith("2 files of the log in the bucket are damaged")
    view, _ = opened(minutes[0])
    monkeypatch.setattr(view_module, "MAX_RECORDS_OF_QUERY", 5)
    found = view.with_key("t", "word", 0, 2**62, 1000)
    assert len(found.records) == 5 and found.cut.startswith("5 messages were read")


def test_a_search_that_ended_early_goes_on_until_all_segments_were_searched(
    minutes: tuple[MemoryBucket, list[str]],
) -> None:
    view, _ = opened(minutes[0])
    found: list[int] = []
    end_ms: int | None = 2**62
    while end_ms is not None:
        left = iter(range(9))
        part = view.with_key("t", "word", 0, end_ms, 1000, is_over=lambda left=left: next(left, None) is None)
        assert bool(part.cut) == (part.next_end_ms is not None)
        found += [decode_record(raw).queue_offset for raw in part.records]
        end_ms = part.next_end_ms
    # The segment at an end is searched again.
    assert sorted(set(found), reverse=True) == list(range(len(minutes[1])))[::-1]
    assert len(found) < 1.2 * len(minutes[1])


def test_a_unique_key_is_found_wherever_it_is(
    minutes: tuple[MemoryBucket, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key does not tell its month, and the keys of Spark's tasks have no time."""
    monkeypatch.setattr(view_module, "NEAR_SEGMENTS", 3)
    bucket, unique_keys = minutes
    view, counted = opened(bucket)
    day_ms = 24 * 3_600_000
    # A month later the time in a key is a time after all segments.
    for now_ms in (START_MS + 40 * day_ms, START_MS + 400 * day_ms):
        for number in (0, 1, 30, len(unique_keys) - 1):
            found = view.with_key("t", unique_keys[number], 0, 2**62, 5, unique=True, now_ms=now_ms)
            assert [decode_record(raw).queue_offset for raw in found.records] == [number] and not found.cut
    assert view.with_key("t", "0" * 32, 0, 2**62, 5, unique=True, now_ms=START_MS) == ([], "", None)
    # What is known of the indexes is not read again: a page of keys of each segment, and no more.
    counted.calls = 0
    assert not view.with_key("t", "0" * 32, 0, 2**62, 5, unique=True, now_ms=START_MS).records
    assert counted.calls <= len(unique_keys)
    # The time of the search limits it.
    counted.calls = 0
    late_ms = START_MS + (len(unique_keys) - 5) * 60_000
    assert not view.with_key("t", unique_keys[0], late_ms, 2**62, 5, unique=True, now_ms=START_MS).records
    assert counted.calls <= 5


def test_a_unique_key_is_looked_for_at_its_time_first(minutes: tuple[MemoryBucket, list[str]]) -> None:
    bucket, unique_keys = minutes
    view, counted = opened(bucket)
    now_ms = START_MS + 200 * 60_000
    for minute in (5, 40, 70):
        assert len(view.with_key("t", unique_keys[minute], 0, now_ms, 32, unique=True, now_ms=now_ms).records) == 1
    # For each: the index, a page of keys, the queue's rows, the stretch.
    assert counted.calls <= 3 * 4


def test_for_a_unique_key_one_span_is_read_of_many(minutes: tuple[MemoryBucket, list[str]]) -> None:
    bucket, unique_keys = MemoryBucket(), minutes[1]
    bucket.objects = dict(minutes[0].objects)
    manifest = ManifestLog(bucket, SET).newest()
    assert manifest is not None
    while len(some := manifest.segments[:7]) == 7:
        data, name = encode_span(some), span_name(SET, len(manifest.spans), "x")
        bucket.put(name, [data])
        manifest = manifest.with_span(span_of(some, StoredObject(name, len(data), crc32(data))))
    view, counted = opened(bucket)
    view.use(manifest)
    now_ms = START_MS + 200 * 60_000
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(view_module, "NEAR_SEGMENTS", 3)
        assert len(view.with_key("t", unique_keys[38], 0, now_ms, 32, unique=True, now_ms=now_ms).records) == 1
    # A span or two, the index, a page of keys, the queue's rows, the stretch.
    assert counted.calls <= 2 + 4


def test_wrong_bytes_are_never_returned() -> None:
    bucket = MemoryBucket()
    writer = written(3, bucket)
    unique_key = unique_key_of(list(writer.records.values())[1])
    segment = writer.manifest.segments[1]
    names = [stored.name for _, stored in segment.classes]
    for name in [*names, segment.index.name, segment.keys.name]:
        data, time_ms = bucket.objects[name]
        for at in range(0, len(data), max(len(data) // 40, 1)):
            bucket.objects[name] = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :], time_ms
            view = TierView(bucket, SET, CACHE)
            view.refresh()
            places = [place for place in writer.records if segment.start <= place < segment.end]
            try:
                assert dict(read_from(view, "t", 0, 1, 2)) == {1: writer.records[places[0]]}
                assert view.record_at(places[0]) == writer.records[places[0]]
                found = view.with_key("t", unique_key, 0, 2**62, 1)
                if found.cut:
                    assert not found.records
                    raise DamagedObject(found.cut)
                assert found.records == [writer.records[places[0]]]
            except DamagedObject:
                continue
            # A byte of an unused page, or of a part that these calls do not need.
            assert name == segment.index.name and at > len(data) - 20, (name, at)
        bucket.objects[name] = data, time_ms


@pytest.mark.parametrize("damaged", [[4], [0], [3, 4, 5], [1, 7]])
def test_damaged_indexes_hide_their_own_segments_only(damaged: list[int]) -> None:
    bucket = MemoryBucket()
    writer = written(9, bucket)
    for number in damaged:
        bucket.objects[writer.manifest.segments[number].index.name] = b"x" * 1_000, 0
    for offset, raw in enumerate(writer.records.values()):
        # A view that knows nothing, so that bisection decides what it reads.
        view = TierView(bucket, SET, CACHE)
        view.refresh()
        if offset in damaged:
            with pytest.raises(DamagedObject, match=r"^set-a/seg/.*/index"):
                view.locate("t", 0, offset)
        else:
            assert next(read_from(view, "t", 0, offset, offset + 1)) == (offset, raw)
    if 0 in damaged:
        with pytest.raises(DamagedObject):
            view.bounds("t", 0)
    else:
        assert view.bounds("t", 0) == (0, 9)


def test_damage_is_passed_by_after_segments_whose_records_retention_has_removed() -> None:
    bucket, classes = MemoryBucket(), {"t": 24}
    writer = TierWriter(bucket, lambda topic: classes.get(topic, 0))
    for minute in range(6):
        if minute == 4:
            classes["t"] = 72
        writer.add([Sent(topic, 0, minute, b"body", START_MS + minute * 60_000) for topic in ("stays", "t")])
    segments = writer.manifest.segments
    kept, gone = expired(segments, {24: START_MS + 2 * 60_000}, is_oldest=True)
    writer.change(writer.manifest.successor(2_000).with_segments_changed(kept, gone))
    for damaged, first in (([2], 3), ([2, 3], 4), ([2, 3, 4], 5)):
        for number in damaged:
            bucket.objects[segments[number].index.name] = b"x" * 1_000, 0
        view = TierView(bucket, SET, CACHE)
        view.refresh()
        with pytest.raises(DamagedObject):
            view.bounds("t", 0)
        assert view.bounds("t", 0, passes_damage=True) == (first, 6)


def test_an_index_of_other_bytes_is_refused() -> None:
    bucket = MemoryBucket()
    writer = written(3, bucket)
    one, two = writer.manifest.segments[:2]
    bucket.objects[one.index.name] = bucket.objects[two.index.name]
    view = TierView(bucket, SET, CACHE)
    view.use(replace(writer.manifest, segments=(one,)))
    with pytest.raises(DamagedObject, match="is the index of bytes"):
        view.bounds("t", 0)


def test_a_bucket_that_is_away_is_no_answer() -> None:
    bucket = FaultyBucket(MemoryBucket(), Random(1))
    writer = TierWriter(bucket)
    writer.add([Sent("t", 0, 0, b"b", 1_000, "U1")])
    view = TierView(bucket, SET, CACHE)
    view.refresh()
    bucket.is_away = True
    for ask in (
        lambda: view.bounds("t", 0),
        lambda: view.locate("t", 0, 0),
        lambda: view.record_at(0),
        lambda: view.with_key("t", "U1", 0, 2**62, 1),
        lambda: view.offset_by_time("t", 0, 0),
        view.refresh,
    ):
        with pytest.raises(BucketAway):
            ask()
    bucket.is_away = False
    assert view.bounds("t", 0) == (0, 1)


def test_a_view_never_goes_back_to_an_older_manifest() -> None:
    bucket = MemoryBucket()
    writer = written(3, bucket)
    old = writer.log.read(writer.manifest.number - 1)
    view = TierView(bucket, SET, CACHE)
    view.use(writer.manifest)
    view.use(old)
    assert view.manifest == writer.manifest and view.count == 3


def test_threads_share_a_view() -> None:
    model = Model(7)
    for _ in range(12):
        model.write()
    # So small that each thread drops what another has just read.
    view = TierView(model.bucket, SET, 2_000)
    view.refresh()

    def read_all(queue: tuple[str, int]) -> None:
        sent = model.of_queue(*queue)
        wanted = [(each.sent.offset, model.writer.records[each.place]) for each in sent]
        assert list(read_from(view, *queue, 0, 2**62)) == wanted
        assert [view.record_at(each.place) for each in sent] == [model.writer.records[each.place] for each in sent]

    queues = [(topic, queue_id) for topic in TOPICS for queue_id in range(2)]
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(read_all, queues * 4))


def test_a_set_without_segments_has_nothing() -> None:
    bucket = MemoryBucket()
    view = TierView(bucket, SET, CACHE)
    assert view.refresh() is None and view.bounds("t", 0) is None and view.queues() == []
    TierWriter(bucket)
    assert view.refresh() is not None
    assert (
        view.record_at(0) is None and view.with_key("t", "k", 0, 2**62, 1).records == [] and view.segment_at(0) is None
    )


def test_records_of_a_class_that_retention_has_removed_are_no_longer_there(
    minutes: tuple[MemoryBucket, list[str]],
) -> None:
    view, _ = opened(minutes[0])
    located = view.locate("t", 0, 0)
    assert located is not None and class_object(located).startswith(located.segment.folder)
    with pytest.raises(NoSuchObject, match=r"the records of t in .* are no longer there"):
        class_object(located._replace(segment=replace(located.segment, classes=())))
