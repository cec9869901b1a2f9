"""Numbers over time, in bounded memory: an hour as they were measured, and a day thinned. Pure.

A series is a list of runs. A run is a value that was measured from a first time to a last time, without another value
in between, so a group that does not lag takes the memory of one run for a day. Two measurements that are further apart
than a gap are two runs: nobody asked in between. An hour later the runs that began and ended in the same five minutes
become one run with the largest of their values, so that a peak is still seen a day later.
Times are seconds since 1970, and fit into 32 bits.
"""

from array import array
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

HOUR_S: Final = 3_600
DAY_S: Final = 24 * HOUR_S
#: Measurements older than an hour are thinned to one run in this time.
SLOT_S: Final = 300
#: In the last hour two measurements are at least this far apart; see `Series.add`.
STEP_S: Final = 10
#: Measurements that are further apart than this have a gap between them.
GAP_S: Final = 60


class Run(NamedTuple):
    """``value`` was measured from ``first_s`` to ``last_s``."""

    first_s: int
    last_s: int
    value: float


class Series:
    """One number over time. Times never go back."""

    def __init__(self) -> None:
        self._firsts = array("I")
        self._lasts = array("I")
        self._values = array("d")
        # Runs before this index are thinned.
        self._thinned = 0

    def __len__(self) -> int:
        return len(self._values)

    @property
    def last_s(self) -> int:
        """The time of the last measurement."""
        return self._lasts[-1] if self._lasts else 0

    def add(self, now_s: int, value: float) -> None:
        """Add a measurement. Ignored less than STEP_S after the last measurement, so that memory is bounded."""
        if self._values and now_s < self._lasts[-1] + STEP_S:
            return
        if self._values and self._values[-1] == value and now_s - self._lasts[-1] <= GAP_S:
            self._lasts[-1] = now_s
        else:
            self._firsts.append(now_s)
            self._lasts.append(now_s)
            self._values.append(value)
        self._thin(now_s)

    def _thin(self, now_s: int) -> None:
        """Forget runs older than a day, and join runs older than an hour."""
        while self._thinned < len(self) and self._lasts[self._thinned] < now_s - HOUR_S:
            at = self._thinned
            # A run that began long before must not get the value of a peak in its last minutes.
            if at and self._firsts[at - 1] // SLOT_S == self._lasts[at] // SLOT_S:
                self._lasts[at - 1] = self._lasts[at]
                self._values[at - 1] = max(self._values[at - 1], self._values[at])
                self._drop(at, at + 1)
            else:
                self._thinned += 1
        old = 0
        while old < len(self) and self._lasts[old] < now_s - DAY_S:
            old += 1
        if old:
            self._drop(0, old)
            self._thinned = max(self._thinned - old, 0)

    def _drop(self, start: int, end: int) -> None:
        for column in (self._firsts, self._lasts):
            del column[start:end]
        del self._values[start:end]

    def since(self, from_s: int) -> list[Run]:
        """The runs that ended at ``from_s`` or later, oldest first."""
        return [run for run in self if run.last_s >= from_s]

    def __iter__(self) -> Iterator[Run]:
        return (Run(*row) for row in zip(self._firsts, self._lasts, self._values, strict=True))


class History:
    """Series by name. ``most``: the most series; names that come first keep their place."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._series: dict[str, Series] = {}
        self._refused = 0

    def __len__(self) -> int:
        return len(self._series)

    @property
    def refused(self) -> int:
        """The number of names in the last round without a series, as there are too many."""
        return self._refused

    def add(self, now_s: int, values: Iterable[tuple[str, float]]) -> None:
        """Add the measurements of a round. Forget series without a measurement for a day."""
        self._refused = 0
        for name, value in values:
            series = self._series.get(name)
            if series is None:
                if len(self._series) >= self._most:
                    self._refused += 1
                    continue
                series = self._series[name] = Series()
            series.add(now_s, value)
        if gone := [name for name, one in self._series.items() if one.last_s < now_s - DAY_S]:
            for name in gone:
                del self._series[name]

    def get(self, name: str, from_s: int = 0) -> list[Run]:
        """The runs of a series; empty when there is none of this name."""
        series = self._series.get(name)
        return series.since(from_s) if series is not None else []

    def names(self, prefix: str) -> list[str]:
        """The names that begin with ``prefix``, sorted."""
        return sorted(name for name in self._series if name.startswith(prefix))
