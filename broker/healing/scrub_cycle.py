"""Where a scrub is, and how fast it reads. Pure.

A cycle checks each block of the log once: from a place in the log to the end that the log had when the cycle began, and
then from the start of the log to that place. Messages that come meanwhile are left to the next cycle: a log may grow
faster than it is scrubbed.
Neighbours: scrub.py (reads and compares); scrub_note.py (keeps the place over restarts).
"""

from dataclasses import replace

from skylark.mqcommon.lazy_dataclass import lazy_dataclass

DAY_S = 24 * 3600.0
# Small stores are read faster than their cycle needs: damage is found sooner, and a read a second costs nothing.
LEAST_BYTES_PER_S = 256 * 1024.0
# Pauses and the files beside the log take a part of the cycle's time.
_MARGIN = 1.1
# A scrub that was held up catches up by so much time.
_CATCH_UP_S = 2.0


@lazy_dataclass(frozen=True, slots=True)
class Cycle:
    """One round over the log: from ``first`` to ``stop``, and then up to ``first``; ``at`` is checked next.

    ``stop``: the end of the blocks that the cycle checks. ``is_second_part``: the part up to ``first`` is being
    checked. ``began_ms``: by the wall clock.
    """

    first: int
    stop: int
    at: int
    began_ms: int
    is_second_part: bool = False

    @classmethod
    def begun(cls, first: int, stop: int, now_ms: int) -> "Cycle":
        """A cycle over all blocks before ``stop``; ``first`` is where a block begins."""
        return cls(first, stop, first, now_ms)

    def within(self, start: int, end: int) -> "Cycle":
        """The cycle in a log that begins at ``start`` and is checked up to ``end``: files go, and the log is cut."""
        stop = min(self.stop, end)
        first = min(max(self.first, start), max(stop, start))
        at, is_second_part = max(self.at, start), self.is_second_part
        if not is_second_part and at >= stop:
            at, is_second_part = start, True
        return replace(self, first=first, stop=stop, at=at, is_second_part=is_second_part)

    @property
    def limit(self) -> int:
        """The end of the part that is being checked."""
        return min(self.first, self.stop) if self.is_second_part else self.stop

    @property
    def is_done(self) -> bool:
        """Whether no block is left; only of a cycle that is `within` the log."""
        return self.is_second_part and self.at >= self.limit

    def after(self, offset: int) -> "Cycle":
        """The cycle with all blocks before ``offset`` in this part checked."""
        return replace(self, at=offset)

    def left_bytes(self, start: int) -> int:
        """The bytes that are not checked yet, in a log that begins at ``start``."""
        left = max(self.limit - self.at, 0)
        return left if self.is_second_part else left + max(self.first - start, 0)

    def percent(self, start: int) -> int:
        """The checked part of the cycle."""
        total = self.stop - start
        return 100 if total <= 0 else max(min(100 - -(-100 * self.left_bytes(start) // total), 100), 0)


def cycle_rate(total_bytes: int, cycle_days: float) -> float:
    """How many bytes a second a cycle over ``total_bytes`` reads to end in ``cycle_days``."""
    return max(total_bytes * _MARGIN / (cycle_days * DAY_S), LEAST_BYTES_PER_S)


class Pace:
    """When the next bytes may be read. Times are seconds of one clock."""

    def __init__(self) -> None:
        self._ready_s = float("-inf")

    def wait_s(self, now: float) -> float:
        """How long to wait for the next read."""
        return max(self._ready_s - now, 0.0)

    def spend(self, size: int, bytes_per_s: float, now: float) -> None:
        """``size`` bytes are read now, at this rate."""
        self._ready_s = max(self._ready_s, now - _CATCH_UP_S) + size / bytes_per_s
