"""Which files go, when and why: properties of the decision, and of the search for a queue's start."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.broker.options import BrokerOptions
from skylark.broker.store.retention import HOUR_MS, CleanDecision, Disk, RetentionRules, decide, delete_hours
from skylark.mqcommon.errors import ConfigError

GIB = 1 << 30
NOW = 1_700_000_000_000
RULES = BrokerOptions().retention_rules
EMPTY = Disk(10 * GIB, 100 * GIB)

RATIOS = st.integers(0, 100)
AGES = st.lists(st.none() | st.integers(0, 200 * HOUR_MS), max_size=40).map(
    lambda ages: [None if age is None else NOW - age for age in ages]
)
ANY_RULES = st.builds(
    RetentionRules,
    reserved_ms=st.integers(0, 200 * HOUR_MS),
    hours=st.frozensets(st.integers(0, 23), min_size=1),
    clean_ratio=RATIOS,
    force_ratio=RATIOS,
    refuse_ratio=RATIOS,
    force=st.booleans(),
    batch_max=st.integers(1, 12),
)
ANY_DISK = st.integers(GIB, 1000 * GIB).flatmap(lambda room: st.builds(Disk, st.integers(0, room), st.just(room)))


def old(count: int, hours: int = 100) -> list[int | None]:
    return [NOW - hours * HOUR_MS] * count


def now(files: list[int | None], disk: Disk = EMPTY, rules: RetentionRules = RULES, **how: int) -> CleanDecision:
    return decide(files, len(files), GIB, disk, rules, NOW, how.get("hour", 12), asked=bool(how.get("asked")))


def test_old_files_go_in_the_hour_of_delete_when() -> None:
    assert now(old(3), hour=4) == CleanDecision(expired=3)
    assert now(old(3), hour=5) == CleanDecision()
    assert now(old(3), hour=5, rules=replace(RULES, hours=delete_hours("04;05"))).expired == 3


def test_old_files_go_when_asked() -> None:
    assert now(old(3), asked=True) == CleanDecision(expired=3)
    assert now(old(3, hours=71), asked=True).files == 0


def test_a_file_goes_when_its_youngest_message_is_72_hours_old() -> None:
    assert now(old(1, hours=72), hour=4).expired == 1
    assert now([NOW - 72 * HOUR_MS + 1], hour=4).expired == 0


def test_a_young_file_keeps_all_behind_it() -> None:
    assert now([*old(2), NOW, *old(2)], hour=4).expired == 2
    assert now([*old(2), None, *old(2)], hour=4).expired == 2


def test_no_more_than_a_batch_goes_at_once() -> None:
    assert now(old(25), hour=4).expired == 10


def test_files_behind_the_last_that_goes_are_not_looked_at() -> None:
    def times() -> list[int | None]:
        return [*old(1), NOW]

    looked = iter([*times(), *old(5)])
    assert decide(looked, 7, GIB, EMPTY, RULES, NOW, 4).expired == 1
    assert len(list(looked)) == 5


@pytest.mark.parametrize(
    ("percent", "expired", "forced", "refuse"),
    [(75, 0, 0, False), (76, 2, 0, False), (85, 2, 0, False), (86, 2, 0, False), (89, 2, 2, False), (91, 2, 4, True)],
)
def test_the_fuller_the_disk_the_more_goes(percent: int, expired: int, forced: int, refuse: bool) -> None:
    found = now([*old(2), *[NOW] * 20], Disk(percent * GIB, 100 * GIB))
    assert (found.expired, found.forced, found.refuse) == (expired, forced, refuse)


def test_nothing_young_goes_when_that_is_not_wanted() -> None:
    found = now([NOW] * 5, Disk(99 * GIB, 100 * GIB), replace(RULES, force=False))
    assert (found.files, found.refuse) == (0, True)


def test_surplus_files_go_at_any_hour_besides_those_that_would_go_anyway() -> None:
    found = decide([NOW] * 5, 5, GIB, EMPTY, RULES, NOW, 12, surplus=3)
    assert found == CleanDecision(surplus=3)
    assert "tierLocalBytes" in found.why(0)
    found = decide([*old(2), NOW], 3, GIB, EMPTY, RULES, NOW, 4, surplus=9)
    assert (found.expired, found.surplus) == (2, 1)
    assert "expired" in found.why(1) and "tierLocalBytes" in found.why(2)


@given(AGES, ANY_DISK, ANY_RULES, st.integers(0, 23), st.booleans())
def test_decisions(youngest: list[int | None], disk: Disk, rules: RetentionRules, hour: int, asked: bool) -> None:
    found = decide(youngest, len(youngest), GIB, disk, rules, NOW, hour, asked=asked)
    assert 0 <= found.files <= min(len(youngest), rules.batch_max)
    assert found.refuse == disk.is_fuller_than(rules.refuse_ratio)
    for time in youngest[: found.expired]:
        assert time is not None and NOW - time >= rules.reserved_ms
    if not (asked or found.too_full or hour in rules.hours):
        assert found == CleanDecision()
    if found.forced:
        assert rules.force
        one_less = Disk(disk.used - (found.files - 1) * GIB, disk.capacity)
        assert one_less.is_fuller_than(rules.force_ratio), "less would do"
    elif rules.force and found.files < min(len(youngest), rules.batch_max):
        left = Disk(disk.used - found.files * GIB, disk.capacity)
        assert not left.is_fuller_than(rules.force_ratio), "too little goes"


@pytest.mark.parametrize(("text", "hours"), [("04", {4}), ("04;16", {4, 16}), (" 4 ; ", {4}), ("00;23", {0, 23})])
def test_hours(text: str, hours: set[int]) -> None:
    assert delete_hours(text) == hours


@pytest.mark.parametrize("text", ["", ";", "24", "-1", "four", "4,5"])
def test_no_hours(text: str) -> None:
    with pytest.raises(ConfigError, match="give 00 to 23"):
        BrokerOptions(delete_when=text)


def test_ratios_have_rocketmqs_lower_bounds_and_none_above() -> None:
    loose = BrokerOptions(disk_space_clean_forcibly_ratio=97, disk_space_warning_level_ratio=100).retention_rules
    assert (loose.force_ratio, loose.refuse_ratio) == (97, 100)
    assert not now([NOW], Disk(GIB, GIB), loose).refuse
    tight = BrokerOptions(disk_space_clean_forcibly_ratio=1, disk_space_warning_level_ratio=1).retention_rules
    assert (tight.force_ratio, tight.refuse_ratio) == (30, 35)
