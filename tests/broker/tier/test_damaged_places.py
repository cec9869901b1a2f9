"""At damage in the bucket readers wait for damagedHoldMs; then they skip what is damaged until it is right again."""

import logging
from collections.abc import Callable
from functools import partial

import pytest

from skylark.broker.store.reader import GetStatus, read_queue
from skylark.broker.tier import damaged_places
from skylark.broker.tier.damaged_places import DamagedPlaces
from skylark.broker.tier.stretch_cache import StretchCache
from skylark.mqcommon.errors import StoreError
from skylark.mqcommon.message.columns import record_starts
from skylark.mqcommon.message.record import decode_record
from skylark.mqcommon.names import TIMER_TOPIC
from skylark.mqcommon.tier import index_builder, segment_index
from skylark.mqcommon.tier.bucket import DamagedObject
from skylark.mqcommon.tier.manifest import Segment
from tests.broker.delivery.later import Timers
from tests.broker.store.support import open_store, put
from tests.broker.tier.test_reads import LostBucket, filled
from tests.broker.tier.test_waiting_messages import MINUTE_MS, leave
from tests.broker.tier.uploaded import Uploaded, asked
from tests.support.clock import ManualClock
from tests.support.memory_files import MemoryFiles
from tests.support.waiting import until

HOLD_MS = 60_000


def wrong(bucket: LostBucket, name: str, at: int) -> None:
    data = bytearray(bucket.objects[name][0])
    data[at] ^= 1
    bucket.objects[name] = bytes(data), 0


def read_all(uploaded: Uploaded) -> list[int]:
    """The queue offsets of all messages that a reader gets from offset 0 on."""
    store = uploaded.store
    queue = store.queues.get("t", 0)
    found: list[int] = []
    offset = 0
    while offset < queue.next_offset:
        result = asked(partial(read_queue, store.log, queue, offset, 32, 1 << 20))
        assert result.status in (GetStatus.FOUND, GetStatus.NO_MATCHED_MESSAGE) and result.next_offset > offset
        found += [decode_record(result.records, at).queue_offset for at in record_starts(result.records)]
        offset = result.next_offset
    return found


def class_of(segment: Segment) -> str:
    return segment.classes[0][1].name


def offsets_of(uploaded: Uploaded, segment: Segment) -> range:
    row = uploaded.view.table(segment).find("t", 0)
    assert row is not None
    uploaded.view._cache = type(uploaded.view._cache)(1 << 20)
    return range(row.first_offset, row.next_offset)


DAMAGES: dict[str, Callable[[LostBucket, Segment], None]] = {
    "a wrong byte in a message": lambda bucket, segment: wrong(bucket, class_of(segment), 2_000),
    "a missing object": lambda bucket, segment: bucket.delete([class_of(segment)]),
    "a wrong byte in an index": lambda bucket, segment: wrong(bucket, segment.index.name, 100),
    "wrong stretches in an index": lambda bucket, segment: wrong(bucket, segment.index.name, segment.index.size - 40),
    "a missing index": lambda bucket, segment: bucket.delete([segment.index.name]),
}


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("kind", DAMAGES)
def test_readers_wait_and_then_skip_what_is_damaged_until_it_is_right_again(
    kind: str, number: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (segment_index, index_builder):
        monkeypatch.setattr(module, "STRETCH_BYTES", 1_000)
    bucket = LostBucket()
    _, uploaded = filled(bucket)
    uploaded.hold_ms = HOLD_MS
    segment = uploaded.manifest.segments[number]
    saved = dict(bucket.objects)
    offsets = offsets_of(uploaded, segment)
    DAMAGES[kind](bucket, segment)
    for ms in (0, HOLD_MS - 1):
        uploaded.clock.advance(ms)
        with pytest.raises(StoreError, match="missing or damaged"):
            read_all(uploaded)
    assert uploaded.reads.damaged.skipped_messages == 0
    uploaded.clock.advance(1)
    caplog.clear()
    found = read_all(uploaded)
    assert found == read_all(uploaded) == sorted(set(found)) and found == [each for each in range(60) if each in found]
    skipped = set(range(60)) - set(found)
    assert skipped and skipped <= set(offsets)
    if kind == "a wrong byte in a message":
        assert 1 < len(skipped) < len(offsets), "one stretch"
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len(errors) <= 2 and all("Readers skip them" in text for text in errors)
    assert uploaded.reads.damaged.skipped_messages == len(skipped)
    bucket.objects = dict(saved)
    assert read_all(uploaded) == list(range(60))
    # What was right and is damaged again is waited for again.
    uploaded.view._cache = type(uploaded.view._cache)(1 << 20)
    uploaded.reads.cache = StretchCache(1 << 20)
    DAMAGES[kind](bucket, segment)
    for ms in (0, HOLD_MS - 1):
        uploaded.clock.advance(ms)
        with pytest.raises(StoreError, match="missing or damaged"):
            read_all(uploaded)
    uploaded.clock.advance(1)
    assert read_all(uploaded) == found


def test_what_follows_skipped_damage_is_read_without_the_damaged_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (segment_index, index_builder):
        monkeypatch.setattr(module, "STRETCH_BYTES", 1_000)
    bucket = LostBucket()
    _, uploaded = filled(bucket)
    uploaded.hold_ms = 0
    segment = uploaded.manifest.segments[1]
    wrong(bucket, class_of(segment), 1_500)
    after = [offset for offset in read_all(uploaded) if offset in offsets_of(uploaded, segment)][-1]
    uploaded.reads.cache = StretchCache(1 << 20)
    bucket.ranges.clear()
    queue = uploaded.store.queues.get("t", 0)
    result = asked(partial(read_queue, uploaded.store.log, queue, after, 1, 1 << 20))
    assert decode_record(result.records).queue_offset == after
    read = [(start, size) for name, start, size in bucket.ranges if name == class_of(segment)]
    assert read and not any(start <= 1_500 < start + size for start, size in read)


def test_with_the_policy_hold_readers_wait_for_ever_and_read_what_is_before() -> None:
    bucket = LostBucket()
    store, uploaded = filled(bucket)
    first = offsets_of(uploaded, uploaded.manifest.segments[1])[0]
    wrong(bucket, class_of(uploaded.manifest.segments[1]), 2_000)
    for _ in range(2):
        result = asked(partial(store.get, "t", 0, 0, 32, 1 << 20))
        assert (result.status, result.next_offset) == (GetStatus.FOUND, first)
        with pytest.raises(StoreError, match="missing or damaged"):
            asked(partial(store.get, "t", 0, first, 32, 1 << 20))
        uploaded.clock.advance(1 << 40)


def test_a_message_by_its_place_in_the_log_is_gone_after_the_time() -> None:
    bucket = LostBucket()
    store, uploaded = filled(bucket)
    uploaded.hold_ms = HOLD_MS
    physical = decode_record(asked(partial(store.get, "t", 0, 20, 1, 1 << 20)).records).physical_offset
    wrong(bucket, class_of(uploaded.manifest.segments[1]), 2_000)
    with pytest.raises(StoreError, match="missing or damaged"):
        asked(partial(store.record_at, physical))
    uploaded.clock.advance(HOLD_MS)
    assert asked(partial(store.record_at, physical)) is None


def test_a_message_by_its_place_in_the_log_is_waited_for_in_each_object_that_is_damaged() -> None:
    bucket = LostBucket()
    store, uploaded = filled(bucket)
    uploaded.hold_ms = HOLD_MS
    segments = uploaded.manifest.segments[:2]
    saved = dict(bucket.objects)
    rows = [uploaded.view.table(segment).find("t", 0) for segment in segments]
    places = [row.first_physical for row in rows if row is not None]
    records = [asked(partial(store.record_at, place)) for place in places]
    for segment, place in [*zip(segments, places, strict=True), (segments[0], places[0])]:
        # Neither earlier damage of another object counts, nor of this object if its bytes were right since.
        bucket.delete([class_of(segment)])
        with pytest.raises(StoreError, match="missing or damaged"):
            asked(partial(store.record_at, place))
        uploaded.clock.advance(HOLD_MS)
        assert asked(partial(store.record_at, place)) is None
        bucket.objects = dict(saved)
        assert [asked(partial(store.record_at, each)) for each in places] == records


async def test_timed_messages_after_damaged_ones_are_delivered(caplog: pytest.LogCaptureFixture) -> None:
    timers, bucket = Timers(), LostBucket()
    async with timers.running():
        for number in range(30):
            timers.send(b"%d" % number * 300, MINUTE_MS)
        await until(lambda: timers.part.read_to == 30, "entries")
        uploaded = leave(timers, bucket, TIMER_TOPIC)
        uploaded.hold_ms = HOLD_MS
        wrong(bucket, class_of(uploaded.manifest.segments[1]), 2_000)
        timers.clock.advance(2 * MINUTE_MS)
        await until(lambda: uploaded.reads.figures.failures > 0, "an attempt")
        assert len(timers.bodies()) < 30
        uploaded.clock.advance(HOLD_MS)
        await until(lambda: timers.part.waiting == 0, "deliveries")
    skipped = uploaded.reads.damaged.skipped_messages
    assert 0 < skipped < 30 and len(timers.bodies()) == 30 - skipped
    assert timers.bodies()[-1] == b"29" * 300
    assert [record.levelno for record in caplog.records if "Readers skip them" in record.message] == [logging.ERROR]


def test_readers_of_any_number_of_queues_wait_together_at_one_damaged_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(damaged_places, "MAX_OBJECTS", 2)
    bucket, fs = LostBucket(), MemoryFiles()
    store = open_store(fs)
    queues = range(6)
    for number in range(60):
        put(store, "t", number % len(queues), b"%d" % number * 200)
    uploaded = Uploaded(fs, store, bucket=bucket)
    uploaded.clean()
    uploaded.hold_ms = HOLD_MS
    first, *_, last = uploaded.manifest.segments
    bucket.delete([first.index.name])
    assert first != last
    for _ in range(2):
        for queue in queues:
            with pytest.raises(StoreError, match="missing or damaged"):
                asked(partial(store.get, "t", queue, 0, 1, 1 << 20))
    uploaded.clock.advance(HOLD_MS)
    assert [asked(partial(store.get, "t", queue, 0, 1, 1 << 20)).count for queue in queues] == [1] * len(queues)


def test_a_damaged_index_keeps_no_reader_from_the_newest_manifest() -> None:
    bucket = LostBucket()
    _, uploaded = filled(bucket)
    assert uploaded.reads._try_refresh([]) and uploaded.reads.first_offset("t", 0, 60) == 0
    oldest, second, *rest = uploaded.manifest.segments
    later = uploaded.manifest.successor(1).with_segments_changed([second, *rest], [class_of(oldest)])
    uploaded.manifests.append(later)
    bucket.delete([second.index.name])
    for _ in range(2):
        assert uploaded.reads._try_refresh([]) and uploaded.view.manifest == later
    assert uploaded.reads.known_first("t", 0) == 0


def test_beyond_the_most_objects_the_first_object_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(damaged_places, "MAX_OBJECTS", 2)
    clock = ManualClock()
    places = DamagedPlaces(clock, lambda: 1)
    error = DamagedObject("CRC")
    for number in range(3):
        assert not places.may_pass((f"object {number}", 5), "it", 1, error)
    clock.advance(1)
    assert [places.may_pass((f"object {number}", 5), "it", 1, error) for number in (1, 2, 0)] == [True, True, False]
    assert places.skipped_messages == 2


def test_beyond_the_most_places_of_an_object_the_first_place_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(damaged_places, "MAX_PLACES", 2)
    places = DamagedPlaces(ManualClock(), lambda: 0)
    for position in (0, 1, 2, 2, 0):
        assert places.may_pass(("object", position), "it", 1, DamagedObject("CRC"))
    assert [("object", position) in places for position in (0, 1, 2)] == [True, False, True]
    assert places.skipped_messages == 4


def test_the_time_of_an_object_is_waited_for_once_and_begins_anew_when_it_was_right(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = ManualClock()
    places = DamagedPlaces(clock, lambda: 10)
    error = DamagedObject("CRC")
    assert not places.may_pass(("object", 0), "it", 1, error)
    clock.advance(10)
    for _ in range(2):
        assert places.may_pass(("object", 0), "it", 1, error) and places.may_pass(("object", 5), "it", 2, error)
    assert places.skipped_messages == 3 and len(caplog.records) == 1
    places.was_read(("object", 0))
    assert ("object", 0) not in places and ("object", 5) in places
    places.was_read(("object", 5))
    assert not places.may_pass(("object", 5), "it", 2, error)
