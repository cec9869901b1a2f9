"""Which queues a member of a group gets when the broker assigns them (400). Pure.

Every member gets the same answer for the same queues and members, whoever asks first: queues and members are sorted
here. Names of strategies are RocketMQ's.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from mqcommon.message.queue import MessageQueue

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
