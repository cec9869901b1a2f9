from hypothesis import given
from hypothesis import strategies as st

from sdk.consumer.assigned import share_out


@given(st.lists(st.integers(0, 50), max_size=10), st.integers(1, 200))
def test_as_many_as_asked_and_as_equal_as_possible(waiting: list[int], most: int) -> None:
    shares = share_out(waiting, most)
    assert sum(shares) == min(most, sum(waiting))
    assert all(0 <= share <= count for share, count in zip(shares, waiting, strict=True))
    short = [share for share, count in zip(shares, waiting, strict=True) if share < count]
    # Whoever could have got more has at most one less than anybody.
    assert not short or max(shares) - min(short) <= 1


def test_the_first_ones_get_the_rest() -> None:
    assert share_out([9, 9, 9], 5) == [2, 2, 1]
    assert share_out([9, 9, 9], 2) == [1, 1, 0]
    assert share_out([1, 9, 0], 100) == [1, 9, 0]
    assert share_out([], 5) == []
