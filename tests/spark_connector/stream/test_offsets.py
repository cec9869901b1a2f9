import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.mqcommon.errors import UserError
from skylark.mqcommon.message.queue import MessageQueue
from skylark.spark_connector.offsets import LostRange, OffsetRange, QueueBounds
from skylark.spark_connector.stream.offsets import (
    StreamOffsets,
    advanced,
    between,
    check_chosen,
    check_cluster,
    made_again,
    rows_in,
    shares,
    waiting,
)

A0, A1, B0 = MessageQueue("t", "a", 0), MessageQueue("t", "a", 1), MessageQueue("t", "b", 0)
names = st.text(st.sampled_from("ab|%-7C"), min_size=1, max_size=5)
offsets = st.dictionaries(st.builds(MessageQueue, names, names, st.integers(0, 99)), st.integers(0, 2**62))


@given(
    names, offsets, offsets, st.dictionaries(st.tuples(names, st.text("@ab|%")), st.integers(0, 2**62)),
    st.integers(0, 99),
)  # fmt: skip
def test_a_checkpoint_keeps_them(
    cluster: str,
    at: dict[MessageQueue, int],
    began: dict[MessageQueue, int],
    stamps: dict[tuple[str, str], int],
    tasks: int,
) -> None:
    given_offsets = StreamOffsets(cluster, at, began, stamps=stamps, tasks=tasks)
    text = json.dumps(given_offsets.to_dict())
    assert StreamOffsets.from_dict(json.loads(text)) == given_offsets
    shuffled = StreamOffsets(
        cluster, dict(reversed(at.items())), began, stamps=dict(reversed(stamps.items())), tasks=tasks
    )
    assert json.dumps(shuffled.to_dict()) == text


def test_they_are_a_flat_dict() -> None:
    found = StreamOffsets("c", {B0: 7, A1: 5}, {A1: 2}).to_dict()
    assert list(found.items()) == [("v", 1), ("cluster", "c"), ("t|a|1", 5), ("t|b|0", 7), ("t|a|1|from", 2)]
    found = StreamOffsets("c", {A0: 5}, stamps={("t", "a"): 99}).to_dict()
    assert list(found.items()) == [("v", 1), ("cluster", "c"), ("t|a|0", 5), ("stamp@t@a", 99)]
    found = StreamOffsets("c", {A0: 5}, tasks=4).to_dict()
    assert list(found.items()) == [("v", 1), ("cluster", "c"), ("tasks", 4), ("t|a|0", 5)]


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


STAMPS, OTHERS = {("t", "a"): 10, ("t", "b"): 11}, {("t", "a"): 20, ("t", "b"): 11}


def test_a_topic_that_was_made_again_is_begun_anew() -> None:
    start = StreamOffsets("c", {A0: 5, A1: 0, B0: 7}, stamps=STAMPS)
    seen = {A0: QueueBounds(0, 9), A1: QueueBounds(0, 3), B0: QueueBounds(0, 8)}
    again = made_again(start, seen, OTHERS)
    assert again == [A0, A1]
    end = advanced(start, seen, {A0: 2, A1: 3, B0: 1}, OTHERS, again)
    assert end == StreamOffsets("c", {A0: 2, A1: 3, B0: 8}, {A0: 0, A1: 0}, stamps=OTHERS)
    ranges, lost = between(start, end)
    assert ranges == [OffsetRange(A0, 0, 2, 20), OffsetRange(A1, 0, 3, 20), OffsetRange(B0, 7, 8, 11)]
    assert [one[:3] for one in lost] == [(A0, 5, 5), (A1, 0, 0)]
    assert lost[0].reason == "the topic was deleted and made again: what it has now is read from offset 0 on"
    # The next one is as any other.
    after = advanced(end, seen, {A0: 7}, OTHERS, made_again(end, seen, OTHERS))
    assert between(end, after) == ([OffsetRange(A0, 2, 9, 20)], [])


def test_a_topic_that_was_made_again_and_is_empty_moves_the_checkpoint() -> None:
    start, seen = StreamOffsets("c", {A0: 5}, stamps=STAMPS), {A0: QueueBounds(0, 0)}
    end = advanced(start, seen, {}, OTHERS, made_again(start, seen, OTHERS))
    assert (end.at, end.stamp_of(A0)) == ({A0: 0}, 20)
    assert len(between(start, end)[1]) == 1
    assert advanced(end, seen, {}, OTHERS, made_again(end, seen, OTHERS)) is end


@pytest.mark.parametrize(("before", "now"), [({}, OTHERS), (STAMPS, {}), ({}, {}), (STAMPS, STAMPS)])
def test_a_stamp_that_is_new_or_missing_is_no_change(
    before: dict[tuple[str, str], int], now: dict[tuple[str, str], int]
) -> None:
    start, seen = StreamOffsets("c", {A0: 5}, stamps=before), {A0: QueueBounds(0, 9)}
    assert made_again(start, seen, now) == []
    end = advanced(start, seen, {A0: 1}, now)
    assert between(start, end) == ([OffsetRange(A0, 5, 6, end.stamp_of(A0))], [])
    assert end.stamp_of(A0) == (now or before).get(("t", "a"))


def test_without_stamps_the_end_of_a_queue_tells() -> None:
    start = StreamOffsets("c", {A0: 5, A1: 5, B0: 105})
    seen = {A0: QueueBounds(0, 3), A1: QueueBounds(0, 5), B0: QueueBounds(100, 103)}
    again = made_again(start, seen, {})
    assert again == [A0]
    ranges, lost = between(start, advanced(start, seen, {A0: 3}, {}, again))
    assert ranges == [OffsetRange(A0, 0, 3)]
    # A queue without its first message was not made anew: it has lost its end.
    assert [one[:3] for one in lost] == [(A0, 5, 5), (B0, 103, 105)]
    # So has one whose topic is known to be the same.
    same = StreamOffsets("c", {A0: 5}, stamps=STAMPS)
    assert made_again(same, {A0: QueueBounds(0, 3)}, STAMPS) == []


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
