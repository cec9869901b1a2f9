"""How much of what waits in the queues a micro-batch takes: pure arithmetic.

A limit is shared in proportion to what waits. If it suffices, each queue gets at least one message, so that a busy
queue cannot starve a quiet one; otherwise the queues take turns. The shares add up to the limit exactly.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from mqcommon.message.queue import MessageQueue

Counts = Mapping[MessageQueue, int]


@dataclass(frozen=True)
class AdmissionLimits:
    """What a micro-batch may have; 0: no such limit."""

    max_rows: int = 0
    min_rows: int = 0
    max_bytes: int = 0


def shares(waiting: Counts, limit: int, turn: int) -> dict[MessageQueue, int]:
    """How many messages of each queue to take, ``limit`` together; if that is few, ``turn`` says whose turn it is."""
    queues = sorted(queue for queue, count in waiting.items() if count > 0)
    total = sum(waiting[queue] for queue in queues)
    if total <= limit:
        return {queue: waiting[queue] for queue in queues}
    if limit < len(queues):
        return {queues[(turn + number) % len(queues)]: 1 for number in range(limit)}
    # One for each, and the rest in proportion. What rounding down leaves goes to the largest remainders.
    rest, spare = total - len(queues), limit - len(queues)
    products = {queue: spare * (waiting[queue] - 1) for queue in queues}
    taken = {queue: 1 + product // rest for queue, product in products.items()}
    left = limit - sum(taken.values())
    for queue in sorted(queues, key=lambda queue: -(products[queue] % rest))[:left]:
        taken[queue] += 1
    return taken


def rows_in(max_bytes: int, waiting: Counts, mean_bytes: Mapping[MessageQueue, float]) -> int:
    """How many messages fit into ``max_bytes``, at least one, if each queue gives the same fraction of what waits."""
    total = sum(waiting.values())
    size = sum(count * mean_bytes[queue] for queue, count in waiting.items() if count)
    return total if size <= max_bytes else max(1, int(total * max_bytes / size))
