"""Long polling: pulls that found nothing wait here for a message, or for their time to be over.

A held pull is a row, not a task. Rows are looked at when messages arrived in their queue, once for all that came in
one turn of the loop.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from broker.store.consumequeue import ConsumeQueue
from remoting.net.channel import Channel

MAX_HELD = 100_000


@dataclass(slots=True, eq=False)
class HeldPull:
    """A pull that waits. ``retry(last)`` answers when there is something, or when ``last``; whether it answered."""

    channel: Channel
    queue: ConsumeQueue
    deadline: float
    retry: Callable[[bool], bool]


class HeldPulls:
    """All held pulls of a broker."""

    def __init__(self) -> None:
        self._by_queue: dict[ConsumeQueue, list[HeldPull]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def hold(self, pull: HeldPull) -> bool:
        """Keep ``pull``; False when too many wait already."""
        if self._count >= MAX_HELD:
            return False
        self._by_queue.setdefault(pull.queue, []).append(pull)
        pull.queue.waiters += 1
        self._count += 1
        return True

    def arrived(self, queues: Iterable[ConsumeQueue]) -> None:
        """Messages came into ``queues``: answer the pulls that they are for."""
        for queue in queues:
            self._sift(queue, lambda pull: pull.retry(False))

    def expire(self, now: float) -> None:
        """Answer the pulls whose time is over, with what there is."""
        for queue in list(self._by_queue):
            self._sift(queue, lambda pull: pull.deadline <= now and pull.retry(True))

    def drop(self, channel: Channel) -> None:
        """Forget the pulls of a channel that is gone."""
        for queue in list(self._by_queue):
            self._sift(queue, lambda pull: pull.channel is channel)

    def release(self) -> None:
        """Answer all: the broker stops."""
        for queue in list(self._by_queue):
            self._sift(queue, lambda pull: pull.retry(True) or True)

    def _sift(self, queue: ConsumeQueue, over: Callable[[HeldPull], bool]) -> None:
        pulls = self._by_queue.get(queue)
        if pulls is None:
            return
        left = [pull for pull in pulls if not over(pull)]
        self._count -= len(pulls) - len(left)
        queue.waiters = len(left)
        if left:
            self._by_queue[queue] = left
        else:
            del self._by_queue[queue]
