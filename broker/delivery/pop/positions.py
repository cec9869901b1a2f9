"""Where the next pop of a group begins in each queue: by the revive log, else by the committed offset.

An administrator, or a consumer that pulls, may commit another offset for the group. It is known from this broker's own
commits by its value, and counts from then on. That is written to the revive log as a check point without messages, by
the next pop, or without one within a second (`release`): a start prefers what the log has to the committed offset.
A group without an offset begins at the end, or at the start if it wants that or the whole queue is in memory: the rule
of RocketMQ. (Its MAX begins at the last message, here at the next one.)
"""

from collections.abc import Callable, Iterator

from skylark.broker.delivery.pop.log import ReviveLog
from skylark.broker.delivery.pop.records import RELEASED, Key, PopCheckpoint, Queue
from skylark.broker.meta.consumer_offsets import ConsumerOffsets
from skylark.broker.store.store import MessageStore
from skylark.mqcommon.clock import Clock
from skylark.mqcommon.names import is_retry_topic
from skylark.remoting.protocol.requests.pops import INIT_MIN

# Queues that are looked at in one turn of the event loop: some milliseconds.
SLICE = 5_000


class Positions:
    """See the module. ``all_in_memory``: whether a queue still has all its messages, in memory."""

    def __init__(
        self,
        log: ReviveLog,
        offsets: ConsumerOffsets,
        store: MessageStore,
        clock: Clock,
        all_in_memory: Callable[[str, int], bool],
        on_foreign_offset: Callable[[Queue], None],
    ) -> None:
        """``on_foreign_offset`` is called when the group goes on at an offset that was not committed here."""
        self._log = log
        self._offsets = offsets
        self._store = store
        self._clock = clock
        self._all_in_memory = all_in_memory
        self._on_foreign_offset = on_foreign_offset
        # What was committed here, or found when the queue was first asked for.
        self._committed: dict[Queue, int] = {}
        # Those of which nothing was committed since the revive log was read.
        self._restored: set[Queue] = set()

    def clear(self) -> None:
        """The role has changed."""
        self._committed.clear()
        self._restored.clear()

    def begin(self) -> None:
        """The revive log is read. The offsets that are committed now were committed by pops."""
        self._committed = {queue: self._offsets.query(*queue) for queue in self._log.inflight.positions}
        self._restored = set(self._committed)

    def _is_own(self, queue: Queue, stored: int) -> bool:
        """Whether the committed offset, which is ``stored``, was committed here."""
        known = self._committed.get(queue)
        if stored == known:
            return True
        if queue not in self._restored or known is None or not known < stored <= self._log.inflight.positions[queue]:
            return False
        # A kill took this commit from the journal, and a slave that acted for this master has given it back.
        self._committed[queue] = stored
        return True

    def peek(self, queue: Queue, init_mode: int) -> int:
        """Where the group reads next; nothing is changed."""
        stored = self._offsets.query(*queue)
        if self._is_own(queue, stored):
            return self._log.inflight.positions[queue]
        return stored if stored >= 0 else self._first(queue, init_mode)

    def next(self, queue: Queue, init_mode: int) -> int:
        """Where the group reads next. An offset that an administrator or a pull has committed is taken over."""
        stored, positions = self._offsets.query(*queue), self._log.inflight.positions
        if self._is_own(queue, stored):
            return positions[queue]
        self._on_foreign_offset(queue)
        # The group has consumed here before, but not by pops.
        if queue not in self._committed and stored >= 0:
            self._committed[queue] = positions[queue] = stored
            return stored
        # Another offset was committed since, or the group is new.
        return self.move(queue, stored if stored >= 0 else self._first(queue, init_mode))

    def set_by_others(self) -> Iterator[list[Queue]]:
        """In slices: queues whose offset was set or removed by others, which the revive log does not have yet."""
        queues = list(self._committed)
        for start in range(0, len(queues), SLICE):
            yield [queue for queue in queues[start : start + SLICE] if self._is_set_by_others(queue)]

    def _is_set_by_others(self, queue: Queue) -> bool:
        return queue in self._committed and not self._is_own(queue, self._offsets.query(*queue))

    def release(self, queue: Queue) -> None:
        """Let the revive log say that the group goes on at its committed offset, which others have set or removed.

        Else a start would take the position of the last pop in the log for newer than that offset. Nothing is done if
        a pop has taken the offset over meanwhile.
        """
        if self._is_set_by_others(queue):
            # Its start is that of no lease.
            self._log.write_own(PopCheckpoint(Key(queue, RELEASED, self._clock.now_ms()), 0, (), RELEASED))
            self._log.commits.forget(queue)
            del self._committed[queue]
            self._restored.discard(queue)

    def drop_topic(self, topic: str) -> None:
        """The topic is being deleted. That is not written: a start knows of the deletion."""
        for queue in [queue for queue in self._committed if queue.topic == topic]:
            del self._committed[queue]
            self._restored.discard(queue)
        self._log.commits.drop_topic(topic)

    def move(self, queue: Queue, position: int) -> int:
        """Let the group go on at ``position``, wherever it is."""
        self._log.commits.forget(queue)
        self._log.write(PopCheckpoint(Key(queue, position, self._clock.now_ms()), 0, (), position))
        self._commit(queue, position)
        return position

    def _commit(self, queue: Queue, position: int) -> None:
        self._committed[queue] = position
        self._restored.discard(queue)
        self._offsets.commit(*queue, position)

    def skipped(self, queue: Queue, position: int) -> None:
        """The group wants no message before ``position``. That is not written: after a crash it is found out again."""
        self._log.inflight.positions[queue] = position
        self._log.commits.moved(queue, position, self._store.log.end)

    def commit(self, safe: dict[Queue, int]) -> None:
        """Commit these positions, except where another offset was committed meanwhile, not by this object."""
        for queue, position in safe.items():
            if queue in self._committed and self._is_own(queue, self._offsets.query(*queue)):
                self._commit(queue, position)
            else:
                self._log.commits.forget(queue)

    def _first(self, queue: Queue, init_mode: int) -> int:
        _, topic, queue_id = queue
        if init_mode == INIT_MIN or is_retry_topic(topic):
            return self._store.min_offset(topic, queue_id)
        return 0 if self._all_in_memory(topic, queue_id) else self._store.visible_end(topic, queue_id)
