"""The page of scripts/faults, and what the pass over the faults leaves out."""

import subprocess
import sys
from datetime import UTC, datetime

from scripts.daemons import ROOT
from scripts.faults import FAILED, INTERRUPTED, KIND_TITLES, KINDS, MODES, PASSED, Run, exit_code, page
from tests.e2e.faults.catalogue import FAULTS
from tests.support.rounds import Count, Fault

RUN = Run(datetime(2026, 1, 2, 3, 4, tzinfo=UTC), 0.5, [7, 8], "scripts/faults --hours 0.5")
QUIET = Count(rounds=3, acknowledged=1_000, unavailable_s=1.25, runs=1)


def test_a_page_has_claims_first_and_a_row_for_each_fault() -> None:
    faults = {
        Fault("dledger", "kills", "the master is killed"): QUIET,
        Fault("single", "kills", "the master is killed"): Count(rounds=2, acknowledged=10, runs=1),
    }
    text = page(RUN, faults)
    assert text.index("## Claims") < text.index("## In short") < text.index("## Every fault")
    assert "5 rounds of 2 faults, 1,010 acknowledged messages: **0 lost, 0 wrong**. No test failed." in text
    assert "30 minutes" in text and "7, 8" in text
    rows = [line for line in text.splitlines() if line.startswith("| the master is killed")]
    assert rows == [
        "| the master is killed | single | 2 | 10 | 0 | 0 | - |  |",
        "| the master is killed | dledger | 3 | 1,000 | 0 | 0 | 1.2 |  |",
    ]
    assert "Not tried in this run: freezes" in text


def test_a_page_says_what_failed_with_its_seed() -> None:
    failed = Count(rounds=1, acknowledged=5, lost=2, wrong=1, failing_seeds=[42], reasons=["no | `more`"], runs=1)
    text = page(RUN, {Fault("single", "lies", "bits flip"): failed})
    assert "**2 lost, 1 wrong**" in text
    assert "- single, bits flip, seed 42: `no \\| 'more'`" in text
    assert "| bits flip | single | 1 | 5 | 2 | 1 | - | 42 |" in text


def test_a_run_is_clean_only_when_each_pass_is() -> None:
    fault = Fault("single", "kills", "the master is killed")
    assert exit_code([PASSED, INTERRUPTED], {fault: QUIET}) == 0
    # A test that fails before it counts anything is in no row.
    assert exit_code([FAILED, PASSED], {fault: QUIET}) == 1
    assert exit_code([PASSED], {fault: Count(lost=1)}) == exit_code([PASSED], {fault: Count(reasons=["no"])}) == 1


def test_all_faults_have_a_place_on_the_page() -> None:
    assert {fault.kind for fault in FAULTS} <= set(KINDS) == set(KIND_TITLES)
    assert {mode for fault in FAULTS for mode in fault.modes} <= set(MODES)


def test_a_wrong_mode_is_refused_with_those_there_are() -> None:
    command = [sys.executable, "-m", "scripts.faults", "--mode", "alone"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 2 and "choose from" in run.stderr and "dledger" in run.stderr
