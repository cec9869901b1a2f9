"""Which offset a group gets when it is moved to a time without the broker's help. Pure."""

from dataclasses import dataclass

from mqcommon.message.queue import MessageQueue
from remoting.protocol.requests.groups import ConsumeOffset


@dataclass(frozen=True, slots=True)
class Rollback:
    """One queue: where it ends, where the group was, the offset for the time, and the offset that the group got."""

    queue: MessageQueue
    broker_offset: int
    consumer_offset: int
    timestamp_offset: int
    rollback_offset: int


def rollback_of(mq: MessageQueue, progress: ConsumeOffset, by_time: int, *, force: bool) -> Rollback:
    """Without ``force`` a group is only moved back."""
    by_time = max(by_time, 0)
    moves = force or by_time <= progress.consumer_offset
    return Rollback(
        mq, progress.broker_offset, progress.consumer_offset, by_time, by_time if moves else progress.consumer_offset
    )
