"""Random histories of a broker set whose masters Controllers elect: no two masters, and nothing confirmed is lost.

CI runs the same 300 each time, ``--run-nightly`` 10,000 new ones. A failure prints its seed, what happened and the
command that runs it alone.
"""

import os
from random import Random

import pytest

from tests.sim.controller.world import World

BLOCK = 25
IN_CI = 300
NIGHTLY = 10_000
SEED = "SKYLARK_CONTROLLER_SEED"


def run(seed: int) -> World:
    world = World(seed)
    try:
        world.run()
    except Exception as error:
        error.add_note(f"history {seed}: {'; '.join(world.trace)}")
        error.add_note(f"again: {SEED}={seed} .venv/bin/pytest {os.path.relpath(__file__)} -k the_chosen_history")
        raise
    return world


@pytest.mark.parametrize("first", range(0, IN_CI, BLOCK))
def test_nothing_confirmed_is_lost(first: int) -> None:
    worlds = [run(seed) for seed in range(first, first + BLOCK)]
    assert sum(world.elections for world in worlds) > 2 * BLOCK


@pytest.mark.nightly
@pytest.mark.parametrize("block", range(NIGHTLY // BLOCK))
def test_nothing_confirmed_is_lost_in_new_histories(block: int) -> None:
    for _ in range(BLOCK):
        run(Random().randrange(1 << 32))


@pytest.mark.skipif(SEED not in os.environ, reason=f"runs the history that {SEED} names")
def test_the_chosen_history() -> None:
    run(int(os.environ[SEED]))
