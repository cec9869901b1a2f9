"""Which queue gets the next batch. Pure: callers pass the `Random`.

Brokers take turns, and on each broker its queues. Both start at a random position, so that many processes that send few
messages do not all use the same queue. Brokers that are not usable, or at which this batch has failed, are used only
when there is no other.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from random import Random
from zlib import crc32

from mqcommon.message.queue import MessageQueue


class Turns:
    """The round-robin state of one topic."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._turn = 0
        # Address → the turn in which the broker was chosen last; a random number below 0 for one that never was. The
        # broker with the lowest number is next, so turns are even also when a broker misses some of them.
        self._chosen: dict[str, float] = {}
        # Address → position of the queue chosen last.
        self._position: dict[str, int] = {}

    def next(
        self,
        queues_at: Mapping[str, Sequence[MessageQueue]],
        usable: Callable[[str], bool] = lambda addr: True,
        avoid: Collection[str] = (),
    ) -> tuple[str, MessageQueue] | None:
        """The (address, queue) to send to next; None when there is no writable queue."""
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
    """The queue for messages with this key: always the same one while the topic's queues do not change."""
    return queues[crc32(sharding_key.encode()) % len(queues)]
