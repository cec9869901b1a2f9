"""The SyncStateSet at its master: what is confirmed is in every log that the Controller can choose."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.broker.replication.autoswitch.sync_set import GONE_S, REFUSED_S, SyncSet

ME, PATIENCE_S = 1, 15.0
# (kind, slave, number): what the number means depends on the kind.
steps = st.lists(
    st.tuples(
        st.sampled_from(["append", "ack", "gone", "wait", "ask", "accept", "refuse", "late"]),
        st.integers(2, 4),
        st.integers(0, 20),
    ),
    max_size=60,
)


@given(steps)
def test_what_is_confirmed_is_in_each_log_that_can_be_elected(history: list[tuple[str, int, int]]) -> None:
    now, log_end = 0.0, 0
    ends = dict.fromkeys((2, 3, 4), 0)
    members, epoch = frozenset({ME}), 1
    tracked = SyncSet(ME, members, epoch, PATIENCE_S, now)
    confirmed = 0
    is_applied = False
    for kind, slave, number in history:
        if kind == "append":
            log_end += number
            tracked.advance(log_end)
        elif kind == "ack":
            ends[slave] = min(ends[slave] + number, log_end)
            tracked.acked(slave, ends[slave], log_end, now, is_learner=slave == 4)
        elif kind == "gone":
            tracked.disconnected(slave, now)
        elif kind == "wait":
            now += number
        elif kind == "ask" and (asked := tracked.wanted(now)) is not None:
            tracked.propose(asked)
        elif kind == "accept" and tracked.proposed is not None:
            if not is_applied:
                members, epoch, is_applied = tracked.proposed, epoch + 1, True
            if number % 2:  # else the answer is lost, and the question comes again
                tracked.update(members, epoch, log_end, now)
                is_applied = False
            else:
                tracked.unanswered()
        elif kind == "refuse" and tracked.proposed is not None and not is_applied:
            tracked.refused(now)
        elif kind == "late":
            tracked.update({ME, slave}, epoch - 1, log_end, now)
        assert confirmed <= tracked.confirm_offset <= log_end
        confirmed = tracked.confirm_offset
        assert all(ends[member] >= confirmed for member in members - {ME})
        assert 4 not in members and ME in members


def test_the_present_epoch_does_not_end_a_question() -> None:
    tracked = SyncSet(ME, {ME}, 1, PATIENCE_S, 0.0)
    tracked.acked(2, 0, 0, 0.0)
    tracked.propose(frozenset({ME, 2}))
    tracked.update({ME}, 1, 0, 1.0)
    assert tracked.proposed == {ME, 2}
    tracked.update({ME, 2}, 2, 0, 1.0)
    assert (tracked.members, tracked.proposed) == ({ME, 2}, None)


def test_an_old_acknowledgement_takes_nothing_back() -> None:
    tracked = SyncSet(ME, {ME, 2, 3}, 1, PATIENCE_S, 0.0)
    tracked.acked(2, 80, 100, 0.0)
    tracked.acked(2, 50, 100, 0.0)
    tracked.acked(3, 100, 100, 0.0)
    assert tracked.confirm_offset == 80


def test_a_slave_joins_when_it_has_all_that_is_confirmed_and_leaves_when_it_lags() -> None:
    tracked = SyncSet(ME, {ME}, 1, PATIENCE_S, 0.0)
    tracked.advance(100)
    assert tracked.confirm_offset == 100
    tracked.acked(2, 60, 100, 1.0)
    assert tracked.wanted(1.0) is None
    tracked.acked(2, 100, 100, 2.0)
    assert tracked.wanted(2.0) == {ME, 2}
    tracked.propose(frozenset({ME, 2}))
    assert tracked.wanted(2.0) is None
    tracked.advance(150)
    assert tracked.confirm_offset == 100
    tracked.update({ME, 2}, 2, 150, 2.5)
    assert tracked.wanted(16.9) is None
    assert tracked.wanted(17.0) == {ME}
    tracked.propose(frozenset({ME}))
    tracked.advance(200)
    assert tracked.confirm_offset == 100
    tracked.update({ME}, 3, 200, 17.5)
    assert tracked.confirm_offset == 200


def test_a_member_that_never_connects_leaves_and_one_that_reconnects_stays() -> None:
    tracked = SyncSet(ME, {ME, 2, 3}, 5, PATIENCE_S, 0.0, 40)
    assert tracked.confirm_offset == 40
    tracked.acked(2, 50, 50, 10.0)
    tracked.disconnected(2, 10.0)
    tracked.disconnected(2, 10.4)
    assert tracked.wanted(10.4) is None
    tracked.acked(2, 50, 60, 10.4)
    assert tracked.wanted(14.0) is None
    assert tracked.wanted(15.0) == {ME, 2}
    assert tracked.wanted(24.0) == {ME, 2}
    assert tracked.wanted(25.0) == {ME}


def test_a_member_whose_connection_stays_closed_leaves_soon() -> None:
    tracked = SyncSet(ME, {ME, 2, 3}, 5, PATIENCE_S, 0.0)
    for slave in (2, 3):
        tracked.acked(slave, 50, 50, 1.0)
    assert not tracked.waits_for_gone
    tracked.disconnected(2, 1.0)
    assert tracked.wanted(1.4) is None and tracked.waits_for_gone
    assert tracked.wanted(1.0 + GONE_S) == {ME, 3}
    tracked.update({ME, 3}, 6, 50, 1.0 + GONE_S)
    assert not tracked.waits_for_gone


def test_one_set_is_proposed_at_a_time() -> None:
    tracked = SyncSet(ME, {ME}, 1, PATIENCE_S, 0.0)
    tracked.propose(frozenset({ME, 2}))
    tracked.propose(frozenset({ME, 2}))
    with pytest.raises(RuntimeError, match="not answered"):
        tracked.propose(frozenset({ME, 3}))
    tracked.refused(1.0)
    assert tracked.proposed is None


def test_a_question_in_doubt_is_asked_again_and_then_fenced() -> None:
    tracked = SyncSet(ME, {ME}, 1, PATIENCE_S, 0.0, 10)
    tracked.acked(2, 10, 10, 1.0)
    joined = frozenset({ME, 2})
    assert tracked.wanted(1.0) == joined
    tracked.propose(joined)
    tracked.unanswered()
    assert tracked.wanted(1.0) == joined
    tracked.propose(joined)
    # The slave is dead now, but the first question may be on its way.
    tracked.refused(1.0)
    tracked.disconnected(2, 1.0)
    assert (tracked.wanted(1.0), tracked.proposed) == ({ME}, joined)
    tracked.advance(20)
    assert tracked.confirm_offset == 10
    # A Controller of RocketMQ does not give the present set a new epoch.
    tracked.propose(frozenset({ME}))
    tracked.refused(1.0)
    assert tracked.wanted(1.0) == joined
    tracked.refused(1.0)
    assert tracked.wanted(1.0) == {ME}
    tracked.update({ME}, 2, 20, 2.0)
    assert (tracked.wanted(2.0), tracked.proposed, tracked.confirm_offset) == (None, None, 20)
    tracked.refused(1.0)
    tracked.unanswered()
    assert tracked.wanted(2.0) is None


def test_a_slave_that_the_controllers_refuse_keeps_no_dead_member_in_the_set() -> None:
    tracked = SyncSet(ME, {ME, 2}, 1, PATIENCE_S, 0.0)
    for slave in (2, 3, 99):
        tracked.acked(slave, 50, 50, 1.0)
    tracked.disconnected(2, 1.0)
    assert tracked.wanted(2.0) == {ME}
    tracked.propose(frozenset({ME}))
    tracked.update({ME}, 2, 50, 2.0)
    # One at a time: the slave that is refused does not keep the other slave out.
    tracked.propose(frozenset({ME, 3}))
    tracked.refused(2.0)
    assert tracked.wanted(2.0) == {ME, 99}
    assert tracked.wanted(2.0 + REFUSED_S) == {ME, 3}
