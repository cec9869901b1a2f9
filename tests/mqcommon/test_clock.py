"""Clocks: the machine's, and the clock that tests move."""

import time

from skylark.mqcommon.clock import Clock, SystemClock


def test_system_clock_is_the_machine_in_ms() -> None:
    clock: Clock = SystemClock()
    before = time.time() * 1000
    now = clock.now_ms()
    assert before - 1 <= now <= time.time() * 1000 + 1
    assert clock.monotonic_ms() <= clock.monotonic_ms()
