"""Random histories from seeds: the same ones in each run, new ones with ``--run-nightly``, or the one that SEED names.

A failure prints its seed, what happened and the command that runs it alone.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from random import Random
from typing import Protocol, TypeVar

import pytest

BLOCK = 25
IN_CI = 150
NIGHTLY = 10_000
SEED = "SKYLARK_HISTORY_SEED"


class History(Protocol):
    """What a seed makes happen; ``trace`` names it, step by step."""

    trace: list[str]

    def run(self) -> None: ...


H = TypeVar("H", bound=History)


class NewSeeds:
    """A block of seeds that no run had before."""

    def __iter__(self) -> Iterator[int]:
        return (Random().randrange(1 << 32) for _ in range(BLOCK))


def blocks(count: int = IN_CI) -> pytest.MarkDecorator:
    """Parametrize a test with ``seeds``: ``count`` in blocks, then new ones, which only a nightly run takes."""
    if SEED in os.environ:
        return pytest.mark.parametrize("seeds", [[int(os.environ[SEED])]])
    nightly = pytest.param(NewSeeds(), marks=pytest.mark.nightly)
    known = [range(first, first + BLOCK) for first in range(0, count, BLOCK)]
    return pytest.mark.parametrize("seeds", [*known, *[nightly] * (NIGHTLY // BLOCK)])


def run(new: Callable[[int], H], seeds: Iterable[int]) -> list[H]:
    """Run the histories that ``new`` makes of ``seeds``, and return them."""
    done = []
    for seed in seeds:
        history = new(seed)
        try:
            history.run()
        except Exception as error:
            error.add_note(f"history {seed}: {'; '.join(history.trace)}")
            error.add_note(f"again: the same test with {SEED}={seed} in the environment")
            raise
        done.append(history)
    return done
