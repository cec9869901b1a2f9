"""What tests with faults count: rounds, acknowledged and lost messages, and the seeds that failed.

A test calls `report`, as often as it likes; its rounds are also known from a parameter of that name. tests/conftest.py
takes what was reported as a property of the test, and `Table` makes one table of a whole run of it.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

# The name of the property.
ROUNDS = "rounds"
COLUMNS = ("test", "runs", "rounds", "acknowledged", "lost", "failing seeds")


@dataclass
class Count:
    """The counts of one run of a test, or of several runs."""

    rounds: int = 0
    acknowledged: int = 0
    lost: int = 0
    failing_seeds: list[int] = field(default_factory=list)
    runs: int = 0

    def add(self, other: "Count") -> None:
        self.rounds += other.rounds
        self.acknowledged += other.acknowledged
        self.lost += other.lost
        self.failing_seeds += other.failing_seeds
        self.runs += other.runs


# Of the test that runs now.
_NOW = [Count()]


def report(rounds: int = 0, *, acknowledged: int = 0, lost: int = 0, failing_seed: int | None = None) -> None:
    """Add to the counts of the test that runs now. ``lost``: messages that were acknowledged and are not there."""
    seeds = [] if failing_seed is None else [failing_seed]
    _NOW[0].add(Count(rounds, acknowledged, lost, seeds))


def take(rounds: int, seed: int | None, *, is_failed: bool) -> Mapping[str, Any] | None:
    """The report of the test that has ended; None when the test counts nothing.

    ``rounds`` counts when the test reported none itself, and ``seed`` is what its random numbers came from.
    """
    now, _NOW[0] = _NOW[0], Count(runs=1)
    now.runs = 1
    now.rounds = now.rounds or rounds
    if is_failed and seed is not None and not now.failing_seeds:
        now.failing_seeds.append(seed)
    return asdict(now) if now != Count(runs=1) else None


class Table:
    """The counts of a run, a row for each test; its parameters and repetitions are one row."""

    def __init__(self) -> None:
        self._rows: dict[str, Count] = defaultdict(Count)

    def add(self, test: str, counted: Mapping[str, Any]) -> None:
        self._rows[test.partition("[")[0]].add(Count(**counted))

    def merge(self, path: Path) -> None:
        """Add the rows of a table that another run wrote as JSON."""
        for row in json.loads(path.read_text(encoding="utf-8")):
            self.add(row.pop("test"), row)

    def json(self) -> str:
        rows = [{"test": test, **asdict(count)} for test, count in sorted(self._rows.items())]
        return json.dumps(rows, indent=1) + "\n"

    def markdown(self) -> str:
        total = Count()
        for count in self._rows.values():
            total.add(count)
        lines = [COLUMNS, ("---", *["---:"] * 4, "---")]
        lines += [_line(test.removeprefix("tests/"), count) for test, count in sorted(self._rows.items())]
        lines.append(_line("all", total))
        return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"

    def write(self, folder: Path) -> list[Path]:
        folder.mkdir(parents=True, exist_ok=True)
        paths = [folder / "rounds.md", folder / "rounds.json"]
        for path, text in zip(paths, (self.markdown(), self.json()), strict=True):
            path.write_text(text, encoding="utf-8")
        return paths

    def __bool__(self) -> bool:
        return bool(self._rows)


def _line(name: str, count: Count) -> Iterable[str]:
    numbers = (count.runs, count.rounds, count.acknowledged, count.lost)
    return (name, *(f"{number:,}" for number in numbers), ", ".join(map(str, count.failing_seeds)))
