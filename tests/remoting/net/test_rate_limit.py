"""Token buckets."""

from hypothesis import given
from hypothesis import strategies as st

from remoting.net.rate_limit import MAX_BUCKETS, RateLimit


@given(st.integers(1, 50), st.lists(st.floats(0, 0.5), max_size=200))
def test_never_more_than_the_rate_and_one_burst(rate: int, gaps: list[float]) -> None:
    limit, now, allowed = RateLimit(rate), 100.0, 0
    for gap in gaps:
        now += gap
        allowed += limit.take("a", now)
    assert allowed <= rate + rate * (now - 100.0) + 1e-6
    assert allowed >= min(len(gaps), rate)


def test_who_stays_below_the_rate_is_never_refused() -> None:
    limit = RateLimit(10)
    assert all(limit.take("a", 100 + n / 10 + n / 1e6) for n in range(1_000))


def test_addresses_do_not_share_a_bucket_and_their_number_is_bounded() -> None:
    limit = RateLimit(1)
    for number in range(3 * MAX_BUCKETS):
        assert limit.take(str(number), 1.0)
        assert len(limit._buckets) <= MAX_BUCKETS
    assert not limit.take(str(3 * MAX_BUCKETS - 1), 1.0)
