"""When a disk counts as slow, and as stuck."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.broker.tasks.slow_flush import LONG_S, SHOWN_S, SLOW_S, STUCK_S, SlowFlushes


def test_a_slow_flush_is_told_once_and_so_is_its_end() -> None:
    flushes = SlowFlushes()
    flushes.begin(100)
    assert flushes.slow(100 + SLOW_S / 2) == ""
    assert "the disk is slow" in flushes.slow(100 + SLOW_S)
    assert flushes.slow(100 + 2 * SLOW_S) == ""
    assert flushes.end(103.5) == "the fsync of the commit log has ended after 3.5 s"
    flushes.begin(104)
    assert flushes.slow(104.5) == flushes.end(104.5) == ""


def test_a_flush_that_does_not_end_makes_the_disk_stuck_until_it_ends() -> None:
    flushes = SlowFlushes()
    assert flushes.stuck(0) == ""
    flushes.begin(0)
    assert flushes.stuck(STUCK_S - 1) == ""
    assert flushes.stuck(31) == "the disk has not finished an fsync for 31 s"
    flushes.end(32)
    assert flushes.stuck(33) == ""


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 20)), max_size=30))
def test_the_slowest_of_the_last_minutes_is_shown(flushes: list[tuple[float, float]]) -> None:
    shown, now = SlowFlushes(), 0.0
    ended: list[tuple[float, float]] = []
    for pause, took in flushes:
        shown.begin(now := now + pause)
        shown.end(now := now + took)
        ended.append((now, took))
        recent = [each for at, each in ended if at > now - SHOWN_S]
        within = [each for at, each in ended if at > now - 2 * SHOWN_S]
        # A pause is added to the times, so they are not exact.
        assert max(recent) - 0.001 <= shown.slowest_s(now) <= max(within) + 0.001
    assert shown.slowest_s(now + 2 * SHOWN_S + 1) == 0


def test_a_running_flush_counts_as_slowest() -> None:
    flushes = SlowFlushes()
    flushes.begin(5)
    assert not flushes.is_long(5 + LONG_S / 2) and flushes.is_long(5 + 2 * LONG_S)
    assert flushes.slowest_s(12) == pytest.approx(7)
