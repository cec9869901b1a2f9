"""The delay levels: how long a message of each level waits before it is delivered. Pure.

Written as RocketMQ's messageDelayLevel: "1s 5s 10s 30s 1m", units s, m, h and d; the first is level 1.
Neighbours: tags.py (the due time in a queue's entry), delivery/delayed_delivery.py.
"""

import re
from functools import cached_property

from skylark.mqcommon.lazy_dataclass import lazy_dataclass

DEFAULT_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
MAX_LEVELS = 128
MAX_DELAY_MS = 10 * 365 * 24 * 3_600_000
_UNIT_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 24 * 3_600_000}
_DELAY = re.compile(r"([0-9]{1,12})([smhd])", re.ASCII)


@lazy_dataclass(frozen=True)
class DelayLevels:
    """``delays_ms``: the delay of each level; the first belongs to level 1."""

    delays_ms: tuple[int, ...]

    @classmethod
    def parse(cls, text: str) -> "DelayLevels":
        """The levels in ``text``, such as ``1s 5s 10s``. Raises ValueError, whose text says what is wrong."""
        delays = []
        for word in text.split():
            found = _DELAY.fullmatch(word)
            if found is None or int(found[1]) * _UNIT_MS[found[2]] > MAX_DELAY_MS:
                raise ValueError(
                    f"{word!r} is not a delay; give a number and s, m, h or d, such as 10s, at most 10 years"
                )
            delays.append(int(found[1]) * _UNIT_MS[found[2]])
        if not 0 < len(delays) <= MAX_LEVELS:
            raise ValueError(f"there are {len(delays)} levels; give 1 to {MAX_LEVELS}, separated by blanks")
        return cls(tuple(delays))

    @property
    def highest(self) -> int:
        """The highest level; higher numbers mean this one."""
        return len(self.delays_ms)

    def delay_ms(self, level: int) -> int:
        """The delay of ``level``, which is 1 or more."""
        return self.delays_ms[min(level, len(self.delays_ms)) - 1]

    def level_of(self, delay_ms: int) -> int:
        """The level with the shortest delay that is not shorter than ``delay_ms``; else the one with the longest."""
        fitting = [(delay, level) for delay, level in self._by_delay if delay >= delay_ms]
        return (min(fitting) if fitting else max(self._by_delay))[1]

    @cached_property
    def _by_delay(self) -> list[tuple[int, int]]:
        return [(delay, level) for level, delay in enumerate(self.delays_ms, 1)]


DEFAULT = DelayLevels.parse(DEFAULT_LEVELS)


def level_in(value: bytes | None) -> int:
    """The level that the value of a property ``DELAY`` means; 0 for none. ValueError if it is not a number."""
    if not value or value == b"false":
        return 0
    return max(int(value[:20]), 0)
