"""When a message is delivered again, and when it is a dead letter."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.delivery.retry.send_back import next_level
from broker.store.queue.delay_levels import DEFAULT, DelayLevels
from remoting.protocol.requests.groups import CustomizedRetryPolicy, ExponentialRetryPolicy, GroupRetryPolicy

NONE = GroupRetryPolicy()


def test_rocketmqs_default_is_level_three_and_up() -> None:
    assert [next_level(0, times, 16, NONE, DEFAULT) for times in range(18)] == [*range(3, 19), None, None]


@given(st.integers(-3, 30), st.integers(0, 40), st.integers(0, 20), st.integers(1, 25))
def test_a_level_is_always_one_of_the_levels(wanted: int, times: int, most: int, levels: int) -> None:
    found = next_level(wanted, times, most, NONE, DelayLevels(tuple(range(levels))))
    assert (found is None) == (wanted < 0 or times >= most)
    if found is not None:
        assert found == min(wanted or 3 + times, levels)


@given(st.integers(0, 20))
def test_a_message_that_always_fails_ends_as_a_dead_letter(most: int) -> None:
    times = 0
    while next_level(0, times, most, NONE, DEFAULT) is not None:
        times += 1
    assert times == most


@pytest.mark.parametrize(
    ("policy", "levels"),
    [
        (GroupRetryPolicy("EXPONENTIAL", ExponentialRetryPolicy(5_000, 60_000, 2)), [2, 3, 4, 5, 5, 5]),
        (GroupRetryPolicy("EXPONENTIAL", ExponentialRetryPolicy(1, 2**63 - 1, 2**62)), [1, 18, 18, 18, 18, 18]),
        (GroupRetryPolicy("EXPONENTIAL"), [3, 4, 5, 6, 7, 8]),
        # as in Java the third entry is the first that counts
        (
            GroupRetryPolicy("CUSTOMIZED", None, CustomizedRetryPolicy([9, 9, 1_000, 9_000, 8_000_000])),
            [1, 3, *[18] * 4],
        ),
        (GroupRetryPolicy("CUSTOMIZED", None, CustomizedRetryPolicy([10_000])), [3] * 6),
        (GroupRetryPolicy("CUSTOMIZED", None, CustomizedRetryPolicy([])), [3, 4, 5, 6, 7, 8]),
        (GroupRetryPolicy("CUSTOMIZED", None, CustomizedRetryPolicy([-5])), [1] * 6),
    ],
)
def test_a_group_may_have_a_policy_of_its_own(policy: GroupRetryPolicy, levels: list[int]) -> None:
    assert [next_level(0, times, 16, policy, DEFAULT) for times in range(6)] == levels
    assert next_level(7, 0, 16, policy, DEFAULT) == 7, "what the consumer says comes first"
