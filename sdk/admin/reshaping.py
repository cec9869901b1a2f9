"""The next step of a change of a topic's numbers of queues on its brokers. Pure.

A broker has the queues 0 to ``read`` - 1 of a topic; producers write to the queues below ``write``. Growing: first the
queues can be read, then written, so no message waits unread. Shrinking: first the last queues are written no more; when
producers know that, and all groups have read these queues to their ends, they can be read no more. Nothing is
remembered between steps: each is decided from what brokers say. So a command that was killed goes on where it was when
it is run again, and a step that is repeated changes nothing.
Neighbours: mqadmin/reshape.py asks brokers and takes the steps.
"""

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from skylark.mqcommon.errors import UserError


class Shape(NamedTuple):
    """The numbers of queues of a topic on one broker."""

    write: int
    read: int

    def __str__(self) -> str:
        return f"{self.write} to write, {self.read} to read"


class Tail(NamedTuple):
    """The queues to remove: all from the first queue that the target lacks."""

    #: Messages that groups must still read, or that must still be copied.
    unread: int
    #: Whether producers have had the time to learn that these queues are written no more.
    is_settled: bool
    #: One more than the number of the last queue with unread messages.
    ends_at: int = 0

    @property
    def is_empty(self) -> bool:
        return self.is_settled and not self.unread


class Wait(Enum):
    """Nothing can be done now: the value says what is waited for."""

    FOR_PRODUCERS = "producers that have an old route"
    FOR_GROUPS = "groups that read the queues to their ends"


class SetQueues(NamedTuple):
    """Change the topic on the broker."""

    shape: Shape


Step = SetQueues | Wait


def next_step(now: Shape, target: Shape, tail: Tail) -> Step | None:
    """What to do next on one broker; None when the topic has its shape there, and nothing is left unread."""
    # Open new queues to readers first: messages in a queue that consumers do not know yet would wait.
    if now.read < target.read:
        return SetQueues(Shape(now.write, target.read))
    # When growing, all queues can be read by now. When shrinking, the last queues are still read.
    if now.write != target.write:
        return SetQueues(Shape(target.write, now.read))
    if now.read > target.read:
        if tail.is_empty:
            return SetQueues(target)
        return Wait.FOR_GROUPS if tail.is_settled else Wait.FOR_PRODUCERS
    # A message came just when the queues were closed: open them to readers again.
    return SetQueues(Shape(target.write, tail.ends_at)) if tail.unread else None


def spread(now: Mapping[str, Shape], brokers: Sequence[str], total: int) -> dict[str, Shape]:
    """The shapes with ``total`` queues spread evenly over ``brokers``; the fullest brokers keep one queue more.

    A broker that has the topic keeps at least one queue: delayed messages are delivered into it. UserError when
    there are not enough queues for that.
    """
    holders = [name for name in brokers if name in now]
    if not brokers:
        raise UserError("no broker takes queues of the topic")
    if total < len(holders):
        raise UserError(
            f"{total} queues are too few: {len(holders)} brokers have the topic, and each keeps one at least;"
            " give -w a larger number"
        )
    # The most loaded ones first, so that as few queues as possible move; brokers without a queue get one last.
    order = sorted(brokers, key=lambda name: (-now[name].write if name in now else 1, name))
    share, more = divmod(total, len(order))
    if share == 0:
        order = order[:total] if len(holders) <= total else order
        share, more = 1, 0
    return {name: Shape(n := share + (number < more), n) for number, name in enumerate(order)}


def changes(now: Mapping[str, Shape], target: Mapping[str, Shape]) -> dict[str, tuple[Shape, Shape]]:
    """The brokers whose shape changes: from which, to which."""
    nothing = Shape(0, 0)
    return {name: (now.get(name, nothing), shape) for name, shape in target.items() if now.get(name, nothing) != shape}
