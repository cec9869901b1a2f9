"""Shares of queues."""

from hypothesis import given
from hypothesis import strategies as st

from sdk.consumer.allocate import averagely


@given(st.integers(0, 50), st.lists(st.text(min_size=1, max_size=3), unique=True, min_size=1, max_size=12))
def test_each_queue_has_one_owner_and_shares_are_equal(count: int, clients: list[str]) -> None:
    queues = list(range(count))
    shares = [averagely(queues, clients, client) for client in clients]
    assert [queue for share in shares for queue in share] == queues
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    assert averagely(queues, clients, "stranger") == []
