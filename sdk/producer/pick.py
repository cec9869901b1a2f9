"""Which queue gets the next batch. Pure: chance comes in as a `Random`.

Brokers take turns, and on each broker its queues. Both rounds start at random, so that many processes that send a
little do not all use the same queue. Brokers that faults speak against, and those that this batch has already failed
at, come last; when nothing else is left they are used all the same.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from random import Random
from zlib import crc32

from mqcommon.message.queue import MessageQueue


class Turns:
    """The state of the round for one topic."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._turn = 0
        # Address → the turn in which the broker was chosen last; those that never were have random numbers below 0.
        # So the round is even also when some brokers are left out of some turns.
        self._chosen: dict[str, float] = {}
        # Address → position of the queue chosen last.
        self._position: dict[str, int] = {}

    def next(
        self,
        queues_at: Mapping[str, Sequence[MessageQueue]],
        usable: Callable[[str], bool],
        avoid: Collection[str] = (),
    ) -> tuple[str, MessageQueue] | None:
        """(address, queue) to send to next; None when there is no writable queue at all."""
        addrs = [addr for addr, queues in queues_at.items() if queues]
        if not addrs:
            return None
        best = [addr for addr in addrs if addr not in avoid and usable(addr)]
        candidates = best or [addr for addr in addrs if addr not in avoid] or addrs
        addr = candidates[0] if len(candidates) == 1 else min(candidates, key=self._last_turn)
        queues = queues_at[addr]
        position = self._position.get(addr)
        position = self._random.randrange(len(queues)) if position is None else (position + 1) % len(queues)
        self._position[addr] = position
        self._turn += 1
        self._chosen[addr] = self._turn
        return addr, queues[position]

    def _last_turn(self, addr: str) -> float:
        turn = self._chosen.get(addr)
        if turn is None:
            turn = self._chosen[addr] = self._random.random() - 1
        return turn


def queue_of_key(queues: Sequence[MessageQueue], sharding_key: str) -> MessageQueue:
    """The queue for messages with this key: the same one as long as the topic's queues stay the same."""
    return queues[crc32(sharding_key.encode()) % len(queues)]
