"""A histogram with fixed bounds: raising it is one search in a short list and two additions. Pure."""

from bisect import bisect_left
from collections.abc import Sequence

#: Upper ends of times in milliseconds; those of RocketMQ's rpc_latency, with finer ones for this broker's usual times.
LATENCY_MS = (0.1, 0.3, 1.0, 3.0, 5.0, 10.0, 30.0, 100.0, 500.0, 1_000.0, 3_000.0, 10_000.0)


class Histogram:
    """How many values were at most each bound. ``counts`` has one more number than ``bounds``: of larger values."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float] = LATENCY_MS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float, times: int = 1) -> None:
        """Count ``value``, ``times`` times."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    def merge(self, other: "Histogram") -> None:
        """Add what ``other``, of the same bounds, has counted."""
        self.counts = [mine + its for mine, its in zip(self.counts, other.counts, strict=True)]
        self.total += other.total

    def copy(self) -> "Histogram":
        """The present state."""
        other = Histogram(self.bounds)
        other.counts, other.total = list(self.counts), self.total
        return other
