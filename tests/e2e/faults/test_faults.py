"""A fault of a mode, again and again under load: nothing acknowledged is lost, and nobody reads anything else.

A failure prints its seed; the page of scripts/faults has the command that tries it again.
"""

from pathlib import Path

import pytest

from tests.e2e.faults.catalogue import FAULTS, Fault, round_of
from tests.e2e.faults.sets import trial
from tests.support.amounts import rounds_or
from tests.support.rounds import report

pytestmark = pytest.mark.nightly

# How often each fault is made in one set.
ROUNDS = 3
CASES = [
    pytest.param(
        mode, fault, id=f"{mode}-{fault.kind}-{fault.what}", marks=pytest.mark.fault(fault.kind, fault.what, mode)
    )
    for fault in FAULTS
    for mode in fault.modes
]  # fmt: skip


@pytest.mark.parametrize(("mode", "fault"), CASES)
async def test_nothing_is_lost(mode: str, fault: Fault, tmp_path: Path, seed: int) -> None:
    async with trial(mode, tmp_path, machines=fault.needs_machines) as tried:
        for _ in range(rounds_or(ROUNDS)):
            await round_of(tried, fault)
            report(1)
