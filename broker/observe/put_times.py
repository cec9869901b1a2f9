"""How long sends take, from the turn of the event loop that stores them to their answers; for brokerStatus.

Measuring each send would cost too much. All sends that one turn stores are answered together, so each send counts with
the time from the turn's first put to the turn's end. If sends wait for an fsync or for slaves, one send of the turn is
measured up to its answer, and this time counts for all sends of the turn. Times are counted in steps; a percentile is
the upper end of its step.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from functools import partial

import trio

from skylark.broker.observe.meter import MINUTE_MS, Meter
from skylark.mqcommon.metrics.metric import LATENCY_MS, Histogram

# RocketMQ's steps: up to which time (microseconds), and their names.
_STEPS = (
    (1_000, "[<=0ms]"),
    (10_000, "[0~10ms]"),
    (50_000, "[10~50ms]"),
    (100_000, "[50~100ms]"),
    (200_000, "[100~200ms]"),
    (500_000, "[200~500ms]"),
    (1_000_000, "[500ms~1s]"),
    (2_000_000, "[1~2s]"),
    (3_000_000, "[2~3s]"),
    (4_000_000, "[3~4s]"),
    (5_000_000, "[4~5s]"),
    (10_000_000, "[5~10s]"),
)
_LAST_STEP = "[10s~]"
_FINE = [step * unit for unit in (10, 100, 1_000, 10_000, 100_000, 1_000_000) for step in (1, 1.5, 2, 3, 4, 5, 6, 8)]
# Step i counts times from bound i - 1 up to, but not including, bound i.
_BOUNDS = sorted({*map(int, _FINE), *(bound for bound, _ in _STEPS)})


class Turn:
    """The sends that one turn of the event loop has stored. ``count`` is set at the end of the turn."""

    __slots__ = ("calls_before", "count", "start", "waits")

    def __init__(self, start: float, calls_before: int) -> None:
        self.start = start
        self.calls_before = calls_before
        self.count = 0
        self.waits = False


class PutTimes:
    """The times of a broker's sends. ``puts`` returns how many sends were stored; ``now`` is in seconds."""

    def __init__(self, puts: Meter, now: Callable[[], float] = trio.current_time) -> None:
        self._puts = puts
        self._now = now
        #: The present turn, once it has stored a message.
        self.turn: Turn | None = None
        # Turns that have a send waiting, oldest first.
        self._waiting: dict[Turn, None] = {}
        self._counts = [0] * (len(_BOUNDS) + 1)
        self._counts_before = list(self._counts)
        self._window_start_ms: int | None = None
        self._max_us = 0
        # All times before these counts, back to the start of the process.
        self._counts_old = list(self._counts)
        self._total_us = 0
        self.failed = 0

    # --- counting

    def begin(self) -> None:
        """Call this before the first put of a turn."""
        self.turn = Turn(self._now(), self._puts.calls)

    def follow(self) -> Callable[[object], None] | None:
        """The function to call when a waiting send is answered, if this send is measured for its turn; else None."""
        turn = self.turn
        if turn is None or turn.waits:
            return None
        turn.waits = True
        self._waiting[turn] = None
        return partial(self._answered, turn)

    def _answered(self, turn: Turn, answer: object) -> None:
        # The turn is added when both its number of sends (known at its end) and the end of the wait are known.
        del self._waiting[turn]
        turn.waits = False
        if turn is not self.turn:
            self._add(turn)

    def end_turn(self) -> None:
        """Call this when all requests of a turn are handled and their answers are sent."""
        turn = self.turn
        if turn is None:
            return
        self.turn = None
        turn.count = self._puts.calls - turn.calls_before
        if not turn.waits:
            self._add(turn)

    def sample(self, now_ms: int) -> None:
        """Call this once a second. Results cover the last full minute and the present one."""
        # There are two windows, and the older one covers a full minute: results never cover a few seconds only.
        if self._window_start_ms is None:
            self._window_start_ms = now_ms
        elif now_ms - self._window_start_ms >= MINUTE_MS:
            self._window_start_ms = now_ms
            self._counts_old = [old + before for old, before in zip(self._counts_old, self._counts_before, strict=True)]
            self._counts_before, self._counts = self._counts, [0] * len(self._counts)

    def _add(self, turn: Turn) -> None:
        if turn.count:
            us = int((self._now() - turn.start) * 1_000_000)
            self._counts[bisect_right(_BOUNDS, us)] += turn.count
            self._max_us = max(self._max_us, us)
            self._total_us += us * turn.count

    # --- reading

    def head_wait_ms(self) -> int:
        """How long the oldest unanswered send has waited."""
        oldest = next(iter(self._waiting), None)
        return 0 if oldest is None else round((self._now() - oldest.start) * 1_000)

    def histogram(self) -> Histogram:
        """All times since the start, in milliseconds."""
        times = Histogram(LATENCY_MS)
        times.total = self._total_us / 1_000
        counts = zip(self._counts_old, self._counts_before, self._counts, strict=True)
        for bound_us, parts in zip((*_BOUNDS, math.inf), counts, strict=True):
            times.counts[bisect_left(LATENCY_MS, bound_us / 1_000)] += sum(parts)
        return times

    def table(self) -> dict[str, str]:
        """RocketMQ's keys of brokerStatus."""
        counts = [before + now for before, now in zip(self._counts_before, self._counts, strict=True)]
        return {
            "putMessageEntireTimeMax": str(self._max_us // 1_000),
            "putMessageDistributeTime": _distribution(counts),
            "putLatency99": f"{self._percentile_ms(counts, 0.99):.2f}",
            "putLatency999": f"{self._percentile_ms(counts, 0.999):.2f}",
            "putMessageFailedTimes": str(self.failed),
        }

    def _percentile_ms(self, counts: list[int], part: float) -> float:
        left = math.ceil(sum(counts) * part)
        if not left:
            return 0.0
        for bound, count in zip(_BOUNDS, counts, strict=False):
            left -= count
            if left <= 0:
                return min(bound, self._max_us) / 1_000
        return self._max_us / 1_000


def _distribution(counts: list[int]) -> str:
    """``[<=0ms]:6 [0~10ms]:4 ...``, as RocketMQ writes it, with a space at the end."""
    text, start = "", 0
    for bound, name in _STEPS:
        end = bisect_right(_BOUNDS, bound - 1) + 1
        text += f"{name}:{sum(counts[start:end])} "
        start = end
    return f"{text}{_LAST_STEP}:{sum(counts[start:])} "
