"""Random histories of a Raft group: the paper's properties hold after each event, and reads are linearizable."""

from collections.abc import Iterable
from dataclasses import replace

import pytest

from skylark.mqcommon.errors import RaftError
from skylark.mqcommon.raft.messages import VoteRequest
from skylark.mqcommon.raft.raft import Candidate, Leader
from skylark.mqcommon.raft.ready import Persist
from tests.sim.raft.group import Group
from tests.sim.raft.node import Disk
from tests.support.histories import BLOCK, KNOWN, run

# Histories that notice at once what others do not.
A_SHORT_LOG, AN_OLD_READ = 28, 61


@pytest.mark.histories()
def test_the_papers_properties_hold(seeds: Iterable[int]) -> None:
    groups = run(Group, seeds)
    if isinstance(seeds, range):
        # Histories in which nothing is elected or written would prove nothing.
        assert sum(group.checks.elections for group in groups) > BLOCK
        assert sum(group.checks.done for group in groups) > 20 * BLOCK


def test_votes_without_a_look_at_the_log_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = Candidate.begin

    def boast(candidate: Candidate) -> None:
        begin(candidate)
        raft = candidate._raft
        raft.outbox = [
            replace(each, last_term=each.term) if isinstance(each, VoteRequest) else each for each in raft.outbox
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
    # A node that has forgotten its term names entries of later ones, and the others drop what it says.
    with pytest.raises(AssertionError, match=r"election safety|log matching|no leader serves"):
        for seed in range(BLOCK):
            Group(seed).run()


def test_a_start_with_a_log_that_has_lost_records_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Disk, "is_short", False)
    with pytest.raises((AssertionError, RaftError)):
        for seed in range(A_SHORT_LOG, A_SHORT_LOG + KNOWN):
            Group(seed).run()


def test_reads_without_a_round_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Leader, "_round_of", lambda leader, node: leader._round)
    with pytest.raises(AssertionError, match="a read saw"):
        for seed in range(AN_OLD_READ, AN_OLD_READ + KNOWN):
            Group(seed).run()
