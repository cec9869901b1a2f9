"""The lease of a master: it always ends before the Controller's patience does."""

from hypothesis import given
from hypothesis import strategies as st

from broker.replication.autoswitch.lease import Lease

times = st.floats(0, 100)


@given(st.lists(st.tuples(times, times), max_size=10), times)
def test_it_ends_before_the_controller_may_elect_another(beats: list[tuple[float, float]], now: float) -> None:
    """Each beat: when it was sent, and how long it took to the Controller and back."""
    lease, patience_s, heard_at = Lease(3.0), 3.0, -1e9
    assert not lease.holds(now)
    for sent_at, took in sorted(beats, key=sum):
        if sent_at + took <= now:
            lease.answered(sent_at)
            heard_at = max(heard_at, sent_at)
    assert not lease.holds(now) or now < heard_at + patience_s


def test_a_stopped_process_finds_it_over_and_a_late_answer_does_not_bring_it_back() -> None:
    lease = Lease(10.0)
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
