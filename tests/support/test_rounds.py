"""The table of what tests with faults counted."""

from pathlib import Path

from tests.support.rounds import Count, Fault, Table, report, take


def test_a_test_that_reports_nothing_has_no_row() -> None:
    take(0, None)
    assert take(0, None, failure="AssertionError") is None


def test_reports_of_a_test_are_added_and_its_seed_counts_when_it_fails() -> None:
    take(0, None)
    report(acknowledged=3, unavailable_s=2.5)
    report(acknowledged=4, lost=1, wrong=2, unavailable_s=1.5)
    assert take(5, 77, failure="no") == Count(
        rounds=5, acknowledged=7, lost=1, wrong=2, unavailable_s=2.5, failing_seeds=[77], reasons=["no"], runs=1
    )
    report(2, failing_seed=8)
    report(1)
    assert take(5, 77, failure="no") == Count(rounds=3, failing_seeds=[8], reasons=["no"], runs=1)


def test_a_table_has_a_row_for_each_test_and_merges_those_of_other_runs(tmp_path: Path) -> None:
    table = Table()
    fault = Fault("single", "kills", "the broker is killed")
    for test, rounds, seeds in (("tests/a.py::b[3-x]", 3, []), ("tests/a.py::b[4]", 4, [9]), ("tests/a.py::a", 1, [])):
        count = Count(rounds=rounds, acknowledged=1_000, failing_seeds=seeds, runs=1)
        table.add(test, count, fault if test.endswith("]") else None)
    _, written = table.write(tmp_path)
    table.merge(written)
    assert table.markdown() == (
        "| test | runs | rounds | acknowledged | lost | wrong | failing seeds |\n"
        "| --- | ---: | ---: | ---: | ---: | ---: | --- |\n"
        "| a.py::a | 2 | 2 | 2,000 | 0 | 0 |  |\n"
        "| a.py::b | 4 | 14 | 4,000 | 0 | 0 | 9, 9 |\n"
        "| all | 6 | 16 | 6,000 | 0 | 0 | 9, 9 |\n"
    )
    assert table.faults == {fault: Count(rounds=14, acknowledged=4_000, failing_seeds=[9, 9], runs=4)}
