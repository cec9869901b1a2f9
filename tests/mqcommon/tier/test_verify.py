"""A check of a set names each object that is missing or wrong, and nothing else."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skylark.mqcommon.tier.bucket import BucketAway, NoSuchObject, ObjectInfo
from skylark.mqcommon.tier.manifest import StoredObject, Tail, encode_span, span_of
from skylark.mqcommon.tier.manifests import ManifestLog
from skylark.mqcommon.tier.verify import Verified, verify_set
from tests.support.memory_bucket import MemoryBucket
from tests.support.tier_segments import SET, Sent, TierWriter


def written(segments: int = 3) -> TierWriter:
    """A set with segments, the oldest two of which are in a span if there are more than two, metadata and a tail."""
    writer = TierWriter(MemoryBucket(), lambda topic: 7 if topic == "t" else 0)
    for number in range(segments):
        writer.add([Sent("s", 0, number, b"one", 1_000), Sent("t", 0, number, b"other", 1_000)])
    manifest = writer.manifest
    if segments > 2:
        old = manifest.segments[:2]
        span = span_of(old, writer.store(f"{SET}/spans/0-r", encode_span(old)))
        manifest = manifest.successor(2_000).with_span(span)
    manifest = manifest.with_metadata(writer.store(f"{SET}/meta/1-r", b"topics"))
    tail = Tail(writer.end, writer.end + 4, writer.store(f"{SET}/tail/0-1-r", b"tail"))
    if segments <= 2:
        manifest = manifest.successor(2_000)
    writer.change(manifest.with_tail(tail))
    return writer


def verified(bucket: MemoryBucket, *, full: bool = False) -> Verified:
    return verify_set(bucket, SET, ManifestLog(bucket, SET), full=full)


def objects(bucket: MemoryBucket) -> list[str]:
    """All objects but manifests."""
    return sorted(name for name in bucket.objects if not name.startswith(f"{SET}/manifest/"))


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("segments", [1, 3])
def test_a_whole_set_is_sound(segments: int, full: bool) -> None:
    writer = written(segments)
    found = verified(writer.bucket, full=full)
    assert found.is_sound and found.segments == segments
    assert found.objects == len(objects(writer.bucket))
    sizes = sum(len(writer.bucket.objects[name][0]) for name in objects(writer.bucket))
    assert (found.stored_bytes, found.checked_bytes) == (sizes, sizes if full else 0)
    assert (found.start, found.end, found.tail_to) == (0, writer.end, writer.end + 4)


def test_a_bucket_without_the_set_has_no_manifest() -> None:
    found = verified(MemoryBucket())
    assert found.manifest == -1 and found.is_sound and not found.objects


@settings(max_examples=30)
@given(st.data())
def test_each_loss_is_found(data: st.DataObject) -> None:
    bucket = written().bucket
    name = data.draw(st.sampled_from(objects(bucket)))
    kind = data.draw(st.sampled_from(["lost", "shorter", "changed"]))
    raw = bucket.objects[name][0]
    if kind == "lost":
        bucket.delete([name])
    elif kind == "shorter":
        bucket.put(name, [raw[:-1]])
    else:
        bucket.put(name, [bytes([raw[0] ^ 1]) + raw[1:]])
    found = verified(bucket, full=kind == "changed")
    assert not found.is_sound
    if kind == "lost":
        assert found.missing == [name] and not found.damaged
    else:
        assert len(found.damaged) == 1 and found.damaged[0].startswith(name) and not found.missing


def test_the_sizes_alone_do_not_show_a_changed_byte() -> None:
    bucket = written().bucket
    name = next(name for name in objects(bucket) if name.endswith("/7.log"))
    raw = bucket.objects[name][0]
    bucket.put(name, [bytes([raw[0] ^ 1]) + raw[1:]])
    assert verified(bucket).is_sound and not verified(bucket, full=True).is_sound


def test_bytes_of_the_log_that_are_in_no_segment_are_a_gap() -> None:
    writer = written(2)
    one, two = writer.manifest.segments
    writer.change(replace(writer.manifest.successor(3_000), segments=(replace(one, end=one.end - 1), two)))
    assert len(verified(writer.bucket).gaps) == 1


class Moving(MemoryBucket):
    """While it is checked, the owner replaces the metadata, and removes the old copy."""

    writer: TierWriter

    def head(self, name: str) -> ObjectInfo:
        if name.startswith(f"{SET}/meta/1"):
            self.writer.change(
                self.writer.manifest.successor(4_000).with_metadata(self.writer.store(f"{SET}/meta/2-r", b"topics"))
            )
            raise NoSuchObject(name)
        return super().head(name)


def test_what_a_later_manifest_no_longer_needs_is_not_missing() -> None:
    writer = written()
    moving = Moving()
    moving.objects, moving.writer = writer.bucket.objects, writer
    assert isinstance(writer.manifest.metadata, StoredObject)
    assert verified(moving).is_sound


def test_a_bucket_that_goes_away_gives_no_verdict() -> None:
    bucket = written().bucket
    plain = bucket.head

    def head(name: str) -> ObjectInfo:
        if "/seg/" in name:
            raise BucketAway(name)
        return plain(name)

    bucket.head = head  # type: ignore[method-assign]
    with pytest.raises(BucketAway):
        verified(bucket)


def test_bytes_between_two_tails_are_a_gap() -> None:
    writer = written(2)
    (tail,) = writer.manifest.tails
    other = Tail(tail.end + 1, tail.end + 5, writer.store(f"{SET}/tail/1-1-r", b"more"))
    writer.change(replace(writer.manifest.successor(3_000), tails=(tail, other)))
    (gap,) = verified(writer.bucket).gaps
    assert (
        gap == f"{other.stored.name} begins at {other.start:,} of the log, and what is before it ends at {tail.end:,}"
    )
