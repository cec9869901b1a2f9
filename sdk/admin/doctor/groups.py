"""Checks of consumer groups: they consume what is sent. Pure."""

from collections.abc import Iterator

from remoting.protocol.group_subscriptions import differences
from sdk.admin.doctor.facts import Facts
from sdk.admin.doctor.findings import FAIL, INFO, OK, WARN, Finding

# A group whose oldest waiting message is older than this is warned about.
MAX_DELAY_MS = 10 * 60_000


def lags(facts: Facts) -> Iterator[Finding]:
    """No group has much left to consume."""
    late = 0
    for one in facts.groups:
        if one.lag <= facts.max_lag and one.delay_ms <= MAX_DELAY_MS:
            continue
        late += 1
        where = f"{one.group} {one.topic}"
        text = f"{one.lag:,} messages wait, the queue that lags most by {one.delay_ms / 1000:,.0f} s"
        if one.members:
            remedy = "start more consumers, or look at what its handlers wait for (mqadmin consumerProgress -g)"
            yield Finding(WARN, where, text, remedy)
        else:
            remedy = "start its consumers, or delete the group with mqadmin deleteSubGroup if it is not needed"
            yield Finding(WARN, where, f"{text}, and no consumer is connected", remedy)
    looked_at = len({one.group for one in facts.groups})
    if not late and looked_at:
        yield Finding(OK, "groups", f"none of {looked_at} groups has more than {facts.max_lag:,} messages to consume")
    if facts.groups_left_out:
        yield Finding(
            INFO, "groups", f"{facts.groups_left_out} more were not looked at", "see mqadmin consumerProgress"
        )


def subscriptions(facts: Facts) -> Iterator[Finding]:
    """All members of a group subscribe to the same: each gets only messages of the queues that are its own."""
    divided = 0
    for group, members in sorted(facts.wanted.items()):
        if text := differences(members):
            divided += 1
            yield Finding(
                FAIL, group, f"its members have different subscriptions, so messages reach nobody: {text}",
                "give all members the same subscriptions, or each kind of consumer a group of its own",
            )  # fmt: skip
    if facts.wanted and not divided:
        yield Finding(OK, "groups", f"the members of each of {len(facts.wanted)} groups have the same subscriptions")


def dead_letters(facts: Facts) -> Iterator[Finding]:
    """Messages that consumers failed on for good."""
    for group, count in sorted(facts.dead_letters.items()):
        if count:
            remedy = f"read %DLQ%{group} with mqadmin printMsg, and send again what is needed"
            yield Finding(INFO, group, f"{count:,} dead letters", remedy)
