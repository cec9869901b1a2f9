"""In Controller mode: queues in which held requests wait for messages that are not confirmed yet.

The store reports a message when it comes (`MessageStore.arrived`). A message that is not confirmed then is reported
again when it is: a queue is a row here, by where its first hidden message ends in the log. So the cost of a confirm
offset that moves grows with the queues that it concerns. A queue has one row, hence their number is bounded.
"""

import heapq
from collections.abc import Callable
from itertools import count

from skylark.broker.store.queue.consumequeue import ConsumeQueue
from skylark.broker.store.store import MessageStore
from skylark.broker.store.visible import first_hidden, visible_end
from skylark.broker.writing.elected import Elected


class Unconfirmed:
    """See the module."""

    def __init__(self, store: MessageStore, elected: Elected, turned: Callable[[], None]) -> None:
        """``turned`` is called after queues were added to `MessageStore.arrived`, outside of a turn."""
        self._store = store
        self._elected = elected
        self._turned = turned
        # (end of the first hidden message, a number that makes rows comparable, queue), the least first.
        self._rows: list[tuple[int, int, ConsumeQueue]] = []
        self._watched: set[ConsumeQueue] = set()
        self._numbers = count()
        elected.observers.append(self._confirmed)
        elected.on_cut.append(self._cut)

    def watch(self, queue: ConsumeQueue) -> int:
        """Where the visible messages of ``queue`` end. If there are others, the store will tell of the next one."""
        # A row is made only for a queue that hides something; without one the store tells of the next message by
        # itself.
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
            # Its topic may have been deleted.
            if store.queues.find(queue.topic, queue.queue_id) is queue:
                store.arrived.add(queue)
        self._turned()

    def _cut(self, offset: int) -> None:
        """Other messages will come where these were: look at all queues again when the confirm offset moves next."""
        self._rows = [(0, number, queue) for _, number, queue in sorted(self._rows, key=lambda row: row[1])]
