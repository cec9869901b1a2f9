"""Files of tests that run again and again, also beside load: a test that fails once in a hundred runs is a fault.

    scripts/test --repeat N PATH... [--busy K]

Each turn of a file runs in a process of its own, several at a time. K loops without end compete for the processors
meanwhile. A table at the end has the failures of each file.
"""

import subprocess
import sys
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from os import getpid

import pytest

# A test that takes longer hangs. Its process says where each of its threads stands, and ends.
TIMEOUT_S = 600


@dataclass
class Row:
    """The failures of the tests of one file in all turns, and the first one of them."""

    file: str
    failures: int = 0
    test: str = ""
    reason: str = ""


class Repeats:
    """A plugin of pytest: load beside ``turns`` turns of each file, and the table of their failures."""

    def __init__(self, turns: int, loops: int) -> None:
        self._turns = turns
        self._loops = loops
        self._load = ExitStack()
        self.rows: dict[str, Row] = {}

    def pytest_sessionstart(self) -> None:
        # Each loop ends by itself when this process does.
        code = f"import os\nwhile os.getppid() == {getpid()}:\n    for _ in range(100_000):\n        pass"
        for _ in range(self._loops):
            loop = self._load.enter_context(subprocess.Popen([sys.executable, "-IS", "-c", code]))
            self._load.callback(loop.kill)

    def pytest_sessionfinish(self) -> None:
        self._load.close()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        file, _, test = report.nodeid.partition("::")
        row = self.rows.setdefault(file, Row(file))
        if report.failed:
            row.failures += 1
            if row.failures == 1:
                row.test, row.reason = test, reason_of(report)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.write_line(f"{self._turns} turns of each file, {self._loops} busy loops:")
        terminalreporter.write_line(table(self.rows.values()))


def reason_of(report: pytest.TestReport) -> str:
    """The line of a failure that pytest shows in its summary."""
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(crash.message if crash else report.longrepr).partition("\n")[0]


def table(rows: Iterable[Row]) -> str:
    """A line for each row."""
    lines = [("file", "failures", "first failing test", "reason")]
    lines += [(row.file, str(row.failures), row.test, row.reason) for row in rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)
