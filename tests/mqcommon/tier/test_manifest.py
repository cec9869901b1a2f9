"""What a manifest says, and the changes that make the next one."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.mqcommon.tier.bucket import DamagedObject
from skylark.mqcommon.tier.framed import framed
from skylark.mqcommon.tier.manifest import (
    LEFTOVER_MS,
    MAX_LEFTOVERS,
    SPAN_SEGMENTS,
    TAIL_LEFTOVER_MS,
    TERM_BITS,
    Leftover,
    Manifest,
    Segment,
    Span,
    StoredObject,
    Tail,
    Tombstone,
    decode_manifest,
    decode_span,
    encode_manifest,
    encode_span,
    expired,
    first_manifest,
    span_of,
)

MIB = 1 << 20
NUMBERS = st.integers(0, 2**62)
NAMES = st.sampled_from(["set/seg/1/0.log", "set/seg/10/0.log", "a/index", "a", "0"])
STORED = st.builds(StoredObject, NAMES, NUMBERS, st.integers(0, 2**32 - 1))
SEGMENTS = st.builds(
    Segment,
    *[NUMBERS] * 7,
    st.sampled_from(["set/seg/1", "a"]),
    st.lists(st.tuples(st.integers(0, 1000), STORED), max_size=3).map(tuple),
    STORED,
    STORED,
)


def tuples(of: st.SearchStrategy[object]) -> st.SearchStrategy[tuple[object, ...]]:
    return st.lists(of, max_size=3).map(tuple)


MANIFESTS = st.builds(
    Manifest,
    NUMBERS,
    NUMBERS,
    st.binary(min_size=16, max_size=16),
    NUMBERS,
    NUMBERS,
    tuples(st.builds(Span, *[NUMBERS] * 5, STORED)),
    tuples(SEGMENTS),
    tuples(st.builds(Tail, NUMBERS, NUMBERS, STORED)),
    st.none() | STORED,
    tuples(st.builds(Tombstone, NAMES, NUMBERS)),
    tuples(st.builds(Leftover, NAMES, NUMBERS)),
)


def segment(number: int, *, classes: tuple[int, ...] = (0,)) -> Segment:
    """The ``number``-th segment of 1 MiB, of the minute ``number``."""
    folder = f"set/seg/{number * MIB:020}-1-x"
    objects = tuple((each, StoredObject(f"{folder}/{each}.log", 1000, 7)) for each in classes)
    index, keys = StoredObject(f"{folder}/index", 10, 8), StoredObject(f"{folder}/keys", 20, 9)
    first_ms = number * 60_000
    return Segment(number * MIB, (number + 1) * MIB, 5, 1, first_ms, first_ms + 59_999, 3, folder, objects, index, keys)


def tail(start: int, end: int) -> Tail:
    return Tail(start, end, StoredObject(f"set/tail/{start}-{end}", end - start, 3))


def manifest(segments: int = 0) -> Manifest:
    found = first_manifest(1, b"o" * 16, 1_000, MIB)
    return replace(found, segments=tuple(map(segment, range(segments)))) if segments else found


@given(MANIFESTS)
def test_a_manifest_comes_back(given_manifest: Manifest) -> None:
    assert decode_manifest(encode_manifest(given_manifest)) == given_manifest


@given(st.lists(SEGMENTS, max_size=3))
def test_a_span_comes_back(segments: list[Segment]) -> None:
    assert decode_span(encode_span(segments)) == tuple(segments)


@pytest.mark.parametrize("value", [None, 1, [], [1] * 11, {"a": 1}, [[1]]])
def test_a_frame_around_something_else_is_refused(value: object) -> None:
    with pytest.raises(DamagedObject):
        decode_manifest(framed(b"SKTM", 1, value))
    with pytest.raises(DamagedObject):
        decode_span(framed(b"SKTS", 1, [value]))


def test_segments_follow_each_other() -> None:
    two = manifest().with_segment(segment(0)).with_segment(segment(1))
    assert (two.start, two.end) == (0, 2 * MIB)
    with pytest.raises(ValueError, match="begins at 3145728"):
        two.with_segment(segment(3))
    with pytest.raises(ValueError, match="begins at 1048576"):
        two.with_segment(segment(1))


def test_the_first_segment_of_a_set_may_begin_anywhere() -> None:
    assert manifest().with_segment(segment(7)).start == 7 * MIB


def test_tails_follow_the_last_segment_and_leave_with_the_next() -> None:
    one = manifest(1).with_tail(tail(MIB, MIB + 100)).with_tail(tail(MIB + 100, MIB + 300))
    with pytest.raises(ValueError, match="before 1048876"):
        one.with_tail(tail(MIB + 301, MIB + 400))
    two = one.successor(5_000).with_segment(segment(1))
    assert two.tails == ()
    assert two.leftovers == tuple(Leftover(each.stored.name, 5_000) for each in one.tails)


def test_a_longer_tail_replaces_the_last_one() -> None:
    one = manifest(1).with_tail(tail(MIB, MIB + 100)).with_tail(tail(MIB + 100, MIB + 300))
    longer = one.with_tail(tail(MIB + 100, MIB + 900))
    assert [(each.start, each.end) for each in longer.tails] == [(MIB, MIB + 100), (MIB + 100, MIB + 900)]
    assert [each.name for each in longer.leftovers] == [one.tails[-1].stored.name]
    with pytest.raises(ValueError, match="a tail has bytes"):
        longer.with_tail(tail(MIB + 100, MIB + 800))


def test_an_owner_of_an_earlier_term_cannot_take_over() -> None:
    first = manifest()
    again = first.taken_over(1, b"p" * 16, 2_000)
    later = again.taken_over(5, b"q" * 16, 3_000)
    assert first.epoch < again.epoch < later.epoch == 5 << TERM_BITS
    assert [each.number for each in (first, again, later)] == [0, 1, 2]
    with pytest.raises(ValueError, match="term 4"):
        later.taken_over(4, b"r" * 16, 4_000)


def test_old_segments_become_a_span() -> None:
    many = manifest(SPAN_SEGMENTS)
    assert many.next_span() == ()
    many = many.with_segment(segment(SPAN_SEGMENTS))
    oldest = many.next_span()
    span = span_of(oldest, StoredObject("set/spans/0", 1, 1))
    spanned = many.with_span(span)
    assert len(oldest) == SPAN_SEGMENTS == span.segments
    assert (spanned.start, spanned.end) == (many.start, many.end)
    assert spanned.segments == (segment(SPAN_SEGMENTS),)
    assert (span.first_ms, span.last_ms) == (0, SPAN_SEGMENTS * 60_000 - 1)
    with pytest.raises(ValueError, match="oldest segments"):
        many.with_span(replace(span, end=span.end - 1))


def test_a_full_manifest_is_small() -> None:
    assert len(encode_manifest(manifest(SPAN_SEGMENTS))) < 300_000


def test_a_span_is_replaced_or_dropped_from_the_front() -> None:
    spans = [Span(0, MIB, 0, 1, 1, StoredObject("s0", 1, 1)), Span(MIB, 2 * MIB, 2, 3, 1, StoredObject("s1", 1, 1))]
    two = replace(manifest(), spans=tuple(spans), segments=(segment(2),))
    changed = two.with_span_changed(1, replace(spans[1], stored=StoredObject("s1b", 1, 1)), ["gone.log"])
    assert [each.stored.name for each in changed.spans] == ["s0", "s1b"]
    assert [each.name for each in changed.leftovers] == ["s1", "gone.log"]
    dropped = two.with_span_changed(0, None)
    assert (dropped.start, dropped.end) == (MIB, 3 * MIB)
    with pytest.raises(ValueError, match="only the oldest"):
        two.with_span_changed(1, None)
    with pytest.raises(ValueError, match="cannot become"):
        two.with_span_changed(1, replace(spans[1], start=0))


def test_leftovers_are_due_after_a_day() -> None:
    old = manifest().with_metadata(StoredObject("m1", 1, 1))
    assert old.leftovers == ()
    new = old.successor(50_000).with_metadata(StoredObject("m2", 1, 1))
    assert new.due_leftovers(50_000 + LEFTOVER_MS - 1) == []
    assert new.due_leftovers(50_000 + LEFTOVER_MS) == ["m1"]
    assert new.without_leftovers(["m1"]).leftovers == ()


def test_too_many_leftovers_lose_their_oldest_tails_before_the_time() -> None:
    first = replace(first_manifest(1, b"o" * 16, 0, 100), created_ms=0)
    names = [f"set/tail/{number}" if number % 2 else f"set/meta/{number}" for number in range(MAX_LEFTOVERS + 2)]
    many = replace(first, leftovers=tuple(Leftover(name, number) for number, name in enumerate(names)))
    assert many.due_leftovers(TAIL_LEFTOVER_MS) == []
    assert many.due_leftovers(TAIL_LEFTOVER_MS + 10) == ["set/tail/1", "set/tail/3"]
    few = replace(many, leftovers=many.leftovers[2:])
    assert few.due_leftovers(TAIL_LEFTOVER_MS + 10) == []


def test_a_topic_has_its_latest_tombstone() -> None:
    found = manifest(2)
    for each in (Tombstone("a", 500), Tombstone("b", 100), Tombstone("a", 300)):
        found = found.with_tombstone(each)
    assert sorted(found.tombstones, key=str) == [Tombstone("a", 500), Tombstone("b", 100)]
    kept = replace(found, segments=(segment(1),)).without_idle_tombstones()
    assert kept.tombstones == ()


def test_a_class_goes_when_its_newest_record_is_too_old() -> None:
    segments = [segment(number, classes=(0, 24)) for number in range(4)]
    kept, gone = expired(segments, {24: 120_000})
    assert [[number for number, _ in each.classes] for each in kept] == [[0], [0], [0, 24], [0, 24]]
    assert gone == [f"{each.folder}/24.log" for each in segments[:2]]


def test_segments_without_classes_go_from_the_front_only() -> None:
    segments = [segment(0, classes=(24,)), segment(1), segment(2, classes=(24,)), segment(3, classes=(24,))]
    before = {24: 10**9}
    kept, gone = expired(segments, before)
    assert [each.start for each in kept] == [MIB, 2 * MIB, 3 * MIB]
    assert [each.classes for each in kept[1:]] == [(), ()]
    assert f"{segments[0].folder}/index" in gone and f"{segments[2].folder}/index" not in gone
    # Once segment 1 is gone the empty ones follow, but the newest stays, as it says where the bucket ends.
    kept, gone = expired(kept, {0: 10**9})
    assert [each.start for each in kept] == [3 * MIB]
    assert {f"{segments[2].folder}/index", f"{segments[2].folder}/keys"} <= set(gone)
    assert [each.start for each in expired(segments, before, is_oldest=False)[0]] == [each.start for each in segments]
    assert expired([segments[0]], before, is_newest=False)[0] == []


def test_retention_takes_a_bounded_number_of_objects_at_a_time() -> None:
    segments = [segment(number, classes=(24,)) for number in range(100)]
    rounds = 0
    while len(segments) > 1:
        segments, gone = expired(segments, {24: 10**9}, most=30)
        assert 0 < len(gone) <= 30 + 3
        rounds += 1
    assert rounds >= 9
    for none_left in (0, -5):
        emptied = [segment(0, classes=()), segment(1, classes=(24,)), segment(2)]
        assert expired(emptied, {24: 10**9}, most=none_left) == (emptied, [])


def test_changed_segments_end_where_the_others_did() -> None:
    three = manifest(3)
    assert three.with_segments_changed(three.segments[1:], ["x"]).leftovers == (Leftover("x", 1_000),)
    for wrong in ((), three.segments[:2]):
        with pytest.raises(ValueError, match="must end"):
            three.with_segments_changed(wrong)


def test_a_set_whose_segments_are_all_in_spans_ends_with_the_last_span() -> None:
    one = manifest(2)
    whole = one.with_span(span_of(one.segments, StoredObject("set/spans/0", 1, 2)))
    assert (whole.segments, whole.start, whole.end) == ((), 0, 2 * MIB)
    assert whole.with_segment(segment(2)).end == 3 * MIB


def test_a_segment_has_bytes_and_leaves_no_gap_before_the_tail_after_it() -> None:
    with pytest.raises(ValueError, match="ends at 0, and begins at 0"):
        manifest().with_segment(replace(segment(0), end=0))
    tailed = manifest().with_tail(tail(0, 100)).with_tail(tail(100, 300))
    with pytest.raises(ValueError, match="the tail after it begins at 100"):
        tailed.with_segment(replace(segment(0), end=50))


def test_tails_of_a_log_that_was_cut_become_leftovers() -> None:
    tailed = manifest(1).with_tail(tail(MIB, MIB + 100)).with_tail(tail(MIB + 100, MIB + 300))
    cut = tailed.without_tails()
    assert cut.tails == () and cut.end == MIB
    assert [each.name for each in cut.leftovers] == [each.stored.name for each in tailed.tails]
