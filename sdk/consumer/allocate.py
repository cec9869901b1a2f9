"""Which member of a group consumes which queues of a topic. Pure.

Every member computes its share alone from the same queues and the same client ids, so all members must use one
strategy. Members with RocketMQ's Java client must get the same result: the strategies are byte-compatible with its
strategies.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from hashlib import md5

from skylark.mqcommon.message.queue import MessageQueue

#: (queues of one topic, client ids of the group, this client) → the queues of this client. Both lists are sorted.
Strategy = Callable[[Sequence[MessageQueue], Sequence[str], str], Sequence[MessageQueue]]

# RocketMQ's number of points of each member on the ring.
VIRTUAL_NODES = 10


def averagely(queues: Sequence[MessageQueue], clients: Sequence[str], client: str) -> list[MessageQueue]:
    """The queues of ``client``, one of the members ``clients``: a run of consecutive queues for each member.

    The first members have one more when the queues do not divide.
    """
    if client not in clients:
        return []
    share, rest = divmod(len(queues), len(clients))
    number = clients.index(client)
    start = number * share + min(number, rest)
    return list(queues[start : start + share + (number < rest)])


def circle(queues: Sequence[MessageQueue], clients: Sequence[str], client: str) -> list[MessageQueue]:
    """The queues of ``client``, one of the members ``clients``: each of n members has every n-th queue."""
    if client not in clients:
        return []
    return list(queues[clients.index(client) :: len(clients)])


def consistent_hash(queues: Sequence[MessageQueue], clients: Sequence[str], client: str) -> list[MessageQueue]:
    """The queues of ``client``, one of the members ``clients``, by consistent hashing.

    Members and queues are points on a ring; a queue belongs to the next member.
    When a member comes, queues move only to it; when one leaves, only its queues move. Shares are less equal.
    """
    if client not in clients:
        return []
    # When two members share a point, RocketMQ keeps the member that was added last.
    ring = {_point(f"{member}-{number}"): member for member in clients for number in range(VIRTUAL_NODES)}
    points = sorted(ring)
    return [queue for queue in queues if ring[points[_next(points, _point(_text(queue)))]] == client]


def fixed(own: Sequence[MessageQueue]) -> Strategy:
    """A strategy that always gives this member the queues ``own``, whoever else is in the group."""

    def allocate(queues: Sequence[MessageQueue], clients: Sequence[str], client: str) -> list[MessageQueue]:
        return [queue for queue in queues if queue in own]

    return allocate


STRATEGIES: dict[str, Strategy] = {"averagely": averagely, "circle": circle, "consistent_hash": consistent_hash}


def _point(text: str) -> int:
    return int.from_bytes(md5(text.encode(), usedforsecurity=False).digest()[:4], "big")


def _next(points: Sequence[int], point: int) -> int:
    at = bisect_left(points, point)
    return at if at < len(points) else 0


def _text(queue: MessageQueue) -> str:
    """The queue as Java's `toString` writes it, which is what RocketMQ hashes."""
    return f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, queueId={queue.queue_id}]"
