from hypothesis import given
from hypothesis import strategies as st

from mqcommon.message.queue import MessageQueue
from spark_connector.stream.admission import rows_in, shares

QUEUES = [MessageQueue("t", broker, number) for broker in "ab" for number in range(4)]
counts = st.dictionaries(st.sampled_from(QUEUES), st.integers(0, 10_000))


@given(counts, st.integers(1, 20_000), st.integers(0))
def test_shares_are_the_limit_and_fair(waiting: dict[MessageQueue, int], limit: int, turn: int) -> None:
    taken = shares(waiting, limit, turn)
    total = sum(waiting.values())
    assert sum(taken.values()) == min(limit, total)
    assert all(0 < count <= waiting[queue] for queue, count in taken.items())
    busy = {queue: count for queue, count in waiting.items() if count}
    if limit >= len(busy):
        assert taken.keys() == busy.keys()
        for queue, count in taken.items():
            assert abs(count - busy[queue] * min(limit / total, 1)) <= len(busy) + 1


@given(st.integers(2, 8), st.integers(1, 7), st.integers(0, 1000))
def test_few_are_taken_in_turns(number: int, limit: int, start: int) -> None:
    """With as many triggers as there are queues, each queue has given the same."""
    limit = min(limit, number - 1)
    starts = dict.fromkeys(QUEUES[:number], start)
    for _ in range(number):
        for queue, count in shares(dict.fromkeys(starts, 1000), limit, sum(starts.values())).items():
            starts[queue] += count
    assert set(starts.values()) == {start + limit}


@given(counts, st.integers(1, 10**9), st.floats(1, 10**6))
def test_bytes_are_as_many_rows(waiting: dict[MessageQueue, int], max_bytes: int, mean: float) -> None:
    rows = rows_in(max_bytes, waiting, dict.fromkeys(waiting, mean))
    total = sum(waiting.values())
    assert rows <= max(total, 1)
    assert rows == total or rows == 1 or rows * mean <= max_bytes * 1.000001 < (rows + 2) * mean


def test_large_messages_count_more() -> None:
    small, large = QUEUES[:2]
    assert rows_in(1100, {small: 10, large: 10}, {small: 10, large: 100}) == 20
    assert rows_in(550, {small: 10, large: 10}, {small: 10, large: 100}) == 10
