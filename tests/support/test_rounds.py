"""The table of what tests with faults counted."""

import json
from pathlib import Path

from tests.support.rounds import Table, report, take


def test_a_test_that_reports_nothing_has_no_row() -> None:
    take(0, None, is_failed=False)
    assert take(0, None, is_failed=True) is None


def test_reports_of_a_test_are_added_and_its_seed_counts_when_it_fails() -> None:
    take(0, None, is_failed=False)
    report(acknowledged=3)
    report(acknowledged=4, lost=1)
    assert take(5, 77, is_failed=True) == {
        "rounds": 5, "acknowledged": 7, "lost": 1, "failing_seeds": [77], "runs": 1,
    }  # fmt: skip
    report(2, failing_seed=8)
    report(1)
    assert take(5, 77, is_failed=True) == {
        "rounds": 3, "acknowledged": 0, "lost": 0, "failing_seeds": [8], "runs": 1,
    }  # fmt: skip


def test_a_table_has_a_row_for_each_test_and_merges_those_of_other_runs(tmp_path: Path) -> None:
    table = Table()
    for test, rounds, seeds in (("tests/a.py::b[3-x]", 3, []), ("tests/a.py::b[4]", 4, [9]), ("tests/a.py::a", 1, [])):
        table.add(test, {"rounds": rounds, "acknowledged": 1_000, "lost": 0, "failing_seeds": seeds, "runs": 1})
    _, written = table.write(tmp_path)
    table.merge(written)
    assert table.markdown() == (
        "| test | runs | rounds | acknowledged | lost | failing seeds |\n"
        "| --- | ---: | ---: | ---: | ---: | --- |\n"
        "| a.py::a | 2 | 2 | 2,000 | 0 |  |\n"
        "| a.py::b | 4 | 14 | 4,000 | 0 | 9, 9 |\n"
        "| all | 6 | 16 | 6,000 | 0 | 9, 9 |\n"
    )
    assert [row["test"] for row in json.loads(table.json())] == ["tests/a.py::a", "tests/a.py::b"]
