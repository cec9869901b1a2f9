"""Random histories of a group whose disks lie: see history.py."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeVar

import pytest
import trio

from skylark.broker.replication.dledger import log_disk
from skylark.broker.replication.dledger.entry_index import EntryIndex
from tests.sim.healing.history import HealingHistory
from tests.support.histories import BLOCK, run
from tests.support.rounds import report

T = TypeVar("T")
SLOTS = 64


async def _inline(what: Callable[..., T], *args: Any, **_: Any) -> T:
    await trio.lowlevel.checkpoint()
    return what(*args)


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a history takes less time: no threads, beside which nothing else would run, and small side files."""
    monkeypatch.setattr(trio.to_thread, "run_sync", _inline)
    monkeypatch.setattr(log_disk, "EntryIndex", partial(EntryIndex, slots=SLOTS))


@pytest.mark.histories(count=300)
def test_damage_on_a_minority_is_mended_and_served_to_nobody(seeds: Iterable[int]) -> None:
    histories = run(HealingHistory, seeds)
    report(acknowledged=sum(len(history.acked) for history in histories))
    if isinstance(seeds, range):
        # Histories in which nothing is damaged or healed would prove nothing.
        assert sum(history.damages for history in histories) > BLOCK
        assert sum(history.healed for history in histories) > BLOCK
