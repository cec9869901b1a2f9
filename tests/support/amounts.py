"""How much of very much a test tries: all of it in a nightly run, else a share, which is the same each time."""

import os
from collections.abc import Iterable, Iterator
from typing import TypeVar

# In the environment of a nightly run: all of its seeds come from this one, which it prints.
NIGHTLY_SEED = "TEST_NIGHTLY_SEED"
# In the environment: how often a test with faults makes its fault, for the tests that ask `rounds_or`.
TEST_ROUNDS = "TEST_ROUNDS"

T = TypeVar("T")


def amount(default: int, nightly: int) -> int:
    """How often a test tries something random."""
    return nightly if NIGHTLY_SEED in os.environ else default


def rounds_or(default: int) -> int:
    """How often a test makes its fault: as TEST_ROUNDS says, else ``default``."""
    return int(os.environ.get(TEST_ROUNDS) or default)


def share_of(everything: Iterable[T], one_in: int = 30) -> Iterator[T]:
    """The first item, and one of each ``one_in`` items, at another place in each; all items in a nightly run."""
    takes_all = NIGHTLY_SEED in os.environ
    for number, item in enumerate(everything):
        block, place = divmod(number, one_in)
        if takes_all or place == block * 7 % one_in:
            yield item
