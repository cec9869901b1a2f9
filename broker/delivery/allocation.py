"""Which queues a member of a group gets when the broker assigns them (400). Pure.

Every member gets the same answer for the same queues and members, whoever asks first: queues and members are sorted
here. Names of strategies are RocketMQ's.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from mqcommon.message.queue import MessageQueue
from remoting.protocol.requests.pops import ANY_QUEUE

#: Called with sorted queues, the number of members and the place of one of them.
_Strategy = Callable[[Sequence[MessageQueue], int, int], Sequence[MessageQueue]]


def _averagely(queues: Sequence[MessageQueue], count: int, place: int) -> Sequence[MessageQueue]:
    """Neighbouring queues; the first members get one more when the numbers do not divide."""
    size, more = divmod(len(queues), count)
    start = place * size + min(place, more)
    return queues[start : start + size + (place < more)]


def _by_circle(queues: Sequence[MessageQueue], count: int, place: int) -> Sequence[MessageQueue]:
    """Queues in turn, as cards are dealt."""
    return queues[place::count]


STRATEGIES: Mapping[str, _Strategy] = {"AVG": _averagely, "AVG_BY_CIRCLE": _by_circle}


def allocate(
    strategy: str, queues: Iterable[MessageQueue], members: Iterable[str], member: str
) -> Sequence[MessageQueue]:
    """The queues of ``member``; none when it is not among ``members``. ``strategy`` is a key of STRATEGIES."""
    every = sorted(set(members))
    if member not in every:
        return []
    return STRATEGIES[strategy](sorted(queues), len(every), every.index(member))


def allocate_for_pop(
    strategy: str, queues: Iterable[MessageQueue], members: Iterable[str], member: str, share: int
) -> Sequence[MessageQueue]:
    """What ``member`` pops from: its own queues and those of the ``share`` members after it, as RocketMQ does it.

    With share 0 or less, or when it covers all members, each member pops from all queues of all brokers: queue -1.
    """
    every, listed = sorted(set(members)), sorted(queues)
    if share <= 0 or share >= len(every) - 1:
        return list(dict.fromkeys(queue._replace(queue_id=ANY_QUEUE) for queue in listed))
    if member not in every:
        return []
    place = every.index(member)
    if len(every) > len(listed):
        return [listed[place % len(listed)]]
    shares = [every[(place + number) % len(every)] for number in range(share + 1)]
    return [queue for name in shares for queue in allocate(strategy, listed, every, name)]
