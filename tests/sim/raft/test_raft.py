"""Random histories of a Raft group: the paper's properties hold after each event, and reads are linearizable.

CI runs the same 300 each time, ``--run-nightly`` 10,000 new ones. A failure prints its seed, what happened and the
command that runs it alone.
"""

import os
from random import Random

import pytest

from tests.sim.raft.group import Group

BLOCK = 25
IN_CI = 300
NIGHTLY = 10_000
SEED = "SKYLARK_RAFT_SEED"


def run(seed: int) -> Group:
    group = Group(seed)
    try:
        group.run()
    except Exception as error:
        error.add_note(f"history {seed}: {'; '.join(group.trace)}")
        error.add_note(f"again: {SEED}={seed} .venv/bin/pytest {os.path.relpath(__file__)} -k the_chosen_history")
        raise
    return group


@pytest.mark.parametrize("first", range(0, IN_CI, BLOCK))
def test_the_papers_properties_hold(first: int) -> None:
    groups = [run(seed) for seed in range(first, first + BLOCK)]
    # Histories in which nothing is elected or written would prove nothing.
    assert sum(group.checks.elections for group in groups) > BLOCK
    assert sum(group.checks.done for group in groups) > 20 * BLOCK


@pytest.mark.nightly
@pytest.mark.parametrize("block", range(NIGHTLY // BLOCK))
def test_the_papers_properties_hold_in_new_histories(block: int) -> None:
    for _ in range(BLOCK):
        run(Random().randrange(1 << 32))


@pytest.mark.skipif(SEED not in os.environ, reason=f"runs the history that {SEED} names")
def test_the_chosen_history() -> None:
    run(int(os.environ[SEED]))
