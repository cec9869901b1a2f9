"""Random histories of a broker set whose masters Controllers elect: no two masters, and nothing confirmed is lost.

CI runs the same 300 each time, ``--run-nightly`` 10,000 new ones. A failure prints its seed, what happened and the
command that runs it alone.
"""

import os
import re
from collections.abc import Iterable
from random import Random

import pytest

from broker.replication.autoswitch.decisions import Decisions, MasterLease, News, RoleDecision
from broker.replication.autoswitch.sync_set import SyncSet
from mqcommon.errors import ProtocolError
from namesrv.controller.candidates import Candidate
from tests.sim.controller.world import World

pytestmark = pytest.mark.slow

BLOCK = 25
IN_CI = 300
NIGHTLY = 10_000
# A history in which a master comes back before the Controllers notice.
RESTARTS = 16
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


def is_noticed(pattern: str, first: int = 0) -> bool:
    """Whether a history fails like that; others may fail in other ways before."""
    for seed in range(first, first + IN_CI):
        try:
            World(seed).run()
        except (AssertionError, RuntimeError, ProtocolError) as error:
            if re.search(pattern, str(error)):
                return True
    return False


@pytest.mark.parametrize("first", range(0, IN_CI, BLOCK))
def test_nothing_confirmed_is_lost(first: int) -> None:
    worlds = [run(seed) for seed in range(first, first + BLOCK)]
    assert sum(world.elections for world in worlds) > 2 * BLOCK


@pytest.mark.nightly
@pytest.mark.parametrize("block", range(NIGHTLY // BLOCK))
def test_nothing_confirmed_is_lost_in_new_histories(block: int) -> None:
    for _ in range(BLOCK):
        run(Random().randrange(1 << 32))


def test_a_confirm_offset_without_the_asked_set_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    advance = SyncSet.advance

    def forget(known: SyncSet, log_end: int) -> None:
        asked, known.asked = known.asked, None
        advance(known, log_end)
        known.asked = asked

    monkeypatch.setattr(SyncSet, "advance", forget)
    assert is_noticed("lacks some of")


def test_a_lease_that_does_not_end_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MasterLease, "holds", lambda lease, _: lease.until > 0)
    assert is_noticed("at once")


def test_a_restarted_master_that_goes_on_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Decisions.told

    def go_on(decisions: Decisions, news: News) -> RoleDecision | None:
        decisions._older_epoch, decisions.must_be_silent = -1, False
        return told(decisions, news)

    monkeypatch.setattr(Decisions, "told", go_on)
    assert is_noticed("a second time", RESTARTS)


def test_a_master_from_anywhere_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def any_of(candidates: Iterable[Candidate], *_: object, **__: object) -> int | None:
        return next((each.broker_id for each in candidates), None)

    monkeypatch.setattr("namesrv.controller.replicas.elect", any_of)
    assert is_noticed("lacks|acknowledges")


@pytest.mark.skipif(SEED not in os.environ, reason=f"runs the history that {SEED} names")
def test_the_chosen_history() -> None:
    run(int(os.environ[SEED]))
