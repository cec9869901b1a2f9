"""What a metric is, and how its values are handed over. Pure.

The daemons have a table of `Metric`: the only place of names, kinds, units and labels. A collection gives a `Column`
for each metric: the values of its labels, and beside them its values. Columns may share the list of label values, as
the lags of many groups do.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from mqcommon.metrics.buckets import Histogram

Kind = Literal["gauge", "counter", "histogram"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One row of a table. ``labels``: besides those that all metrics of a daemon have."""

    name: str
    kind: Kind
    unit: str
    labels: tuple[str, ...]
    help: str


Value = int | float | Histogram


@dataclass(slots=True)
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
