"""Random histories of a broker set whose masters Controllers elect: no two masters, and nothing confirmed is lost."""

import re
from collections.abc import Iterable

import pytest

from skylark.broker.replication.autoswitch.decisions import Decisions, MasterLease, News, RoleDecision
from skylark.broker.replication.autoswitch.sync_set import SyncSet
from skylark.mqcommon.errors import ProtocolError
from skylark.namesrv.controller.commands import Candidate
from tests.sim.controller.world import World
from tests.support.histories import BLOCK, KNOWN, run

# Histories in which a master comes back before the Controllers notice, and one outlives its lease.
RESTARTS, LATE = 25, 19


def is_noticed(pattern: str, first: int = 0) -> bool:
    """Whether a history fails like that; others may fail in other ways before."""
    for seed in range(first, first + KNOWN):
        try:
            World(seed).run()
        except (AssertionError, RuntimeError, ProtocolError) as error:
            if re.search(pattern, str(error)):
                return True
    return False


@pytest.mark.histories()
def test_nothing_confirmed_is_lost(seeds: Iterable[int]) -> None:
    worlds = run(World, seeds)
    if isinstance(seeds, range):
        assert sum(world.elections for world in worlds) > 2 * BLOCK


def test_a_confirm_offset_without_the_asked_set_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    advance = SyncSet.advance

    def forget(known: SyncSet, log_end: int) -> None:
        proposed, known.proposed = known.proposed, None
        advance(known, log_end)
        known.proposed = proposed

    monkeypatch.setattr(SyncSet, "advance", forget)
    assert is_noticed("lacks some of")


def test_a_lease_that_does_not_end_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MasterLease, "holds", lambda lease, _: lease.until > 0)
    assert is_noticed("at once", LATE)


def test_a_restarted_master_that_goes_on_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    take_news = Decisions.take_news

    def go_on(decisions: Decisions, news: News) -> RoleDecision | None:
        decisions._older_epoch, decisions.must_be_silent = -1, False
        return take_news(decisions, news)

    monkeypatch.setattr(Decisions, "take_news", go_on)
    assert is_noticed("a second time", RESTARTS)


def test_a_master_from_anywhere_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def any_of(candidates: Iterable[Candidate], *_: object, **__: object) -> int | None:
        return next((each.broker_id for each in candidates), None)

    monkeypatch.setattr("skylark.namesrv.controller.replicas.elect", any_of)
    assert is_noticed("lacks|acknowledges")
