"""Clocks: the machine's, and the one that tests move."""

import time

from mqcommon.clock import Clock, SystemClock
from tests.support.clock import ManualClock


def test_manual_clock_moves_only_when_told() -> None:
    clock: Clock = ManualClock(1000)
    assert (clock.now_ms(), clock.monotonic_ms()) == (1000, 0)
    assert isinstance(clock, ManualClock)
    clock.advance(250)
    assert (clock.now_ms(), clock.monotonic_ms()) == (1250, 250)


def test_system_clock_is_the_machine_in_ms() -> None:
    clock: Clock = SystemClock()
    before = time.time() * 1000
    now = clock.now_ms()
    assert before - 1 <= now <= time.time() * 1000 + 1
    assert clock.monotonic_ms() <= clock.monotonic_ms()
