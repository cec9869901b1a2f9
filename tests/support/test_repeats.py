"""scripts/test --repeat: its table, and its load, which ends with the run."""

import os
from pathlib import Path

import pytest

from tests.support.repeats import Repeats, Row, table


def failed(nodeid: str, reason: str) -> pytest.TestReport:
    return pytest.TestReport(nodeid, ("", None, ""), {}, "failed", f"{reason}\nmore of it", "call")


def test_a_row_has_the_failures_of_a_file_and_the_first_of_them() -> None:
    repeats = Repeats(3, 0)
    repeats.pytest_runtest_logreport(failed("tests/test_y.py::test_a[x y]", "first"))
    repeats.pytest_runtest_logreport(failed("tests/test_y.py::test_b", "second"))
    repeats.pytest_runtest_logreport(
        pytest.TestReport("tests/test_z.py::test_c", ("", None, ""), {}, "passed", None, "call")
    )
    rows = list(repeats.rows.values())
    assert rows == [Row("tests/test_y.py", 2, "test_a[x y]", "first"), Row("tests/test_z.py")]
    assert [line.split() for line in table(rows).splitlines()[1:]] == [
        ["tests/test_y.py", "2", "test_a[x", "y]", "first"],
        ["tests/test_z.py", "0"],
    ]


@pytest.mark.process
def test_the_load_ends_with_the_run() -> None:
    def children() -> set[str]:
        return set(Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split())

    before = children()
    repeats = Repeats(2, 2)
    repeats.pytest_sessionstart()
    assert len(children() - before) == 2
    repeats.pytest_sessionfinish()
    assert children() == before
