"""The results of a peer's tests: the cases, the list of cases that do not apply, and the table.

A line of the list has a peer, a pattern of case ids, and the reason, separated by two blanks or more:

    kombu  test_kombu.TestPriority::*  RocketMQ's queues have no priorities
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from fnmatch import fnmatchcase
from pathlib import Path
from xml.etree import ElementTree

KNOWN = Path(__file__).parent / "known.txt"


class Outcome(IntEnum):
    """An outcome of a case. Where a case is reported several times, an earlier member hides a later one."""

    PASSED = 0
    SKIPPED = 1
    FAILED = 2


@dataclass(frozen=True)
class Case:
    """``reason``: the first line of what a failed or skipped case said."""

    name: str
    outcome: Outcome
    reason: str = ""


@dataclass(frozen=True)
class Known:
    """Cases of a peer that do not apply, and why."""

    peer: str
    pattern: str
    reason: str

    def has(self, case: Case) -> bool:
        # Brackets hold a case's parameters; fnmatch would take them for a set of characters.
        return fnmatchcase(case.name, self.pattern.replace("[", "[[]"))


def known_of(text: str, peer: str) -> list[Known]:
    """The entries of a peer. Raises ValueError for a line with other than three parts."""
    entries = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        parts = re.split(r" {2,}", line.strip(), maxsplit=2)
        if len(parts) != 3:
            raise ValueError(f"line {number} is not `PEER  PATTERN  REASON`: {line}")
        entries.append(Known(*parts))
    return [entry for entry in entries if entry.peer == peer]


def cases_of(junit: str) -> list[Case]:
    """The cases of a report that pytest wrote (--junitxml); subtests belong to their case."""
    found: dict[str, Case] = {}
    for element in ElementTree.fromstring(junit).iter("testcase"):
        case = _case(element)
        if case.name not in found or found[case.name].outcome < case.outcome:
            found[case.name] = case
    return list(found.values())


def _case(element: ElementTree.Element) -> Case:
    name = f"{element.get('classname', '')}::{element.get('name', '')}"
    for tag, outcome in (("failure", Outcome.FAILED), ("error", Outcome.FAILED), ("skipped", Outcome.SKIPPED)):
        said = element.find(tag)
        if said is not None:
            return Case(name, outcome, (said.get("message") or "").partition("\n")[0])
    return Case(name, Outcome.PASSED)


@dataclass(frozen=True)
class Summary:
    """The cases of a run by what they mean. ``outdated``: entries of the list whose cases all pass."""

    passed: Sequence[Case]
    skipped: Sequence[Case]
    not_applying: Sequence[tuple[Case, Known]]
    failed: Sequence[Case]
    outdated: Sequence[Known]

    @property
    def is_good(self) -> bool:
        """Whether the run shows that nothing is broken; a run without a passing case shows nothing."""
        return bool(self.passed) and not self.failed


def summary_of(cases: Iterable[Case], known: Sequence[Known]) -> Summary:
    by_outcome: dict[Outcome, list[Case]] = {outcome: [] for outcome in Outcome}
    for case in cases:
        by_outcome[case.outcome].append(case)
    not_applying, failed = [], []
    for case in by_outcome[Outcome.FAILED]:
        entry = next((each for each in known if each.has(case)), None)
        if entry is None:
            failed.append(case)
        else:
            not_applying.append((case, entry))
    used = {entry for _, entry in not_applying}
    outdated = [each for each in known if each not in used and any(map(each.has, by_outcome[Outcome.PASSED]))]
    return Summary(by_outcome[Outcome.PASSED], by_outcome[Outcome.SKIPPED], not_applying, failed, outdated)


def table(summary: Summary) -> str:
    """The table for people: the counts, then a line for each case that needs an explanation."""
    counts = (
        ("passed", len(summary.passed)),
        ("left out by the suite itself", len(summary.skipped)),
        ("do not apply", len(summary.not_applying)),
        ("failed", len(summary.failed)),
    )
    lines = [f"{count:6}  {what}" for what, count in counts]
    lines += _by_reason("left out", ((case, case.reason) for case in summary.skipped))
    lines += _by_reason("does not apply", ((case, entry.reason) for case, entry in summary.not_applying))
    lines += [f"failed: {case.name}: {case.reason}" for case in summary.failed]
    lines += [f"passes, so take it off the list of what does not apply: {each.pattern}" for each in summary.outdated]
    return "\n".join(lines)


def _by_reason(what: str, cases: Iterable[tuple[Case, str]]) -> list[str]:
    names: dict[str, list[str]] = {}
    for case, reason in cases:
        names.setdefault(reason, []).append(case.name)
    return [
        f"{what}: {len(each):3}  {reason}  ({each[0]}{', ...' if each[1:] else ''})" for reason, each in names.items()
    ]
