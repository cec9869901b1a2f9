"""Each target for a moment: nothing but the expected errors. A nightly minute of each also sees memory that stays."""

import gc
import os
import sys
import time
from pathlib import Path
from random import Random

import pytest

from tests.fuzz.mutate import mutated
from tests.fuzz.targets import TARGETS

SECONDS, NIGHTLY_SECONDS = 0.1, 60
# The least number of inputs: a busy machine may try fewer in its time.
LEAST = 200
KEPT_BYTES = 30 << 20
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def resident_bytes() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES


def fuzz(name: str, seconds: float, seed: int) -> None:
    target, random = TARGETS[name], Random(seed)
    corpus = target.corpus()
    for good in corpus:
        target.read(good)
    end, count, before = time.monotonic() + seconds, 0, resident_bytes()
    while count < LEAST or time.monotonic() < end:
        data = mutated(random, corpus)
        try:
            target.read(data)
        except Exception as error:
            error.add_note(f"{name}, input {count} of seed {seed}: {data!r}")
            raise
        count += 1
    sys.stdout.write(f"{name}: {count} inputs\n")
    assert resident_bytes() - before < KEPT_BYTES


@pytest.mark.parametrize("name", TARGETS)
def test_broken_input_gets_an_expected_error(name: str, seed: int) -> None:
    fuzz(name, SECONDS, seed)


@pytest.mark.nightly
@pytest.mark.parametrize("name", TARGETS)
def test_broken_input_for_a_minute(name: str, seed: int) -> None:
    fuzz(name, NIGHTLY_SECONDS, seed)
