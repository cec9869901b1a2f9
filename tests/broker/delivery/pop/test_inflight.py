"""Leases: what is left of them, when they end, and how much of the revive log a start needs."""

from hypothesis import given
from hypothesis import strategies as st

from skylark.broker.delivery.pop.inflight import SPARE_ROWS, Horizon, Inflight, PendingCommits
from skylark.broker.delivery.pop.records import RELEASED, Ack, Key, PopCheckpoint, Queue
from skylark.broker.store.clock_steps import ClockStep

QUEUE = Queue("g", "T", 0)


def checkpoint(start: int, pop_ms: int, *, count: int = 2, is_ordered: bool = False) -> PopCheckpoint:
    offsets = range(start, start + count)
    return PopCheckpoint(Key(QUEUE, start, pop_ms), 1_000, offsets, start + count, is_ordered=is_ordered)


def test_a_lease_ends_with_its_last_message() -> None:
    inflight, one = Inflight(), checkpoint(0, 10)
    inflight.apply(one, 0)
    assert inflight.positions[QUEUE] == 2
    assert inflight.hidden(one.key, [0, 1, 2]) == [0, 1]
    inflight.apply(Ack(one.key, [1]), 1)
    assert inflight.hidden(one.key, [0, 1]) == [0]
    assert inflight.needed_from(2) == 0
    inflight.apply(Ack(one.key, [0]), 2)
    assert (len(inflight), inflight.needed_from(3), inflight.due(10_000)) == (0, 3, None)
    inflight.apply(Ack(one.key, [0]), 3)


def test_leases_are_due_in_their_order_and_once() -> None:
    inflight = Inflight()
    for start, pop_ms in ((0, 30), (2, 10), (4, 20)):
        inflight.apply(checkpoint(start, pop_ms), start)
    assert inflight.due(1_009) is None
    due = [inflight.due(1_030) for _ in range(4)]
    assert [lease.checkpoint.key.start for lease in due if lease is not None] == [2, 4, 0]
    assert due[3] is None
    assert due[0] is not None
    inflight.put_off(due[0], 2_000)
    assert inflight.due(1_999) is None
    assert inflight.due(2_000) is due[0]


def test_a_renewed_lease_moves_to_the_end_of_the_log_and_keeps_what_is_left() -> None:
    inflight, one = Inflight(), checkpoint(0, 10)
    inflight.apply(one, 0)
    inflight.apply(Ack(one.key, [0]), 1)
    inflight.apply(checkpoint(2, 20), 2)
    (first, _) = inflight.oldest()
    inflight.apply(first.renewed(), 3)
    assert inflight.needed_from(4) == 2
    assert inflight.hidden(one.key, [0, 1]) == [1]
    assert inflight.positions[QUEUE] == 4, "a renewal does not set the group back"


def test_a_message_with_a_time_of_its_own_leaves_its_lease() -> None:
    inflight, one = Inflight(), checkpoint(0, 10)
    inflight.apply(one, 0)
    own = PopCheckpoint(Key(QUEUE, 1, 50), 9_000, range(1, 2), replaces=one.key)
    inflight.apply(own, 1)
    assert inflight.hidden(one.key, [0, 1]) == [0]
    assert inflight.hidden(own.key, [1]) == [1]


def test_a_released_group_has_no_position_and_keeps_its_leases() -> None:
    inflight, one = Inflight(), checkpoint(0, 10)
    inflight.apply(one, 0)
    inflight.apply(PopCheckpoint(Key(QUEUE, RELEASED, 10), 0, (), RELEASED), 1)
    assert inflight.positions == {}
    assert inflight.hidden(one.key, [0, 1]) == [0, 1]


def test_in_order_a_queue_has_one_lease() -> None:
    inflight = Inflight()
    inflight.apply(checkpoint(0, 10, is_ordered=True), 0)
    again = checkpoint(0, 2_000, is_ordered=True)
    inflight.apply(again, 1)
    assert len(inflight) == 1
    assert inflight.ordered[QUEUE].checkpoint is again
    inflight.apply(Ack(again.key, [0, 1]), 2)
    assert inflight.ordered == {}


def test_an_attempt_is_known_as_long_as_it_has_messages() -> None:
    inflight, one = Inflight(), checkpoint(0, 10, is_ordered=True)
    inflight.apply(one, 0)
    inflight.attempts[QUEUE] = "attempt"
    (lease,) = inflight.oldest()
    inflight.apply(lease.renewed(), 1)
    inflight.apply(Ack(one.key, [0]), 2)
    assert inflight.attempts == {QUEUE: "attempt"}
    inflight.apply(Ack(one.key, [1]), 3)
    assert inflight.attempts == {}


def test_a_deleted_topic_takes_its_leases_and_positions_with_it() -> None:
    inflight, commits = Inflight(), PendingCommits()
    for number, topic in enumerate(("T", "U")):
        queue = Queue("g", topic, 0)
        inflight.apply(PopCheckpoint(Key(queue, 0, 10), 1_000, range(2), 2, is_ordered=True), number)
        inflight.attempts[queue] = "attempt"
        commits.moved(queue, 2, 100)
    inflight.drop_topic("T")
    commits.drop_topic("T")
    kept = Queue("g", "U", 0)
    assert [lease.checkpoint.key.queue for lease in inflight.oldest()] == [kept]
    assert ([*inflight.ordered], inflight.attempts, inflight.positions) == ([kept], {kept: "attempt"}, {kept: 2})
    assert commits.safe(100) == {kept: 2}


def test_ended_leases_take_no_memory_until_their_time_comes() -> None:
    inflight = Inflight()
    for number in range(SPARE_ROWS + 10):
        one = checkpoint(2 * number, 10)
        inflight.apply(one, number)
        inflight.apply(Ack(one.key, [2 * number, 2 * number + 1]), number)
    assert len(inflight._due) <= SPARE_ROWS


# --- what may be committed

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


def test_a_lease_that_is_written_again_keeps_what_the_clock_was_set_by() -> None:
    inflight, one = Inflight(), checkpoint(0, 10_000)
    inflight.apply(one, 0)
    inflight.clock_moved(ClockStep(1, -8_000, seen_ms=2_500, within_ms=500, log_end_before=0, log_end=0))
    (lease,) = inflight.oldest()
    assert lease.due_ms == inflight.next_due_ms == 3_000
    inflight.apply(lease.renewed(), 1)
    (again,) = inflight.oldest()
    assert again is not lease and again.due_ms == 3_000
    assert inflight.due(2_999) is None and inflight.due(3_000) is again


@given(st.integers(0, 50), st.integers(1, 6), st.integers(0, 63), st.lists(st.integers(0, 60), max_size=6))
def test_offsets_of_neighbours_are_found_by_their_distance_as_by_a_search(
    start: int, count: int, acked: int, offsets: list[int]
) -> None:
    """``offsets`` come from any client."""
    known = range(start, start + count)
    left = [offset for offset in known if not acked >> (offset - start) & 1]
    for listed in (known, tuple(known)):
        inflight, key = Inflight(), Key(QUEUE, start, 1_000)
        inflight.apply(PopCheckpoint(key, 60_000, listed, None, acked=acked), 0)
        assert inflight.hidden(key, [*offsets, 2**62]) == inflight.hidden(key, offsets)
        assert inflight.hidden(key, offsets) == [offset for offset in offsets if offset in left]
        inflight.apply(Ack(key, offsets), 1)
        lease = inflight.of(key)
        assert (lease.left if lease else []) == [offset for offset in left if offset not in offsets]
