"""Random histories of a set and its bucket: see history.py. Owners that cut corners are noticed."""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import pytest
import trio

from skylark.broker.tier import tier, upload
from skylark.broker.tier.tier import Tier
from skylark.mqcommon.tier.bucket import BucketError
from tests.sim.tier.history import TierHistory
from tests.support.faulty_bucket import FaultyBucket
from tests.support.histories import run
from tests.support.rounds import report

T = TypeVar("T")
# A history of one of these seeds must notice a mutant.
MUTANTS_SEEDS = 40


async def _inline(what: Callable[..., T], *args: Any, **_: Any) -> T:
    await trio.lowlevel.checkpoint()
    return what(*args)


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    """No threads: with the same seed the same happens. The probe has threads of its own."""
    monkeypatch.setattr(trio.to_thread, "run_sync", _inline)
    monkeypatch.setattr(tier, "probe", lambda bucket: None)


@pytest.mark.histories(count=300)
def test_no_acknowledged_message_is_ever_in_neither_place(seeds: Iterable[int]) -> None:
    histories = run(TierHistory, seeds)
    report(acknowledged=sum(len(history.acked) for history in histories))
    if isinstance(seeds, range):
        # Histories in which nothing is uploaded, removed or read back would prove nothing.
        for each in ("uploads", "removed", "from_bucket", "stops", "switches"):
            assert sum(getattr(history.counts, each) for history in histories), each


def notices() -> None:
    """Some history fails."""
    with pytest.raises((AssertionError, BucketError)):
        for seed in range(MUTANTS_SEEDS):
            TierHistory(seed).run()


def test_an_owner_that_does_not_read_back_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upload, "read_back", lambda bucket, segment: None)
    notices()


def test_an_owner_that_lets_files_go_before_they_are_listed_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    uploaded = Tier._task

    def too_early(self: Tier, owner: Any, start: int, size: int, before: Any) -> Any:
        self.uploaded_to = start + size
        return uploaded(self, owner, start, size, before)

    monkeypatch.setattr(Tier, "_task", too_early)
    notices()


def test_an_owner_that_creates_without_a_condition_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def create(self: FaultyBucket, name: str, data: bytes) -> None:
        self.put(name, (data,))

    monkeypatch.setattr(FaultyBucket, "create", create)
    notices()
