"""A purge takes the bytes of deleted topics out of the bucket, and nothing else changes for readers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.broker.tier.guard import queue_ends
from skylark.broker.tier.owner import SetOwner
from skylark.mqcommon.errors import RequestRefused
from skylark.mqcommon.tier import manifest as manifest_module
from skylark.mqcommon.tier.manifest import Segment, StoredObject, encode_span, span_of
from skylark.mqcommon.tier.manifests import ManifestLog
from skylark.mqcommon.tier.records import stored_records
from skylark.mqcommon.tier.restore import NotWhole
from skylark.mqcommon.tier.verify import verify_set
from skylark.mqcommon.tier.view import TierView
from tests.broker.store.support import put
from tests.broker.tier.test_tier import HOUR_MS, Rig, restored
from tests.support.clock import ManualClock
from tests.support.inline_tier import SET, InlineTier
from tests.support.memory_bucket import MemoryBucket
from tests.support.tier_segments import Sent, TierWriter


class NoLog:
    """A log that nobody reads."""

    start = end = segment_bytes = 0

    def read(self, offset: int, size: int) -> bytes:
        raise AssertionError


def filled() -> Rig:
    """Files that have messages of t, of the deleted topic gone, and of again, which was deleted and made again."""
    rig = Rig(0)
    for number in range(40):
        for topic in ("t", "gone", "again"):
            put(rig.store, topic, number % 2, b"%s %d" % (topic.encode(), number) * 9, b"KEYS\x01k%d\x02" % number)
    rig.store.flush()
    return rig


def messages(bucket: MemoryBucket, topic: str, queue_id: int) -> list[bytes]:
    """What a reader of a queue gets from the bucket."""
    view = TierView(bucket, SET, 1 << 20)
    view.refresh()
    found: list[bytes] = []
    bounds = view.bounds(topic, queue_id)
    offset = bounds[0] if bounds else 0
    while (located := view.locate(topic, queue_id, offset)) is not None:
        data = view.read(located, view.stretches(located, offset, located.row.next_offset))
        found += [data[each.at : each.at + each.size] for each in stored_records(data)]
        offset = located.row.next_offset
    return found


def next_offsets(bucket: MemoryBucket) -> dict[tuple[str, int], int]:
    """Where a store that is made of the bucket has each queue go on."""
    view = TierView(bucket, SET, 1 << 20)
    view.refresh()
    return {(end.topic, end.queue_id): end.next_offset for end in queue_ends(view)}


def holds(bucket: MemoryBucket, text: bytes) -> bool:
    return any(text in data for name, (data, _) in bucket.objects.items() if "/seg/" in name)


async def purged(rig: Rig, tier: InlineTier) -> None:
    tier.tier.begin_purge()
    assert tier.tier.status().purge_left == tier.tier.status().segments > 0
    await tier.settle()
    assert tier.tier.status().purge_left == 0


@pytest.mark.parametrize("in_span", [False, True])
async def test_the_bytes_of_a_deleted_topic_go_and_all_others_stay(
    in_span: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if in_span:
        monkeypatch.setattr(manifest_module, "SPAN_SEGMENTS", 2)
    rig = filled()
    tier = rig.tier()
    await tier.settle()
    before = {queue: messages(rig.bucket, "t", queue) for queue in (0, 1)}
    assert all(before.values()) and messages(rig.bucket, "gone", 0)
    tier.deletions["gone"] = rig.store.log.end
    await tier.settle()
    assert not messages(rig.bucket, "gone", 0) and holds(rig.bucket, b"gone 1")
    await purged(rig, tier)
    rig.pass_time(25 * HOUR_MS)
    await tier.settle()
    assert not holds(rig.bucket, b"gone 1")
    assert {queue: messages(rig.bucket, "t", queue) for queue in (0, 1)} == before
    assert verify_set(rig.bucket, SET, ManifestLog(rig.bucket, SET), full=True).is_sound
    view = TierView(rig.bucket, SET, 1 << 20)
    view.refresh()
    assert view.with_key("t", "k7", 0, 1 << 60, 10).records
    assert not view.with_key("gone", "k7", 0, 1 << 60, 10).records
    manifest = ManifestLog(rig.bucket, SET).newest()
    assert manifest is not None and bool(manifest.spans) == in_span
    with pytest.raises(NotWhole, match="their topics were purged"):
        restored(rig.bucket, manifest.segments[0])
    # Nothing is left to do, so nothing is written.
    await purged(rig, tier)
    assert ManifestLog(rig.bucket, SET).newest() == manifest


async def test_a_tombstone_goes_when_no_object_has_bytes_of_its_topic_and_the_broker_has_forgotten_the_deletion() -> (
    None
):
    rig = filled()
    tier = rig.tier()
    await tier.settle()

    def tombstones() -> list[str]:
        manifest = ManifestLog(rig.bucket, SET).newest()
        assert manifest is not None
        return [each.topic for each in manifest.tombstones]

    tier.deletions["gone"] = rig.store.log.end
    await purged(rig, tier)
    assert tombstones() == ["gone"], "the open file has bytes of it"
    rig.fill(40)
    await tier.settle()
    assert tombstones() == ["gone"]
    # The last file with its bytes is purged; the broker knows the deletion as long as its own log has bytes.
    await purged(rig, tier)
    assert tombstones() == ["gone"]
    del tier.deletions["gone"]
    rig.pass_time(HOUR_MS)
    await tier.settle()
    assert tombstones() == []
    rig.pass_time(25 * HOUR_MS)
    await tier.settle()
    assert not holds(rig.bucket, b"gone 1") and not messages(rig.bucket, "gone", 0)
    view = TierView(rig.bucket, SET, 1 << 20)
    view.refresh()
    assert ("gone", 0) not in view.queues() and ("t", 0) in view.queues()


async def test_a_tombstone_stays_as_long_as_a_damaged_segment_may_have_bytes_of_its_topic() -> None:
    rig = filled()
    tier = rig.tier()
    await tier.settle()
    ((_, stored),) = rig.segments()[0].classes
    saved = rig.bucket.objects[stored.name]
    rig.bucket.objects[stored.name] = saved[0][:-1] + b"?", 0
    tier.deletions["gone"] = rig.store.log.end
    rig.fill(60)
    await tier.settle()
    await purged(rig, tier)
    tier.deletions.clear()
    for is_gone in (False, True):
        await purged(rig, tier)
        manifest = ManifestLog(rig.bucket, SET).newest()
        assert manifest is not None and (not manifest.tombstones) == is_gone
        rig.bucket.objects[stored.name] = saved


async def test_a_queue_whose_messages_retention_has_removed_goes_on_at_its_next_offset_after_a_purge() -> None:
    rig = filled()
    tier = rig.tier()
    tier.classes["t"], tier.copies.now = 1, None
    await tier.settle()
    rig.pass_time(2 * HOUR_MS)
    await tier.settle()
    assert all(len(segment.classes) == 1 for segment in rig.segments())
    before = next_offsets(rig.bucket)
    assert before["t", 0] and before["t", 1]
    # The second purge finds an index that has the queues of t without messages.
    for topic in ("gone", "again"):
        tier.deletions[topic] = rig.store.log.end
        folders = {segment.folder for segment in rig.segments()}
        await purged(rig, tier)
        assert not folders & {segment.folder for segment in rig.segments()}
        before = {queue: end for queue, end in before.items() if queue[0] != topic}
        assert next_offsets(rig.bucket) == before


async def test_of_a_topic_that_was_made_again_the_later_messages_stay() -> None:
    rig = filled()
    tombstone = rig.store.log.end
    rig.store.delete_topic("again", tombstone)
    for number in range(30):
        put(rig.store, "again", 0, b"later %d" % number * 9)
        put(rig.store, "t", 0, b"fill" * 20)
    rig.store.flush()
    tier = rig.tier()
    await tier.settle()
    tier.deletions["again"] = tombstone
    await tier.settle()
    before = messages(rig.bucket, "again", 0)
    assert before and holds(rig.bucket, b"again 1")
    await purged(rig, tier)
    rig.pass_time(25 * HOUR_MS)
    await tier.settle()
    assert not holds(rig.bucket, b"again 1")
    assert messages(rig.bucket, "again", 0) == before


async def test_a_damaged_segment_keeps_no_other_from_being_purged(caplog: pytest.LogCaptureFixture) -> None:
    rig = filled()
    tier = rig.tier()
    await tier.settle()
    first, second = rig.segments()[:2]
    ((_, stored),) = first.classes
    rig.bucket.objects[stored.name] = rig.bucket.objects[stored.name][0][:-1] + b"?", 0
    tier.deletions["gone"] = rig.store.log.end
    await tier.settle()
    await purged(rig, tier)
    assert not tier.tier.problem
    assert [record.levelname for record in caplog.records if first.folder in record.message] == ["ERROR"]
    assert rig.segments()[0] == first and rig.segments()[1].folder != second.folder


async def test_only_the_owner_purges() -> None:
    rig = filled()
    tier = rig.tier()
    with pytest.raises(RequestRefused, match="does not write to its bucket: it has not begun yet"):
        tier.tier.begin_purge()


@given(st.integers(1, 6), st.integers(1, 4))
def test_each_segment_is_found_with_the_one_before_it(count: int, in_span: int) -> None:
    bucket = MemoryBucket()
    writer = TierWriter(bucket)
    segments = [writer.add([Sent("t", 0, number, b"x", 1)]) for number in range(count)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manifest_module, "SPAN_SEGMENTS", in_span)
        while some := writer.manifest.next_span():
            raw = encode_span(some)
            bucket.put(f"span-{some[0].start}", [raw])
            stored = StoredObject(f"span-{some[0].start}", len(raw), 0)
            writer.change(writer.manifest.successor(1).with_span(span_of(some, stored)))
    owner = SetOwner(bucket, SET, NoLog(), ManualClock())
    owner.manifest = writer.manifest
    at, found = 0, list[Segment]()
    while (segment := (pair := owner.segment_after(at))[0]) is not None:
        assert pair[1] == (found[-1] if found else None)
        found.append(segment)
        at = segment.end
    assert found == segments
