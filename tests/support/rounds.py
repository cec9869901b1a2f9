"""What tests with faults count: rounds, acknowledged, lost and wrong messages, and the seeds that failed.

A test calls `report`, as often as it likes; its rounds are also known from a parameter of that name. tests/conftest.py
takes what was reported as a property of the test, and `Table` makes one table of a whole run of it. The mark `fault` of
a test names its fault, its kind and its mode: scripts/faults.py makes a page of such tests.
"""

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

# The name of the property.
ROUNDS = "rounds"
COLUMNS = ("test", "runs", "rounds", "acknowledged", "lost", "wrong", "failing seeds")


@dataclass(frozen=True, order=True)
class Fault:
    """The fault that a test tries: in which mode, of which kind, and what happens."""

    mode: str
    kind: str
    what: str


@dataclass
class Count:
    """The counts of one run of a test, or of several runs."""

    rounds: int = 0
    acknowledged: int = 0
    lost: int = 0
    failing_seeds: list[int] = field(default_factory=list)
    runs: int = 0
    wrong: int = 0
    #: The longest time in which no send was acknowledged, in seconds.
    unavailable_s: float = 0.0
    #: Why tests failed: the first line of each error.
    reasons: list[str] = field(default_factory=list)

    def add(self, other: "Count") -> None:
        self.rounds += other.rounds
        self.acknowledged += other.acknowledged
        self.lost += other.lost
        self.failing_seeds += other.failing_seeds
        self.runs += other.runs
        self.wrong += other.wrong
        self.unavailable_s = max(self.unavailable_s, other.unavailable_s)
        self.reasons += other.reasons


# Of the test that runs now.
_NOW = [Count()]


def report(
    rounds: int = 0,
    *,
    acknowledged: int = 0,
    lost: int = 0,
    wrong: int = 0,
    unavailable_s: float = 0.0,
    failing_seed: int | None = None,
) -> None:
    """Add to the counts of the test that runs now.

    ``lost``: messages that were acknowledged and are not there; ``wrong``: messages that were read and are not as they
    were sent; ``unavailable_s``: the longest time without an acknowledgement.
    """
    seeds = [] if failing_seed is None else [failing_seed]
    _NOW[0].add(Count(rounds, acknowledged, lost, seeds, 0, wrong, unavailable_s))


def take(rounds: int, seed: int | None, *, failure: str = "") -> Count | None:
    """The counts of the test that has ended; None when the test counts nothing and no seed of it failed.

    ``rounds`` counts when the test reported none itself, and ``seed`` is what its random numbers came from.
    ``failure``: why the test failed, if it did.
    """
    now, _NOW[0] = _NOW[0], Count()
    now.runs = 1
    now.rounds = now.rounds or rounds
    if now == Count(runs=1) and not (failure and seed is not None):
        return None
    if failure:
        now.reasons.append(failure)
        if seed is not None and not now.failing_seeds:
            now.failing_seeds.append(seed)
    return now


class Table:
    """The counts of a run: a row for each test, whatever its parameters, and a row for each fault."""

    def __init__(self) -> None:
        self._rows: dict[str, Count] = defaultdict(Count)
        self.faults: dict[Fault, Count] = defaultdict(Count)

    def add(self, test: str, count: Count, fault: Fault | None = None) -> None:
        self._rows[test.partition("[")[0]].add(count)
        if fault is not None:
            self.faults[fault].add(count)

    def merge(self, path: Path) -> None:
        """Add the rows of a table that another run wrote as JSON."""
        written = json.loads(path.read_text(encoding="utf-8"))
        for row in written["tests"]:
            self._rows[row.pop("test")].add(Count(**row))
        for row in written["faults"]:
            self.faults[Fault(**row.pop("fault"))].add(Count(**row))

    def json(self) -> str:
        tests = [{"test": test, **asdict(count)} for test, count in sorted(self._rows.items())]
        faults = [{"fault": asdict(fault), **asdict(count)} for fault, count in sorted(self.faults.items())]
        return json.dumps({"tests": tests, "faults": faults}, indent=1) + "\n"

    def markdown(self) -> str:
        total = Count()
        for count in self._rows.values():
            total.add(count)
        lines = [COLUMNS, ("---", *["---:"] * 5, "---")]
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
    numbers = (count.runs, count.rounds, count.acknowledged, count.lost, count.wrong)
    return (name, *(f"{number:,}" for number in numbers), ", ".join(map(str, count.failing_seeds)))
