"""Sizes of messages, by topic."""

from hypothesis import given
from hypothesis import strategies as st

from broker.observe.sizes import BOUNDS, SizedStats
from tests.support.clock import ManualClock


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 50), st.integers(1, 1 << 25))))
def test_sizes_are_counted_where_prometheus_wants_them(puts: list[tuple[str, int, int]]) -> None:
    stats = SizedStats(ManualClock())
    for topic, count, size in puts:
        stats.put(topic, count, size * count)
    assert stats.puts.nums == sum(count for _, count, _ in puts)
    for topic, times in stats.sizes():
        mine = [(count, size) for name, count, size in puts if name == topic]
        below = 0
        for bound, counted in zip((*BOUNDS, float("inf")), times.counts, strict=True):
            below += counted
            assert below == sum(count for count, size in mine if size <= bound)
        assert times.total == sum(count * size for count, size in mine)


def test_a_topic_that_was_deleted_begins_again() -> None:
    stats = SizedStats(ManualClock())
    stats.put("a", 1, 100)
    stats.drop_topic("a")
    assert stats.sizes() == []
    stats.put("a", 1, 100)
    assert sum(stats.sizes()[0][1].counts) == 1
