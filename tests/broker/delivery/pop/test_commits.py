"""What may be committed, by how far the log is safe."""

from broker.delivery.pop.inflight import Horizon, PendingCommits
from broker.delivery.pop.records import Queue

ONE, TWO = Queue("g", "T", 0), Queue("g", "T", 1)


def test_positions_follow_the_safe_end_of_the_log() -> None:
    commits = PendingCommits()
    commits.moved(ONE, 3, 100)
    commits.moved(TWO, 5, 150)
    commits.moved(ONE, 7, 200)
    assert commits.safe(99) == {}
    assert commits.safe(150) == {ONE: 3, TWO: 5}
    assert commits.safe(150) == {}
    assert commits.safe(1_000) == {ONE: 7}


def test_a_group_that_was_set_elsewhere_is_left_alone() -> None:
    commits = PendingCommits()
    commits.moved(ONE, 3, 100)
    commits.moved(TWO, 5, 150)
    commits.forget(ONE)
    assert commits.safe(1_000) == {TWO: 5}


def test_the_start_of_the_revive_log_waits_for_the_log() -> None:
    horizon = Horizon(7, 100)
    assert not horizon.may_be_saved(99)
    assert horizon.may_be_saved(100)
