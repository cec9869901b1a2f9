"""When a message that a consumer could not handle is delivered again. Pure.

RocketMQ's rules: after ``max_times`` further deliveries, or with a negative delay level, it is a dead letter.
A positive level is taken as it is. With level 0 the broker chooses: 3 + the number of further deliveries so far, that
is 10s, 30s, 1m, 2m ... 2h. A group with a retry policy of its own gets the shortest level that is not shorter than the
policy's delay. (RocketMQ uses these policies for clients of its proxy only.)
"""

from broker.store.queue.delay_levels import DelayLevels
from remoting.protocol.requests.groups import GroupRetryPolicy

FIRST_LEVEL = 3
# Java's limit for the exponent, so that the delay stays a number of 64 bits.
_MAX_EXPONENT = 32


def next_level(
    delay_level: int, reconsume_times: int, max_times: int, policy: GroupRetryPolicy, levels: DelayLevels
) -> int | None:
    """The level in which the message waits; None for a dead letter.

    ``reconsume_times``: how many times it was delivered again so far.
    """
    if delay_level < 0 or reconsume_times >= max_times:
        return None
    if delay_level > 0:
        return min(delay_level, levels.highest)
    delay_ms = policy_delay_ms(policy, reconsume_times)
    if delay_ms is None:
        return min(FIRST_LEVEL + reconsume_times, levels.highest)
    return levels.level_of(delay_ms)


def policy_delay_ms(policy: GroupRetryPolicy, reconsume_times: int) -> int | None:
    """The delay that the group's own policy wants; None when it has none."""
    if policy.type == "EXPONENTIAL":
        exponential = policy.exponential_retry_policy
        if exponential is None:
            return None
        exponent = min(max(reconsume_times, 0), _MAX_EXPONENT)
        grown: int = exponential.initial * exponential.multiplier**exponent
        return max(min(exponential.max, grown), 0)
    if policy.customized_retry_policy is None or not policy.customized_retry_policy.next:
        return None
    delays = policy.customized_retry_policy.next
    # As in Java, where the list begins with two delays that only its proxy uses.
    return max(delays[min(max(reconsume_times, 0) + 2, len(delays) - 1)], 0)
