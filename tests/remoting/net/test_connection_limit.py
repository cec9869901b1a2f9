"""How many connections are taken."""

import resource

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoting.net.connection_limit import MAX_BUCKETS, MOST, RateLimit, connection_budget, most_connections


@given(st.integers(2, 2_000_000), st.integers(0, 10_000))
def test_files_and_connections_fit_and_neither_takes_all(descriptors: int, files: int) -> None:
    most = most_connections(descriptors, files)
    assert 1 <= most <= MOST
    assert most + min(files, descriptors // 2) <= descriptors
    assert most >= min(descriptors // 2, MOST)


def test_without_a_limit_of_descriptors() -> None:
    assert most_connections(resource.RLIM_INFINITY, 100) == MOST


def test_the_option_counts_as_far_as_descriptors_reach(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1_024, 1_024))
    assert connection_budget(0, 100).most == 924
    assert connection_budget(50, 100).most == 50
    assert caplog.text == ""
    assert connection_budget(5_000, 100).most == 924
    assert "maxConnections=5000" in caplog.text


def test_a_budget_is_taken_and_given_back() -> None:
    budget = connection_budget(1, 0)
    assert budget.take("a", 0) == ""
    assert budget.take("b", 0) == "connections"
    budget.give("a")
    assert budget.take("b", 0) == ""


def test_one_address_leaves_connections_to_others() -> None:
    budget = connection_budget(10, 0, of_network=2)
    assert [budget.take("a", 0) for _ in range(3)] == ["", "", "connections_of_address"]
    assert budget.take("b", 0) == ""
    budget.give("a")
    assert budget.take("a", 0) == ""
    assert budget.used == 3


def test_new_connections_of_an_address_come_at_a_rate() -> None:
    budget = connection_budget(100, 0, new_a_second=2)
    assert [budget.take("a", 5.0) for _ in range(3)] == ["", "", "connection_rate"]
    assert budget.take("b", 5.0) == ""
    assert budget.take("a", 5.5) == ""
    assert budget.used == 4


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
