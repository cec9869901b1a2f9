"""Random histories of a Raft group: the paper's properties hold after each event, and reads are linearizable.

CI runs the same 300 each time, ``--run-nightly`` 10,000 new ones. A failure prints its seed, what happened and the
command that runs it alone.
"""

import os
from dataclasses import replace
from random import Random

import pytest

from mqcommon.errors import RaftError
from mqcommon.raft.core import Candidate, Leader
from mqcommon.raft.messages import VoteRequest
from mqcommon.raft.ready import Persist
from tests.sim.raft.group import Group
from tests.sim.raft.node import Disk

pytestmark = pytest.mark.slow

BLOCK = 25
IN_CI = 300
NIGHTLY = 10_000
SEED = "SKYLARK_RAFT_SEED"


def run(seed: int) -> Group:
    group = Group(seed)
    try:
        group.run()
    except Exception as error:
        error.add_note(f"history {seed}: {'; '.join(group.trace)}")
        error.add_note(f"again: {SEED}={seed} .venv/bin/pytest {os.path.relpath(__file__)} -k the_chosen_history")
        raise
    return group


@pytest.mark.parametrize("first", range(0, IN_CI, BLOCK))
def test_the_papers_properties_hold(first: int) -> None:
    groups = [run(seed) for seed in range(first, first + BLOCK)]
    # Histories in which nothing is elected or written would prove nothing.
    assert sum(group.checks.elections for group in groups) > BLOCK
    assert sum(group.checks.done for group in groups) > 20 * BLOCK


@pytest.mark.nightly
@pytest.mark.parametrize("block", range(NIGHTLY // BLOCK))
def test_the_papers_properties_hold_in_new_histories(block: int) -> None:
    for _ in range(BLOCK):
        run(Random().randrange(1 << 32))


def test_votes_without_a_look_at_the_log_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = Candidate.begin

    def boast(candidate: Candidate) -> None:
        begin(candidate)
        core = candidate._core
        core.outbox = [
            replace(each, last_term=each.last_term + 1000) if isinstance(each, VoteRequest) else each
            for each in core.outbox
        ]

    monkeypatch.setattr(Candidate, "begin", boast)
    with pytest.raises(AssertionError, match="leader completeness"):
        for seed in range(BLOCK):
            Group(seed).run()


def test_votes_that_are_forgotten_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    write = Disk.write

    def forget(disk: Disk, persist: Persist, entries: int) -> None:
        write(disk, Persist(None, persist.entries, persist.snapshot, ()), entries)

    monkeypatch.setattr(Disk, "write", forget)
    with pytest.raises(AssertionError, match=r"election safety|log matching"):
        for seed in range(BLOCK):
            Group(seed).run()


def test_a_start_with_a_log_that_has_lost_records_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Disk, "is_short", False)
    with pytest.raises((AssertionError, RaftError)):
        for seed in range(IN_CI):
            Group(seed).run()


def test_reads_without_a_round_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Leader, "_round_of", lambda leader, node: leader._round)
    with pytest.raises(AssertionError, match="a read saw"):
        for seed in range(IN_CI):
            Group(seed).run()


@pytest.mark.skipif(SEED not in os.environ, reason=f"runs the history that {SEED} names")
def test_the_chosen_history() -> None:
    run(int(os.environ[SEED]))
