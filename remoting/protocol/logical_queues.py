"""Logical queues of RocketMQ's static topics: a fixed number of them, whichever brokers they are on. Pure.

A logical queue is a list of stretches: from some offset on it is a queue of one broker, and from a later offset on a
queue of another broker. The last stretch takes the sends, and its broker leads the logical queue: it serves all
requests for it, and asks the brokers of older stretches for what these have. A stretch begins at an offset of the
logical queue that is not decided yet (-1) while the queue moves. Between two stretches offsets may be missing: RocketMQ
rounds up. Bodies: requests/topics.py.
Neighbours: broker/meta/static_topics.py keeps them, broker/delivery/logical_queues.py translates requests,
sdk/admin/static_topics.py plans.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final

from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.remoting.protocol.requests.topics import LogicQueueMappingItem as Stretch
from skylark.remoting.protocol.requests.topics import TopicQueueMappingDetail

_GLOBAL: Final = "__global__"
#: Names that begin with this are no names of brokers.
LOGICAL_PREFIX: Final = "__syslo__"
#: RocketMQ's name for the leader of a logical queue that no broker leads now.
NO_LEADER: Final = f"{LOGICAL_PREFIX}none__"


def logical_broker_name(scope: str) -> str:
    """The broker name in the `MessageQueue` of a logical queue: it stays the same when the queue moves.

    ``scope``: of the static topic, as its mapping has it.
    """
    return LOGICAL_PREFIX + (scope.removeprefix("__") if scope == _GLOBAL else scope)


def to_logical(stretch: Stretch, offset: int) -> int:
    """The logical offset of a message with ``offset`` in the broker's own queue."""
    return stretch.logic_offset + max(0, offset - stretch.start_offset)


def to_own(stretch: Stretch, offset: int) -> int:
    """The offset in the broker's own queue of the message with a logical ``offset``."""
    return offset - stretch.logic_offset + stretch.start_offset


def own_end(stretch: Stretch, end: int) -> int:
    """Where the stretch ends in the broker's own queue, which ends at ``end``."""
    return min(end, stretch.end_offset) if stretch.end_offset >= 0 else end


@lazy_dataclass(frozen=True, slots=True)
class LogicalQueue:
    """One logical queue, as its leader sees it. It has at least one stretch."""

    queue_id: int
    stretches: Sequence[Stretch]

    @property
    def leader(self) -> Stretch:
        """The last stretch, which takes the sends."""
        return self.stretches[-1]

    @property
    def decided(self) -> Sequence[Stretch]:
        """The stretches whose logical offsets are known: all but perhaps the last."""
        return self.stretches if self.leader.logic_offset >= 0 else self.stretches[:-1]

    def at(self, offset: int) -> Stretch | None:
        """The stretch with a logical ``offset``, or the first one if that begins later; None if none is decided."""
        decided = self.decided
        for stretch in reversed(decided):
            if offset >= stretch.logic_offset:
                return stretch
        return decided[0] if decided else None

    def after(self, stretch: Stretch) -> Stretch | None:
        """The next stretch with a known logical offset."""
        return next((later for earlier, later in pairwise(self.decided) if earlier is stretch), None)


def led_by(detail: TopicQueueMappingDetail) -> dict[int, int]:
    """The logical queues that the broker leads, and which of its own queues they are."""
    return {
        queue_id: stretches[-1].queue_id
        for queue_id, stretches in sorted(detail.hosted_queues.items())
        if stretches and stretches[-1].bname == detail.bname
    }


def check_stretches(stretches: Sequence[Stretch]) -> None:
    """Raise ValueError with the reason when they cannot be the stretches of one logical queue."""
    for stretch in stretches:
        if min(stretch.start_offset, stretch.gen, stretch.queue_id) < 0:
            raise ValueError("a generation, a queue or a start is negative")
        if stretch.logic_offset < (-1 if stretch is stretches[-1] else 0):
            raise ValueError("the logical offset of a stretch that is not the last one is not decided")
        if stretch.end_offset != -1 and stretch.end_offset < stretch.start_offset:
            raise ValueError("a stretch ends before it starts")
    for earlier, later in pairwise(stretches):
        if later.gen <= earlier.gen:
            raise ValueError("the generations of stretches do not rise")
        # An unknown length counts as 0, as in RocketMQ.
        length = max(0, earlier.end_offset - earlier.start_offset)
        if 0 <= later.logic_offset <= earlier.logic_offset + length:
            raise ValueError("the logical offsets of stretches do not rise")


def check_follows(known: Sequence[Stretch], new: Sequence[Stretch], *, same_epoch: bool) -> None:
    """Raise ValueError when ``new`` changes what is fixed of the ``known`` stretches of a logical queue.

    ``same_epoch``: both are of one epoch of the mapping, so their last stretches must be the same.
    Each of the two may lack old stretches that the other has: a stretch is dropped once all of its messages have
    expired.
    """
    if not known:
        return
    if not new:
        raise ValueError("it has no stretches any more")
    by_gen = {stretch.gen: stretch for stretch in known}
    for stretch in new:
        old = by_gen.get(stretch.gen)
        if old is None:
            continue
        if _place(old) != _place(stretch):
            raise ValueError(f"generation {stretch.gen} is another queue")
        if old.logic_offset not in (-1, stretch.logic_offset):
            raise ValueError(f"generation {stretch.gen} begins at another logical offset")
    if same_epoch and (known[-1].gen, _place(known[-1])) != (new[-1].gen, _place(new[-1])):
        raise ValueError("it is led by another broker, and the epoch is the same")


def _place(stretch: Stretch) -> tuple[str, int, int]:
    return stretch.bname, stretch.queue_id, stretch.start_offset


def logical_queues(details: Iterable[TopicQueueMappingDetail]) -> dict[int, LogicalQueue]:
    """All logical queues of a topic, as the leaders see them; of two that both lead one, the newer epoch counts."""
    found: dict[int, LogicalQueue] = {}
    for detail in sorted(details, key=lambda detail: detail.epoch):
        for queue_id in led_by(detail):
            found[queue_id] = LogicalQueue(queue_id, detail.hosted_queues[queue_id])
    return dict(sorted(found.items()))
