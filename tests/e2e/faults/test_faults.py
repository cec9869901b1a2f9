"""A fault of a mode, again and again under load: nothing acknowledged is lost, and nobody reads anything else.

A failure prints its seed; scripts/faults prints the command that tries it again.
"""

import os
from pathlib import Path

import pytest

from tests.e2e.faults.catalogue import FAULTS, Fault, round_of
from tests.e2e.faults.sets import SINGLE, trial
from tests.support.amounts import amount
from tests.support.rounds import report

# How often each fault is made in one set.
ROUNDS_AT_NIGHT = 3


def cases() -> list[object]:
    """A case for each mode of each fault. CI tries the first one, so that the rest of this folder is not forgotten."""
    return [
        pytest.param(
            mode, fault, id=f"{mode}-{fault.kind}-{fault.what}",
            marks=[
                pytest.mark.fault(fault.kind, fault.what, mode),
                *([] if (mode, fault) == (SINGLE, FAULTS[0]) else [pytest.mark.nightly]),
            ],
        )
        for fault in FAULTS
        for mode in fault.modes
    ]  # fmt: skip


@pytest.mark.parametrize(("mode", "fault"), cases())
async def test_nothing_is_lost(mode: str, fault: Fault, tmp_path: Path, seed: int) -> None:
    async with trial(mode, tmp_path, machines=fault.needs_machines) as tried:
        for _ in range(int(os.environ.get("TEST_ROUNDS") or amount(1, ROUNDS_AT_NIGHT))):
            await round_of(tried, fault)
            report(1)
