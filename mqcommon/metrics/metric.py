"""Metrics, and columns of their values. Pure.

The daemons have a table of `Metric`: the only place of names, kinds, units and labels. A collection gives a `Column`
for each metric: the values of its labels, and beside them its values. Columns may share the list of label values, as
the lags of many groups do.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import field
from typing import Literal

from skylark.mqcommon.lazy_dataclass import lazy_dataclass

#: Upper bounds of times in milliseconds: the bounds of RocketMQ's rpc_latency, and finer ones for usual times here.
LATENCY_MS = (0.1, 0.3, 1.0, 3.0, 5.0, 10.0, 30.0, 100.0, 500.0, 1_000.0, 3_000.0, 10_000.0)


class Histogram:
    """Counts of values up to each bound. ``counts`` has one number more than ``bounds``: the count of larger values."""

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
        """Add the counts of ``other``, which has the same bounds."""
        self.counts = [mine + its for mine, its in zip(self.counts, other.counts, strict=True)]
        self.total += other.total

    def copy(self) -> "Histogram":
        """A copy with the present counts, which later values do not change."""
        other = Histogram(self.bounds)
        other.counts, other.total = list(self.counts), self.total
        return other


Kind = Literal["gauge", "counter", "histogram"]


@lazy_dataclass(frozen=True, slots=True)
class Metric:
    """One row of a table. ``labels`` are its own, besides the labels that all metrics of a daemon have."""

    name: str
    kind: Kind
    unit: str
    labels: tuple[str, ...]
    help: str


Value = int | float | Histogram


@lazy_dataclass(slots=True)
class Column:
    """All values of one metric. ``labels`` has a tuple for each value, in the order of the metric's labels."""

    metric: Metric
    labels: Sequence[tuple[str, ...]] = field(default_factory=list)
    values: Sequence[Value] = field(default_factory=list)


#: A table's metric without labels has one value.
NO_LABELS: tuple[tuple[str, ...]] = ((),)


def single(metric: Metric, value: Value) -> Column:
    """The column of a metric that has one value and no labels of its own."""
    return Column(metric, NO_LABELS, (value,))


def column(metric: Metric, rows: Sequence[tuple[tuple[str, ...], Value]]) -> Column:
    """A column from pairs of label values and value."""
    return Column(metric, [labels for labels, _ in rows], [value for _, value in rows])


def flag(value: object) -> str:
    """A truth as a label's value."""
    return "true" if value else "false"


def parse_labels(text: str) -> Iterator[tuple[str, str]]:
    """The pairs of ``metricsLabel``: ``key:value,key:value``. ValueError says which is wrong."""
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, colon, value = part.partition(":")
        name = name.strip()
        if not colon or not name.isascii() or not name.isidentifier() or name.startswith("__"):
            raise ValueError(f"{part!r} is not a label; write name:value, the name with letters, digits and _")
        yield name, value.strip()
