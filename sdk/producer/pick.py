"""Which queue gets the next batch. Pure.

Brokers take turns, and on each broker its queues. Brokers that faults speak against, and those that this batch has
already failed at, come last; when nothing else is left they are used all the same.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from zlib import crc32

from mqcommon.message.queue import MessageQueue


class Turns:
    """The state of the round for one topic."""

    def __init__(self, start: int = 0) -> None:
        self._broker_turn = start
        self._queue_turn = start

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
        self._broker_turn += 1
        addr = candidates[self._broker_turn % len(candidates)]
        queues = queues_at[addr]
        self._queue_turn += 1
        # Not the same step as the brokers': with two of each, every queue gets its turn.
        return addr, queues[self._queue_turn // len(candidates) % len(queues)]


def queue_of_key(queues: Sequence[MessageQueue], sharding_key: str) -> MessageQueue:
    """The queue for messages with this key: the same one as long as the topic's queues stay the same."""
    return queues[crc32(sharding_key.encode()) % len(queues)]
