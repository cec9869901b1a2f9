"""Queues that the broker assigns to members."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.delivery.queue_assignment import STRATEGIES, allocate, allocate_for_pop
from mqcommon.message.queue import MessageQueue

QUEUES = st.lists(
    st.builds(MessageQueue, st.just("T"), st.sampled_from(["a", "b"]), st.integers(0, 20)), unique=True, max_size=30
)
MEMBERS = st.lists(st.text("abc", min_size=1, max_size=3), unique=True, min_size=1, max_size=12)


@given(st.sampled_from(sorted(STRATEGIES)), QUEUES, MEMBERS)
def test_each_queue_has_one_owner_and_shares_are_equal(
    strategy: str, queues: list[MessageQueue], members: list[str]
) -> None:
    shares = {member: allocate(strategy, queues, reversed(members), member) for member in members}
    assert sorted(queue for share in shares.values() for queue in share) == sorted(queues)
    sizes = {len(share) for share in shares.values()}
    assert max(sizes) - min(sizes) <= 1
    assert shares == {member: allocate(strategy, queues[::-1], members, member) for member in members}


@pytest.mark.parametrize(
    ("strategy", "member", "ids"),
    [
        ("AVG", "a", [0, 1, 2]), ("AVG", "b", [3, 4, 5]), ("AVG", "c", [6, 7]),
        ("AVG_BY_CIRCLE", "a", [0, 3, 6]), ("AVG_BY_CIRCLE", "c", [2, 5]), ("AVG", "nobody", []),
    ],
)  # fmt: skip
def test_as_rocketmq_allocates(strategy: str, member: str, ids: list[int]) -> None:
    queues = [MessageQueue("T", "broker-a", number) for number in range(8)]
    assert [queue.queue_id for queue in allocate(strategy, queues, "cab", member)] == ids


@pytest.mark.parametrize(
    ("members", "share", "ids"),
    [
        ("abcd", 0, [-1]), ("abcd", -1, [-1]), ("abcd", 3, [-1]), ("abcd", 1, [4, 5, 6, 7]),
        ("abcd", 2, [4, 5, 6, 7, 0, 1]), ("abcdefghijkl", 2, [2]), ("abxy", 1, []),
    ],
)  # fmt: skip
def test_as_rocketmq_allocates_for_pops(members: str, share: int, ids: list[int]) -> None:
    queues = [MessageQueue("T", "broker-a", number) for number in range(8)]
    assert [queue.queue_id for queue in allocate_for_pop("AVG", queues, members, "c", share)] == ids


def test_a_pop_from_all_queues_names_each_broker_once() -> None:
    queues = [MessageQueue("T", broker, number) for broker in "ab" for number in range(3)]
    assert allocate_for_pop("AVG", queues, ["x"], "x", 0) == [MessageQueue("T", "a", -1), MessageQueue("T", "b", -1)]
