"""Where the next pop of a group begins in each queue: by the revive log, else by the committed offset.

An administrator, or a consumer that pulls, may commit another offset for the group. Such an offset is recognized
because its value differs from this broker's own commits, and it counts from then on. This is written to the revive log
as a check point without messages, by the next pop, or within a second without a pop (`release`): a start prefers the
position in the log to the committed offset. A group without an offset begins at the end, or at the start if the request
asks for the start or if the whole queue is in memory, as in RocketMQ. (RocketMQ's MAX begins at the last message, here
it begins at the next one.)
"""

from collections.abc import Callable, Iterator

from skylark.broker.delivery.pop.log import ReviveLog
from skylark.broker.delivery.pop.records import RELEASED, Key, PopCheckpoint, Queue
from skylark.broker.meta.consumer_offsets import ConsumerOffsets
from skylark.broker.store.store import MessageStore
from skylark.mqcommon.clock import Clock
from skylark.mqcommon.names import is_retry_topic
from skylark.remoting.protocol.requests.pops import INIT_MIN

# Queues that are checked in one turn of the event loop: some milliseconds.
SLICE = 5_000


class Positions:
    """The positions of all groups. ``all_in_memory``: whether a queue still has all its messages, in memory."""

    def __init__(
        self,
        log: ReviveLog,
        offsets: ConsumerOffsets,
        store: MessageStore,
        clock: Clock,
        all_in_memory: Callable[[str, int], bool],
        on_foreign_offset: Callable[[Queue], None],
    ) -> None:
        """``on_foreign_offset`` is called when a group continues at an offset that this object has not committed."""
        self._log = log
        self._offsets = offsets
        self._store = store
        self._clock = clock
        self._all_in_memory = all_in_memory
        self._on_foreign_offset = on_foreign_offset
        # The offsets committed by this object, or found when the queue was first popped.
        self._committed: dict[Queue, int] = {}
        # Queues without a commit since the revive log was read.
        self._restored: set[Queue] = set()

    def clear(self) -> None:
        """Forget all positions: the role has changed."""
        self._committed.clear()
        self._restored.clear()

    def begin(self) -> None:
        """Begin after the revive log was read: the offsets that are committed now were committed by pops."""
        self._committed = {queue: self._offsets.query(*queue) for queue in self._log.inflight.positions}
        self._restored = set(self._committed)

    def _is_own(self, queue: Queue, stored: int) -> bool:
        """Whether this object has committed the offset ``stored``."""
        known = self._committed.get(queue)
        if stored == known:
            return True
        if queue not in self._restored or known is None or not known < stored <= self._log.inflight.positions[queue]:
            return False
        # A kill lost this commit from the journal, and a slave that acted for this master has returned it.
        self._committed[queue] = stored
        return True

    def peek(self, queue: Queue, init_mode: int) -> int:
        """Where the group reads next; changes nothing. ``init_mode``: where a new group begins, see `PopQuery`."""
        stored = self._offsets.query(*queue)
        if self._is_own(queue, stored):
            return self._log.inflight.positions[queue]
        return stored if stored >= 0 else self._first(queue, init_mode, self._store.shown_min_offset)

    def next(self, queue: Queue, init_mode: int) -> int:
        """Where the group reads next. Adopts an offset that an administrator or a pull has committed.

        ``init_mode``: where a new group begins, see `PopQuery`.
        """
        stored, positions = self._offsets.query(*queue), self._log.inflight.positions
        if self._is_own(queue, stored):
            return positions[queue]
        self._on_foreign_offset(queue)
        # The group has consumed here before, but not by pops.
        if queue not in self._committed and stored >= 0:
            self._committed[queue] = positions[queue] = stored
            return stored
        # Another offset was committed meanwhile, or the group is new.
        return self.move(queue, stored if stored >= 0 else self._first(queue, init_mode, self._store.min_offset))

    def set_by_others(self) -> Iterator[list[Queue]]:
        """Queues whose offset was set or removed by others, and is not in the revive log yet; in slices."""
        queues = list(self._committed)
        for start in range(0, len(queues), SLICE):
            yield [queue for queue in queues[start : start + SLICE] if self._is_set_by_others(queue)]

    def _is_set_by_others(self, queue: Queue) -> bool:
        return queue in self._committed and not self._is_own(queue, self._offsets.query(*queue))

    def release(self, queue: Queue) -> None:
        """Write to the revive log that the group continues at its committed offset, which others have set or removed.

        Otherwise a start would prefer the last pop's position in the log to this offset. No effect if a pop has adopted
        the offset meanwhile.
        """
        if self._is_set_by_others(queue):
            # The start of this check point, RELEASED, is no lease's start.
            self._log.write_own(PopCheckpoint(Key(queue, RELEASED, self._clock.now_ms()), 0, (), RELEASED))
            self._log.commits.forget(queue)
            del self._committed[queue]
            self._restored.discard(queue)

    def drop_topic(self, topic: str) -> None:
        """Forget a topic that is being deleted. No record is written: a start knows of the deletion."""
        for queue in [queue for queue in self._committed if queue.topic == topic]:
            del self._committed[queue]
            self._restored.discard(queue)
        self._log.commits.drop_topic(topic)

    def move(self, queue: Queue, position: int) -> int:
        """Let the group continue at ``position``, wherever it is now."""
        self._log.commits.forget(queue)
        self._log.write(PopCheckpoint(Key(queue, position, self._clock.now_ms()), 0, (), position))
        self._commit(queue, position)
        return position

    def _commit(self, queue: Queue, position: int) -> None:
        self._committed[queue] = position
        self._restored.discard(queue)
        self._offsets.commit(*queue, position)

    def skipped(self, queue: Queue, position: int) -> None:
        """Move the group past messages that its filter rejects. Not recorded: after a crash they are read again."""
        self._log.inflight.positions[queue] = position
        self._log.commits.moved(queue, position, self._store.log.end)

    def commit(self, safe: dict[Queue, int]) -> None:
        """Commit these positions, except where another offset was committed meanwhile, not by this object."""
        for queue, position in safe.items():
            if queue in self._committed and self._is_own(queue, self._offsets.query(*queue)):
                self._commit(queue, position)
            else:
                self._log.commits.forget(queue)

    def _first(self, queue: Queue, init_mode: int, min_offset: Callable[[str, int], int]) -> int:
        _, topic, queue_id = queue
        if init_mode == INIT_MIN or is_retry_topic(topic):
            return min_offset(topic, queue_id)
        return 0 if self._all_in_memory(topic, queue_id) else self._store.visible_end(topic, queue_id)
