"""Random histories from seeds: the same few in each run, more with ``--known-seeds`` or ``--nightly``.

``@pytest.mark.histories()`` gives a test its ``seeds``, `BLOCK` at a time; ``count`` and ``few`` as in `blocks`.
TEST_HISTORY_SEED in the environment is the only seed then.
A failure prints its seed, what happened and the command that runs it alone.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from random import Random
from typing import Protocol, TypeVar

from tests.support.rounds import report

BLOCK = 10
# The seeds that CI tries, and a nightly run before its new ones. Other runs try the first block of these seeds.
KNOWN = 100
NIGHTLY = 10_000
SEED = "TEST_HISTORY_SEED"


class History(Protocol):
    """The events that follow from a seed; ``trace`` names them, step by step."""

    trace: list[str]

    def run(self) -> None: ...


H = TypeVar("H", bound=History)


class NewSeeds:
    """A block of seeds that no run had before: they come from ``text``."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __iter__(self) -> Iterator[int]:
        random = Random(self._text)
        return (random.randrange(1 << 32) for _ in range(BLOCK))


def blocks(
    nightly_seed: str | None = None, *, takes_known: bool = False, count: int = KNOWN, few: int = BLOCK
) -> Sequence[Iterable[int]]:
    """The seeds of a test in blocks: the first ``few`` seeds, or, with ``takes_known``, the first ``count`` seeds.

    With ``nightly_seed`` these ``count`` seeds and new seeds, which come from ``nightly_seed``.
    """
    if SEED in os.environ:
        return [[int(os.environ[SEED])]]
    end = count if takes_known or nightly_seed is not None else few
    known = [range(first, first + BLOCK) for first in range(0, end, BLOCK)]
    if nightly_seed is None:
        return known
    return [*known, *[NewSeeds(f"{nightly_seed} {first}") for first in range(0, NIGHTLY, BLOCK)]]


def run(new: Callable[[int], H], seeds: Iterable[int]) -> list[H]:
    """Run the histories that ``new`` makes of ``seeds``, and return them."""
    done = []
    for seed in seeds:
        history = new(seed)
        try:
            history.run()
        except Exception as error:
            report(failing_seed=seed)
            error.add_note(f"history {seed}: {'; '.join(history.trace)}")
            error.add_note(f"again: the same test with {SEED}={seed} in the environment")
            raise
        done.append(history)
        report(1)
    return done
