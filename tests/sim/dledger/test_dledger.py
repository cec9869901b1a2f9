"""Random histories of a DLedger group: see history.py."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeVar

import pytest
import trio

from skylark.broker.replication.dledger import log_disk
from skylark.broker.replication.dledger.entry_index import EntryIndex
from skylark.broker.replication.dledger.group_store import LostDisk
from skylark.broker.replication.dledger.log_disk import LogDisk
from skylark.mqcommon.errors import RaftError
from tests.sim.dledger.history import AsyncHistory, History
from tests.support.histories import BLOCK, run
from tests.support.rounds import report

T = TypeVar("T")
# Of a side file, so that histories fill several of them.
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
def test_what_is_acknowledged_stays_and_all_logs_become_equal(seeds: Iterable[int]) -> None:
    histories = run(History, seeds)
    report(acknowledged=sum(len(history.acked) for history in histories))
    if isinstance(seeds, range):
        # Histories in which nothing is elected or stored would prove nothing.
        assert sum(history.elections for history in histories) > BLOCK
        assert sum(len(history.acked) for history in histories) > 10 * BLOCK


@pytest.mark.histories(count=25)
def test_with_async_flush_kills_take_nothing(seeds: Iterable[int]) -> None:
    histories = run(AsyncHistory, seeds)
    if isinstance(seeds, range):
        assert sum(len(history.acked) for history in histories) > 10 * BLOCK


@pytest.mark.parametrize(
    "seed",
    [
        4068250532,  # killed after a conflicting tail was forgotten, which had been on disk
        4087215544,  # killed before an fsync, acknowledged after the start, and lost power
    ],
)
def test_what_a_nightly_run_found(seed: int) -> None:
    run(History, [seed])


def test_entries_that_are_promised_before_they_are_on_disk_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def write_nothing(disk: LogDisk, *, with_mark: bool) -> None:
        await trio.lowlevel.checkpoint()

    monkeypatch.setattr(LogDisk, "_sync", write_nothing)
    with pytest.raises((AssertionError, RaftError, LostDisk)):
        for seed in range(BLOCK):
            History(seed).run()


def test_a_tail_that_is_not_cut_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def cut_nothing(disk: LogDisk) -> None:
        await trio.lowlevel.checkpoint()

    monkeypatch.setattr(LogDisk, "align", cut_nothing)
    with pytest.raises((AssertionError, RaftError)):
        for seed in range(BLOCK):
            History(seed).run()
