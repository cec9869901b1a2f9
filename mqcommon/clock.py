"""Time is an argument: pure code gets ``now_ms``, other code gets a Clock."""

import time
from typing import Protocol


class Clock(Protocol):
    """Wall time to store and show, monotonic time for deadlines; both in ms."""

    def now_ms(self) -> int: ...

    def monotonic_ms(self) -> int: ...


class SystemClock:
    """The machine's clocks."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000
