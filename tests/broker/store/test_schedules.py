"""Random schedules of work, full disks, broken disks, kills and power losses: nothing durable is lost, none made up.

CI runs the same 300 each time, ``--run-nightly`` 10,000 new ones. A failure prints its seed, its steps and the command
that runs it alone.
"""

import os
from random import Random

import pytest

from tests.broker.store.schedule import Schedule

BLOCK = 25
IN_CI = 300
NIGHTLY = 10_000
SEED = "SKYLARK_SCHEDULE_SEED"


def run(seed: int) -> None:
    schedule = Schedule(seed)
    try:
        schedule.run()
    except Exception as error:
        error.add_note(f"schedule {seed}: {' '.join(schedule.trace)}")
        error.add_note(f"again: {SEED}={seed} .venv/bin/pytest {os.path.relpath(__file__)} -k the_chosen_schedule")
        raise


@pytest.mark.parametrize("first", range(0, IN_CI, BLOCK))
def test_nothing_durable_is_lost(first: int) -> None:
    for seed in range(first, first + BLOCK):
        run(seed)


@pytest.mark.nightly
@pytest.mark.parametrize("block", range(NIGHTLY // BLOCK))
def test_nothing_durable_is_lost_in_new_schedules(block: int) -> None:
    for _ in range(BLOCK):
        run(Random().randrange(1 << 32))


@pytest.mark.skipif(SEED not in os.environ, reason=f"runs the schedule that {SEED} names")
def test_the_chosen_schedule() -> None:
    run(int(os.environ[SEED]))
