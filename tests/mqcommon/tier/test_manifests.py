"""The newest manifest is found without a list, and no bucket that keeps its word lets two owners fork a set."""

from contextlib import suppress
from dataclasses import dataclass, field, replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.mqcommon.tier.bucket import BucketAway, NoSuchObject
from skylark.mqcommon.tier.layout import manifest_name
from skylark.mqcommon.tier.manifest import TERM_BITS, Manifest, StoredObject, encode_manifest, first_manifest
from skylark.mqcommon.tier.manifests import KEPT, ArrivedLate, Deposed, ManifestLog
from tests.support.faulty_bucket import Faults, FaultyBucket
from tests.support.memory_bucket import MemoryBucket

SET = "set"


def with_manifests(newest: int) -> MemoryBucket:
    """A bucket with the manifests that are kept when ``newest`` is the newest; only manifest ``newest`` can be read."""
    bucket = MemoryBucket()
    kept = {0, newest, *range(0, newest, KEPT), *range(max(newest - KEPT + 1, 0), newest)}
    for number in kept:
        data = encode_manifest(replace(first_manifest(1, b"o" * 16, 1, 1), number=number)) if number == newest else b""
        bucket.create(manifest_name(SET, number), data)
    return bucket


@pytest.mark.parametrize("newest", [0, 1, 2, KEPT - 1, KEPT, KEPT + 1, 3 * KEPT - 1, 3 * KEPT, 5 * KEPT + 77])
def test_the_newest_manifest_is_found(newest: int) -> None:
    bucket = FaultyBucket(with_manifests(newest), Random(1))
    found = ManifestLog(bucket, SET).newest()
    assert found is not None and found.number == newest
    assert bucket.calls < 20


def test_a_bucket_without_the_set_has_no_manifest() -> None:
    assert ManifestLog(MemoryBucket(), SET).newest() is None


@pytest.mark.parametrize("later", [0, 1, 5, KEPT - 1, KEPT, 2 * KEPT + 3])
def test_a_reader_that_knows_an_old_manifest_finds_the_newest(later: int) -> None:
    bucket = with_manifests(1030)
    log = ManifestLog(bucket, SET)
    log.newest()
    bucket.objects = with_manifests(1030 + later).objects
    newest = log.newest()
    assert newest is not None and newest.number == 1030 + later


def test_a_known_newest_manifest_costs_three_requests() -> None:
    bucket = FaultyBucket(with_manifests(5000), Random(1))
    log = ManifestLog(bucket, SET)
    log.newest()
    before = bucket.calls
    log.newest()
    assert bucket.calls == before + 3


def test_an_emptied_bucket_has_no_newest_manifest() -> None:
    bucket = with_manifests(3)
    log = ManifestLog(bucket, SET)
    assert log.newest() is not None
    bucket.objects.clear()
    assert log.newest() is None


def test_what_is_not_among_the_newest_is_removed_but_for_the_multiples() -> None:
    bucket = with_manifests(2 * KEPT - 3)
    log = ManifestLog(bucket, SET)
    manifest = log.newest()
    for _ in range(6):
        assert manifest is not None
        manifest = manifest.successor(2)
        log.append(manifest)
    numbers = {int(name.rpartition("/")[2]) for name in bucket.objects}
    newest = 2 * KEPT + 3
    assert numbers == {0, KEPT, 2 * KEPT, *range(newest - KEPT + 1, newest + 1)}


def test_a_second_owner_deposes_the_first() -> None:
    bucket = MemoryBucket()
    first, second = ManifestLog(bucket, SET), ManifestLog(bucket, SET)
    mine = first.claim(1, b"a" * 16, 1, 1)
    yours = second.claim(1, b"b" * 16, 2, 1)
    assert (mine.number, yours.number) == (0, 1) and yours.epoch > mine.epoch
    with pytest.raises(Deposed) as deposed:
        first.append(mine.successor(3))
    assert deposed.value.newer == yours
    second.append(yours.successor(4))


def test_an_owner_of_an_earlier_term_cannot_claim() -> None:
    bucket = MemoryBucket()
    theirs = ManifestLog(bucket, SET).claim(7, b"a" * 16, 1, 1)
    with pytest.raises(Deposed) as deposed:
        ManifestLog(bucket, SET).claim(6, b"b" * 16, 2, 1)
    assert deposed.value.newer == theirs


def test_an_owner_that_slept_until_its_number_was_removed_is_deposed() -> None:
    bucket = with_manifests(50)
    log = ManifestLog(bucket, SET)
    old = log.newest()
    assert old is not None
    bucket.objects = with_manifests(50 + 3 * KEPT).objects
    before = dict(bucket.objects)
    with pytest.raises(Deposed) as deposed:
        log.append(old.successor(2))
    assert deposed.value.newer.number == 50 + 3 * KEPT
    assert bucket.objects == before


def test_a_lost_answer_to_a_creation_is_no_failure() -> None:
    bucket = FaultyBucket(MemoryBucket(), Random(1))
    log = ManifestLog(bucket, SET)
    manifest = log.claim(1, b"a" * 16, 1, 1).successor(2)
    bucket.faults = Faults(lost_answer=1.0)
    log.append(manifest)
    assert log.newest() == manifest


def test_a_creation_that_is_done_late_is_told_from_another_owner() -> None:
    bucket = FaultyBucket(MemoryBucket(), Random(1))
    log = ManifestLog(bucket, SET)
    base = log.claim(1, b"a" * 16, 1, 1)
    bucket.faults = Faults(late_create=1.0)
    late = base.successor(2)
    try:
        log.append(late)
    except BucketAway:
        bucket.do_late_creates()
    bucket.faults = Faults()
    with pytest.raises(ArrivedLate) as arrived:
        log.append(base.successor(3).with_metadata(StoredObject("m", 1, 1)))
    assert arrived.value.newer == late == log.newest()
    # To append the same manifest again is no error.
    log.append(late)


def test_a_new_generation_whose_begin_got_no_answer_goes_on() -> None:
    calls = [10**9]

    def on_call(call: str, name: str) -> None:
        bucket.is_away = bucket.calls > calls[0]

    bucket = FaultyBucket(MemoryBucket(), Random(1), on_call)
    old = ManifestLog(bucket, SET).claim(9, b"a" * 16, 1, 1)
    log = ManifestLog(bucket, SET)
    log.newest()
    # The calls are three heads, the create, and the look at what is there.
    calls[0] = bucket.calls + 3
    bucket.faults = Faults(lost_answer=1.0)
    with pytest.raises(BucketAway):
        log.claim(1, b"b" * 16, 2, 1, anew_after=old.number)
    calls[0], bucket.faults = 10**9, Faults()
    mine = log.claim(1, b"b" * 16, 3, 1, anew_after=old.number)
    assert (mine.number, mine.term, mine.generation, mine.created_ms) == (1, 1, old.generation + 1, 2)
    # Another owner that was restored from the same manifest is too late.
    with pytest.raises(Deposed):
        ManifestLog(bucket, SET).claim(1, b"c" * 16, 4, 1, anew_after=old.number)


@dataclass
class Owner:
    """A process that claims and appends. ``base``: the manifest that it goes on from, None when it is deposed."""

    log: ManifestLog
    name: bytes
    term: int
    base: Manifest | None = None
    #: The manifests that `ManifestLog` said are created.
    created: list[Manifest] = field(default_factory=list)


def step(owner: Owner, now_ms: int) -> None:
    try:
        if owner.base is None:
            owner.base = owner.log.claim(owner.term, owner.name, now_ms, 1)
        else:
            wanted = owner.base.successor(now_ms)
            owner.log.append(wanted)
            owner.base = wanted
        owner.created.append(owner.base)
    except ArrivedLate as late:
        owner.base = late.newer
    except Deposed:
        owner.base = None
        owner.term += 1
    except BucketAway:
        # The process reads what the bucket has, and goes on only if it is still its own.
        with suppress(BucketAway):
            newest = owner.log.newest()
            owner.base = newest if newest is not None and newest.owner == owner.name else None


@given(st.integers(0, 2**32), st.lists(st.integers(0, 2), min_size=10, max_size=60))
def test_owners_never_fork(seed: int, turns: list[int]) -> None:
    """Whatever requests and answers are lost: each number has one manifest, and epochs never fall."""
    bucket = MemoryBucket()
    faulty = FaultyBucket(bucket, Random(seed))
    faulty.faults = Faults(lost_request=0.1, lost_answer=0.15, late_create=0.15)
    owners = [Owner(ManifestLog(faulty, SET), bytes([65 + number]) * 16, 0) for number in range(3)]
    for now_ms, turn in enumerate(turns):
        step(owners[turn], now_ms)
    faulty.faults = Faults()
    faulty.do_late_creates()
    newest = ManifestLog(bucket, SET).newest()
    log = ManifestLog(bucket, SET)
    found = [log.read(number) for number in range(newest.number + 1)] if newest else []
    assert len(bucket.objects) == len(found)
    epochs = [(each.epoch, each.owner) for each in found]
    assert [epoch for epoch, _ in epochs] == sorted(epoch for epoch, _ in epochs)
    # An epoch belongs to one owner, so an owner that sees a greater epoch is deposed.
    assert len(dict(epochs)) == len(set(epochs))
    for owner in owners:
        assert all(each in found for each in owner.created)


def test_terms_are_above_the_counter_in_epochs() -> None:
    bucket = MemoryBucket()
    log = ManifestLog(bucket, SET)
    for _ in range(3):
        log.claim(0, b"a" * 16, 1, 1)
    assert log.claim(2, b"b" * 16, 2, 1).epoch == 2 << TERM_BITS
    with pytest.raises(NoSuchObject):
        log.read(17)
