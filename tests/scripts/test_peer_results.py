"""scripts/peers: what a report of pytest and the list of cases that do not apply come to."""

import pytest

from scripts.peer_suites.peers import PEERS
from scripts.peer_suites.results import KNOWN, Case, Known, Outcome, cases_of, known_of, summary_of, table

REPORT = """<testsuites><testsuite>
<testcase classname="t.test_a.TestA" name="test_good"/>
<testcase classname="t.test_a.TestA" name="test_bad[x]"><failure message="no route&#10;more">trace</failure></testcase>
<testcase classname="t.test_a.TestA" name="test_setup"><error message="refused">trace</error></testcase>
<testcase classname="t.test_b" name="test_other"><skipped message="needs Kafka">trace</skipped></testcase>
<testcase classname="t.test_b" name="test_sub"><failure message="first part"/></testcase>
<testcase classname="t.test_b" name="test_sub"/>
</testsuite></testsuites>"""
GOOD = Case("t.test_a.TestA::test_good", Outcome.PASSED)
BAD = Case("t.test_a.TestA::test_bad[x]", Outcome.FAILED, "no route")
SETUP = Case("t.test_a.TestA::test_setup", Outcome.FAILED, "refused")
OTHER = Case("t.test_b::test_other", Outcome.SKIPPED, "needs Kafka")
SUB = Case("t.test_b::test_sub", Outcome.FAILED, "first part")


def test_a_report_has_the_worst_outcome_of_each_case() -> None:
    assert cases_of(REPORT) == [GOOD, BAD, SETUP, OTHER, SUB]


def test_the_list_of_what_does_not_apply_is_read_by_peer() -> None:
    text = "# a comment\n\nkombu  *::test_bad[x]  there is  no priority\ncelery  *  other\n"
    assert known_of(text, "kombu") == [Known("kombu", "*::test_bad[x]", "there is  no priority")]
    with pytest.raises(ValueError, match="line 1 is not"):
        known_of("kombu *::test_bad", "kombu")


def test_a_listed_failure_does_not_fail_the_run() -> None:
    known = [Known("kombu", "*TestA::test_bad[x]", "no priorities"), Known("kombu", "*::test_setup", "no Kafka")]
    summary = summary_of([GOOD, BAD, SETUP, OTHER], known)
    assert summary.is_good
    assert [case for case, _ in summary.not_applying] == [BAD, SETUP]
    assert "does not apply:   1  no priorities  (t.test_a.TestA::test_bad[x])" in table(summary)
    assert "left out:   1  needs Kafka  (t.test_b::test_other)" in table(summary)


def test_another_failure_fails_the_run_and_is_named() -> None:
    summary = summary_of([GOOD, BAD], [Known("kombu", "*::test_bad[y]", "another parameter")])
    assert not summary.is_good
    assert "failed: t.test_a.TestA::test_bad[x]: no route" in table(summary)


def test_a_run_in_which_nothing_passed_is_not_good() -> None:
    assert not summary_of([OTHER], []).is_good


def test_an_entry_whose_cases_all_pass_is_named() -> None:
    summary = summary_of([GOOD], [Known("kombu", "*::test_good", "no more"), Known("kombu", "*::gone", "no case")])
    assert [entry.pattern for entry in summary.outdated] == ["*::test_good"]
    assert "take it off the list of what does not apply: *::test_good" in table(summary)


def test_the_list_in_the_tree_is_of_known_peers() -> None:
    text = KNOWN.read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert sum(len(known_of(text, peer)) for peer in PEERS) == len(lines)
