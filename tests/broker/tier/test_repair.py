"""A damaged index of the newest segment, or a damaged newest manifest, stops no upload for longer than its repair."""

import pytest

from skylark.mqcommon.tier.bucket import DamagedObject
from skylark.mqcommon.tier.layout import MANIFESTS
from skylark.mqcommon.tier.manifests import ManifestLog
from skylark.mqcommon.tier.restore import NotWhole
from skylark.mqcommon.tier.verify import verify_set
from skylark.mqcommon.tier.view import TierView
from tests.broker.store.cleaning import clean
from tests.broker.tier.test_purge import filled, holds, messages, purged
from tests.broker.tier.test_tier import HOUR_MS, Rig, restored
from tests.support.inline_tier import SET

DAMAGES = {
    "a wrong byte in its head": lambda data: data[:20] + bytes([data[20] ^ 1]) + data[21:],
    "a wrong byte in its queues": lambda data: data[:100] + bytes([data[100] ^ 1]) + data[101:],
    "cut": lambda data: data[:50],
    "missing": lambda data: None,
}


def damage(rig: Rig, name: str, kind: str) -> None:
    data = DAMAGES[kind](rig.bucket.objects.pop(name)[0])
    if data is not None:
        rig.bucket.objects[name] = data, rig.bucket.now_ms


def all_messages(rig: Rig) -> list[list[bytes]]:
    return [messages(rig.bucket, topic, queue) for topic in ("t", "gone", "again") for queue in (0, 1)]


@pytest.mark.parametrize("kind", DAMAGES)
@pytest.mark.parametrize("is_local", [True, False])
async def test_the_newest_index_is_made_again_and_the_next_file_is_uploaded(
    kind: str, is_local: bool, caplog: pytest.LogCaptureFixture
) -> None:
    rig = filled()
    tier = rig.tier()
    await tier.settle()
    before, segments = all_messages(rig), rig.segments()
    content = {segment.start: restored(rig.bucket, segment) for segment in segments}
    if not is_local:
        assert clean(rig.fs, rig.store, 1_000) >= len(segments)
    # Two of them: each index carries on the queues of the one before.
    for segment in segments[-2:]:
        damage(rig, segment.index.name, kind)
    rig.fill(40)
    await tier.settle()
    assert not tier.tier.problem and len(rig.segments()) > len(segments)
    assert rig.segments()[: len(segments) - 2] == segments[:-2]
    assert [each.folder == old.folder for each, old in zip(rig.segments(), segments, strict=False)][-2:] == [False] * 2
    assert {each.start: restored(rig.bucket, each) for each in rig.segments()[: len(segments)]} == content
    assert all(now[: len(old)] == old for now, old in zip(all_messages(rig), before, strict=True))
    source = "the log on this disk" if is_local else "the records in the bucket"
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert errors and all(text.endswith(f"The segment is made again of {source}") for text in errors)
    rig.pass_time(25 * HOUR_MS)
    await tier.settle()
    assert verify_set(rig.bucket, SET, ManifestLog(rig.bucket, SET), full=True).is_sound


async def test_a_broker_without_new_messages_repairs_the_index_that_its_readers_need() -> None:
    rig = filled()
    tier = rig.tier()
    await tier.settle()
    before = all_messages(rig)
    damage(rig, rig.segments()[-1].index.name, "a wrong byte in its queues")
    with pytest.raises(DamagedObject):
        all_messages(rig)
    rig.pass_time(HOUR_MS)
    await tier.settle()
    assert all_messages(rig) == before


async def test_a_repair_of_a_purged_segment_from_the_log_brings_no_deleted_topic_back() -> None:
    rig = filled()
    tier = rig.tier()
    await tier.settle()
    tier.deletions["gone"] = rig.store.log.end
    await purged(rig, tier)
    before = all_messages(rig)
    rig.pass_time(25 * HOUR_MS)
    await tier.settle()
    assert not holds(rig.bucket, b"gone 1")
    damage(rig, rig.segments()[-1].index.name, "missing")
    rig.pass_time(HOUR_MS)
    await tier.settle()
    assert not holds(rig.bucket, b"gone 1") and all_messages(rig) == before
    assert verify_set(rig.bucket, SET, ManifestLog(rig.bucket, SET), full=True).is_sound
    with pytest.raises(NotWhole, match="their topics were purged"):
        restored(rig.bucket, rig.segments()[-1])


async def test_without_new_messages_too_the_problem_lasts_until_the_index_is_back() -> None:
    rig = filled()
    tier = rig.tier()
    await tier.settle()
    newest = rig.segments()[-1]
    assert clean(rig.fs, rig.store, 1_000)
    saved = dict(rig.bucket.objects)
    for name in (newest.index.name, *(stored.name for _, stored in newest.classes)):
        damage(rig, name, "missing")
    rig.pass_time(HOUR_MS)
    for _ in range(3):
        await tier.settle()
        assert "cannot be made again" in tier.tier.problem
        rig.pass_time(600_000)
    rig.bucket.objects = saved
    await tier.settle()
    assert not tier.tier.problem


async def test_an_index_that_cannot_be_made_again_is_an_error_with_the_way_on_until_it_is_back() -> None:
    rig = filled()
    tier = rig.tier()
    await tier.settle()
    segments = rig.segments()
    assert clean(rig.fs, rig.store, 1_000) >= len(segments)
    newest = segments[-1]
    names = [newest.index.name, *(stored.name for _, stored in newest.classes)]
    saved = {name: rig.bucket.objects[name] for name in names}
    for name in names:
        damage(rig, name, "missing")
    rig.fill(40)
    await tier.settle()
    assert "cannot be made again" in tier.tier.problem and "from their versions or a copy" in tier.tier.problem
    assert rig.segments() == segments
    # Copies of the metadata go on.
    tier.copies.now = b"other topics"
    rig.pass_time(HOUR_MS)
    await tier.settle()
    assert tier.copies.now is None and tier.tier.problem
    rig.bucket.objects |= saved
    rig.pass_time(HOUR_MS)
    await tier.settle()
    assert not tier.tier.problem and len(rig.segments()) > len(segments)
    assert rig.segments()[: len(segments)] == segments


async def test_after_a_damaged_manifest_the_next_owner_goes_on_from_the_one_before(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = filled()
    tier = rig.tier()
    await tier.settle()
    before, content = all_messages(rig), {each.start: restored(rig.bucket, each) for each in rig.segments()}
    newest = ManifestLog(rig.bucket, SET).newest()
    assert newest is not None
    for number in (newest.number - 1, newest.number):
        damage(rig, f"{SET}/{MANIFESTS}/{number:020}", "a wrong byte in its head")
    with pytest.raises(DamagedObject, match=f"manifest {newest.number}: a manifest is damaged"):
        TierView(rig.bucket, SET, 1 << 20).refresh()
    tier = rig.tier()
    await tier.settle()
    assert not tier.tier.problem
    assert f"goes on from manifest {newest.number - 2}" in caplog.text
    assert all_messages(rig) == before
    assert {each.start: restored(rig.bucket, each) for each in rig.segments()} == content
    rig.pass_time(8 * 24 * HOUR_MS)
    await tier.settle()
    assert verify_set(rig.bucket, SET, ManifestLog(rig.bucket, SET), full=True).is_sound


async def test_when_the_damaged_manifest_alone_named_files_that_have_left_the_disk_the_owner_waits_for_it() -> None:
    rig = filled()
    tier = rig.tier()
    await tier.settle()
    numbers = [int(name[-20:]) for name in rig.names(MANIFESTS)]
    assert clean(rig.fs, rig.store, 1_000)
    saved = dict(rig.bucket.objects)
    for number in numbers[2:]:
        damage(rig, f"{SET}/{MANIFESTS}/{number:020}", "cut")
    tier = rig.tier()
    await tier.settle()
    assert "bring that object back from its versions" in tier.tier.problem
    assert rig.names(MANIFESTS) == [f"{SET}/{MANIFESTS}/{number:020}" for number in numbers]
    rig.bucket.objects.update(saved)
    rig.pass_time(HOUR_MS)
    await tier.settle()
    assert not tier.tier.problem
