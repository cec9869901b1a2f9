import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqcommon.errors import UserError
from mqcommon.message.queue import MessageQueue
from spark_connector.offsets import LostRange, OffsetRange, QueueBounds
from spark_connector.stream.offsets import (
    StreamOffsets,
    advanced,
    between,
    check_chosen,
    check_cluster,
    rows_in,
    shares,
    waiting,
)

A0, A1, B0 = MessageQueue("t", "a", 0), MessageQueue("t", "a", 1), MessageQueue("t", "b", 0)
names = st.text(st.sampled_from("ab|%-7C"), min_size=1, max_size=5)
offsets = st.dictionaries(st.builds(MessageQueue, names, names, st.integers(0, 99)), st.integers(0, 2**62))


@given(names, offsets, offsets)
def test_a_checkpoint_keeps_them(cluster: str, at: dict[MessageQueue, int], began: dict[MessageQueue, int]) -> None:
    given_offsets = StreamOffsets(cluster, at, began)
    text = json.dumps(given_offsets.to_dict())
    assert StreamOffsets.from_dict(json.loads(text)) == given_offsets
    shuffled = StreamOffsets(cluster, dict(reversed(at.items())), began)
    assert json.dumps(shuffled.to_dict()) == text


def test_they_are_a_flat_dict() -> None:
    found = StreamOffsets("c", {B0: 7, A1: 5}, {A1: 2}).to_dict()
    assert list(found.items()) == [("v", 1), ("cluster", "c"), ("t|a|1", 5), ("t|b|0", 7), ("t|a|1|from", 2)]


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ({"t": {"0": 5}}, "were not written by this source"),
        ({"v": 1, "t|a|0": 5}, "were not written by this source"),
        ({"v": 1, "cluster": "c", "t|a": 5}, "were not written by this source"),
        ({"v": 1, "cluster": "c", "t|a|0": None}, "use another checkpointLocation"),
        ({"v": 2, "cluster": "c"}, "have version 2, this Skylark knows 1; use the Skylark that wrote them"),
    ],
)
def test_those_of_others_are_refused(found: dict[str, object], said: str) -> None:
    with pytest.raises(UserError, match=said):
        StreamOffsets.from_dict(found)


def test_new_queues_begin_at_their_minimum_and_say_so() -> None:
    start = StreamOffsets("c", {A0: 5})
    seen = {A0: QueueBounds(0, 9), B0: QueueBounds(100, 110)}
    assert waiting(start.at, seen) == {A0: 4, B0: 10}
    end = advanced(start, seen, {A0: 1, B0: 3})
    assert end == StreamOffsets("c", {A0: 6, B0: 103}, {B0: 100})
    assert between(start, end) == ([OffsetRange(A0, 5, 6), OffsetRange(B0, 100, 103)], [])
    assert advanced(end, seen, {}) is end


def test_queues_that_are_away_stay_where_they_are() -> None:
    start = StreamOffsets("c", {A0: 5, B0: 7})
    assert advanced(start, {A0: QueueBounds(0, 9)}, {A0: 4}).at == {A0: 9, B0: 7}


def test_deleted_messages_are_in_a_range_and_take_no_share() -> None:
    start, seen = StreamOffsets("c", {A0: 5}), {A0: QueueBounds(50, 60)}
    assert waiting(start.at, seen) == {A0: 10}
    assert between(start, advanced(start, seen, {A0: 2})) == ([OffsetRange(A0, 5, 52)], [])


def test_a_queue_that_became_shorter_is_a_loss() -> None:
    start = StreamOffsets("c", {A0: 5})
    end = advanced(start, {A0: QueueBounds(0, 3)}, {})
    reason = "missing: the queue ends at 3, before the start"
    assert between(start, end) == ([], [LostRange(A0, 3, 5, reason)])


def test_other_clusters_are_refused() -> None:
    start = StreamOffsets("north,south", {A0: 5})
    check_cluster(start, ["south", "west"], [A0, B0])
    check_cluster(start, [], [])
    with pytest.raises(
        UserError, match=r"from cluster north,south, and the NameServers have west; give the NameServers"
    ):
        check_cluster(start, ["west"], [A0])
    with pytest.raises(
        UserError, match=r"it has offsets of brokers a, and the topic is on b; .* another checkpointLoc"
    ):
        check_cluster(start, ["south"], [B0])


def test_queues_that_are_not_chosen_are_refused() -> None:
    with pytest.raises(UserError, match="that the options do not choose: t a 0; choose them, too, or use another"):
        check_chosen(StreamOffsets("c", {A0: 5, B0: 7}), lambda queue: queue == B0)


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
