"""Time as an argument: rooms that think get ``now_ms``; shells get a Clock."""

import time
from typing import Protocol


class Clock(Protocol):
    """Wall time for what is stored and shown, monotonic time for deadlines; both in ms."""

    def now_ms(self) -> int: ...

    def monotonic_ms(self) -> int: ...


class SystemClock:
    """The machine's clocks."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000


class ManualClock:
    """A clock that stands still until a test moves it."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._monotonic_ms = 0

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic_ms(self) -> int:
        return self._monotonic_ms

    def advance(self, ms: int) -> None:
        """Move both clocks forward by ``ms``."""
        self._now_ms += ms
        self._monotonic_ms += ms
