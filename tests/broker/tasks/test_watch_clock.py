"""A clock that was set is logged once, with how far, and counted."""

import logging

import pytest

from skylark.broker.tasks.watch_clock import WatchClock
from tests.broker.store.support import open_store, put
from tests.support.clock import ManualClock
from tests.support.memory_files import MemoryFiles


def test_a_clock_that_was_set_is_logged_once_with_how_far(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    store = open_store(MemoryFiles(), clock)
    watch = WatchClock(store)
    watch.tick()
    put(store, "t", 0, b"x")
    clock.advance(1_000)
    watch.tick()
    clock.set_by(-3_600_000)
    # As the delivery of delayed messages does, which looks more often.
    store.check_clock()
    for _ in range(3):
        watch.tick()
        clock.advance(1_000)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "the clock went back by 3600.0 s" in record.message and "in 3599.0 s" in record.message
    assert (store.clock_steps.times_back, store.clock_steps.back_ms) == (1, 3_600_000)
    assert store.ahead_ms == 3_600_000 - 4_000
    clock.set_by(7_200_000)
    watch.tick()
    assert "the clock went forward by 7200.0 s" in caplog.text
    assert len(caplog.records) == 2 and store.clock_steps.times_back == 1 and store.ahead_ms == 0


class _StalledClock(ManualClock):
    """The process stands still between two reads of the clocks."""

    def monotonic_ms(self) -> int:
        self.advance(5_000)
        return super().monotonic_ms()


def test_a_process_that_stands_still_between_two_reads_sees_no_step() -> None:
    store = open_store(MemoryFiles(), _StalledClock())
    for _ in range(3):
        store.check_clock()
    assert store.clock_steps.count == 0
