"""What a broker does after news of the Controller, in any order."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.broker.replication.autoswitch.decisions import MAX_EPOCH_STEP, Decisions, MasterLease, News, Stand

# The masters of the epochs 1 to 6.
masters = st.lists(st.integers(1, 3), min_size=6, max_size=6)
# News of an epoch, also late ones and of no master (-epoch), or the end of the lease (0).
events = st.lists(st.integers(-6, 6), max_size=30)


@pytest.mark.parametrize("master", [1, 2, None])
def test_news_of_an_absurd_epoch_change_nothing(master: int | None) -> None:
    machine = Decisions(1)
    machine.take_news(News(None, "", 0))
    machine.take_news(News(2, "two", 1))
    before = machine.now
    for epoch in (2 + MAX_EPOCH_STEP, (1 << 31) - 1):
        with pytest.raises(RuntimeError, match=f"no elections lead from epoch 1, .* to {epoch}"):
            machine.take_news(News(master, "one", epoch))
        assert machine.now == before
    # The honest ones are heard on.
    decision = machine.take_news(News(1, "one", 2))
    assert decision is not None and decision.stand is Stand.LEADING


@given(masters, events)
def test_whatever_comes_in_whatever_order(elected: list[int], history: list[int]) -> None:
    brokers = {number: Decisions(number) for number in (1, 2, 3)}
    begun: list[tuple[int, int]] = []
    for number, machine in brokers.items():
        machine.take_news(News(None, "", 0))
        newest = 0
        for event in history:
            before = machine.now
            if not event:
                decision = machine.lease_ended()
            else:
                epoch = abs(event)
                news = News(elected[epoch - 1] if event > 0 else None, f"addr {elected[epoch - 1]}", epoch)
                decision = machine.take_news(news)
                newest = max(newest, epoch) if event > 0 else newest
            assert (machine.now != before) is (decision is not None)
            assert machine.now.epoch >= before.epoch
            if decision is not None and decision.begins:
                begun.append((decision.epoch, number))
            if machine.now.stand is not Stand.IDLE:
                assert machine.now.epoch == newest
                assert (machine.now.stand is Stand.LEADING) is (elected[newest - 1] == number)
            assert machine.asks_for_election is (machine.now.stand is Stand.IDLE)
    assert len({epoch for epoch, _ in begun}) == len(begun)


def test_the_recorded_session_of_broker_1() -> None:
    first = Decisions(1)
    assert first.take_news(News(None, "", 0)) is None
    lead = first.take_news(News(1, "127.0.0.1:44011", 1))
    assert lead is not None and lead.stand is Stand.LEADING and lead.begins
    assert first.take_news(News(1, "127.0.0.1:44011", 1)) is None
    # It was killed, and starts again with the log of epoch 1.
    back = Decisions(1, 1)
    follow = back.take_news(News(2, "127.0.0.1:44021", 2))
    assert follow is not None and (follow.stand, follow.master_addr) == (Stand.FOLLOWING, "127.0.0.1:44021")
    designated = back.take_news(News(1, "127.0.0.1:44011", 3))
    assert designated is not None and designated.begins and designated.epoch == 3


def test_a_master_cut_off_leads_again_in_the_same_epoch_only_if_it_is_still_named() -> None:
    machine = Decisions(1)
    machine.take_news(News(None, "", 3))
    machine.take_news(News(1, "a", 4))
    idle = machine.lease_ended()
    assert idle is not None and idle.stand is Stand.IDLE and machine.asks_for_election
    again = machine.take_news(News(1, "a", 4))
    assert again is not None and again.stand is Stand.LEADING and not again.begins
    machine.lease_ended()
    other = machine.take_news(News(2, "b", 5))
    assert other is not None and other.stand is Stand.FOLLOWING
    assert machine.take_news(News(1, "a", 4)) is None
    assert machine.lease_ended() is None


@pytest.mark.parametrize("log_epoch", [3, 4])
def test_a_restarted_master_is_silent_until_it_is_deposed_and_leads_in_a_new_epoch_only(log_epoch: int) -> None:
    """A crash may have taken all bytes of the epoch, and the epoch with them."""
    machine = Decisions(1, log_epoch)
    assert machine.must_be_silent
    assert machine.take_news(News(1, "a", 4)) is None
    assert machine.must_be_silent and machine.now.stand is Stand.IDLE
    machine.take_news(News(None, "", 4))
    assert not machine.must_be_silent
    # A late answer.
    assert machine.take_news(News(1, "a", 4)) is None
    assert machine.now.stand is Stand.IDLE and not machine.must_be_silent
    lead = machine.take_news(News(1, "a", 5))
    assert lead is not None and lead.stand is Stand.LEADING and lead.begins and not machine.must_be_silent


def test_a_restarted_slave_follows_the_master_of_the_epoch_that_it_knows() -> None:
    machine = Decisions(1, 4)
    follow = machine.take_news(News(2, "b", 4))
    assert follow is not None and follow.stand is Stand.FOLLOWING and not machine.must_be_silent


def test_a_slave_copies_on_without_a_master_and_follows_it_to_a_new_address() -> None:
    machine = Decisions(2)
    machine.take_news(News(1, "a", 1))
    assert machine.take_news(News(None, "", 1)) is None
    moved = machine.take_news(News(1, "b", 1))
    assert moved is not None and moved.master_addr == "b"


def test_two_masters_of_one_epoch_are_a_mistake_in_the_configuration() -> None:
    machine = Decisions(3)
    machine.take_news(News(1, "a", 1))
    with pytest.raises(RuntimeError, match="controllerAddr"):
        machine.take_news(News(2, "b", 1))


times = st.floats(0, 100)


@given(st.lists(st.tuples(times, times), max_size=10), times)
def test_a_lease_ends_before_the_controllers_may_elect_another_master(
    beats: list[tuple[float, float]], now: float
) -> None:
    """Each beat: when it was sent, and how long it took to the Controller and back."""
    lease, patience_s, heard_at = MasterLease(3.0), 3.0, -1e9
    assert not lease.holds(now)
    for sent_at, took in sorted(beats, key=sum):
        if sent_at + took <= now:
            lease.answered(sent_at)
            heard_at = max(heard_at, sent_at)
    assert not lease.holds(now) or now < heard_at + patience_s


def test_a_stopped_process_finds_it_over_and_a_late_answer_does_not_bring_it_back() -> None:
    lease = MasterLease(10.0)
    lease.answered(100.0)
    assert lease.holds(107.9)
    assert not lease.holds(108.0)
    assert lease.until == 108.0
    lease.answered(99.0)
    assert lease.until == 108.0
    lease.end(101.0)
    lease.answered(100.5)
    assert not lease.holds(101.0)
    lease.answered(102.0)
    assert lease.holds(102.0)
