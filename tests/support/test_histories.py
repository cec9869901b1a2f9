"""Which seeds a test of random histories gets, by the options of the run."""

from itertools import chain

import pytest

from tests.support import histories
from tests.support.histories import blocks


def seeds(nightly_seed: str | None = None, *, takes_known: bool = False, count: int = 300, few: int = 30) -> list[int]:
    return list(chain.from_iterable(blocks(nightly_seed, takes_known=takes_known, count=count, few=few)))


@pytest.fixture(autouse=True)
def _no_seed_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(histories.SEED, raising=False)


def test_a_run_takes_the_first_of_the_known_seeds_and_ci_takes_all() -> None:
    assert seeds() == list(range(30))
    assert seeds(takes_known=True) == list(range(300))


def test_a_nightly_run_takes_all_known_seeds_and_new_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(histories, "NIGHTLY", 20)
    found = seeds("1", count=30)
    assert found[:30] == list(range(30)) and len({*found}) == 50
    assert found == seeds("1", count=30) != seeds("2", count=30)


def test_a_given_seed_is_the_only_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(histories.SEED, "8825")
    assert seeds("1", takes_known=True) == [8825]
