"""In Controller mode: queues in which held requests wait for messages that are not confirmed yet.

The store reports a message when it arrives (`MessageStore.arrived`). A message that is not confirmed at that time is
reported again when it is confirmed. A queue is a row here, ordered by where its first hidden message ends in the log.
So the cost of an advance of the confirm offset grows with the queues that it concerns. Each queue has at most one row,
hence the number of rows is bounded.
"""

import heapq
from collections.abc import Callable
from itertools import count

from skylark.broker.store.queue.consumequeue import ConsumeQueue
from skylark.broker.store.store import MessageStore
from skylark.broker.store.visible import first_hidden, visible_end
from skylark.broker.writing.elected import Elected


class Unconfirmed:
    """The queues with hidden messages for which held requests wait."""

    def __init__(self, store: MessageStore, elected: Elected, turned: Callable[[], None]) -> None:
        """``turned`` is called after queues were added to `MessageStore.arrived`, outside of a turn."""
        self._store = store
        self._elected = elected
        self._turned = turned
        # (end of the first hidden message, a number that makes rows comparable, queue); a heap, the lowest end first.
        self._rows: list[tuple[int, int, ConsumeQueue]] = []
        self._watched: set[ConsumeQueue] = set()
        self._numbers = count()
        elected.observers.append(self._confirmed)
        elected.on_cut.append(self._cut)

    def watch(self, queue: ConsumeQueue) -> int:
        """Where the visible messages of ``queue`` end. Hidden messages will be reported when they are confirmed."""
        # A row is made only for a queue with hidden messages; otherwise the store reports the next message anyway.
        end = visible_end(self._store.log, queue, self._elected.confirm_offset)
        if end < queue.next_offset and queue not in self._watched:
            self._watched.add(queue)
            heapq.heappush(self._rows, (first_hidden(queue, end), next(self._numbers), queue))
        return end

    def _confirmed(self, offset: int) -> None:
        rows, store = self._rows, self._store
        if not rows or rows[0][0] > offset:
            return
        while rows and rows[0][0] <= offset:
            queue = heapq.heappop(rows)[2]
            self._watched.discard(queue)
            # The topic of the queue may have been deleted.
            if store.queues.find(queue.topic, queue.queue_id) is queue:
                store.arrived.add(queue)
        self._turned()

    def _cut(self, offset: int) -> None:
        """After a cut of the log, examine all queues at the next advance: other messages will replace the cut ones."""
        self._rows = [(0, number, queue) for _, number, queue in sorted(self._rows, key=lambda row: row[1])]
