"""Where the next pop of a group begins in each queue: by the revive log, else by the committed offset.

An administrator, or a consumer that pulls, may commit another offset for the group. It is known from this broker's own
commits by its value, and counts from then on. That is written to the revive log as a check point without messages.
A group without an offset begins at the end, or at the start if it wants that or the whole queue is in memory: the rule
of RocketMQ. (Its MAX begins at the last message, here at the next one.)
"""

from collections.abc import Callable

from broker.delivery.pop.log import ReviveLog
from broker.delivery.pop.records import Key, PopCheckpoint, Queue
from broker.meta.consumer_offsets import ConsumerOffsets
from broker.store.store import MessageStore
from mqcommon.clock import Clock
from mqcommon.names import is_retry_topic
from remoting.protocol.requests.pops import INIT_MIN


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

    def clear(self) -> None:
        """The role has changed."""
        self._committed.clear()

    def peek(self, queue: Queue, init_mode: int) -> int:
        """Where the group reads next; nothing is changed."""
        if queue in self._committed and self._offsets.query(*queue) == self._committed[queue]:
            return self._log.inflight.positions[queue]
        stored = self._offsets.query(*queue)
        if queue not in self._committed and queue in self._log.inflight.positions:
            return self._log.inflight.positions[queue]
        return stored if stored >= 0 else self._first(queue, init_mode)

    def next(self, queue: Queue, init_mode: int) -> int:
        """Where the group reads next. An offset that an administrator or a pull has committed is taken over."""
        stored, known = self._offsets.query(*queue), self._committed.get(queue)
        positions = self._log.inflight.positions
        if stored == known:
            return positions[queue]
        if known is None and queue in positions:
            # Check points after the last commit, read from the log.
            self._committed[queue] = stored
            return positions[queue]
        # The group has consumed here before, but never by pops.
        if known is None and stored >= 0:
            self._committed[queue] = positions[queue] = stored
            return stored
        # Another offset was committed since, or the group is new.
        self._on_foreign_offset(queue)
        return self.move(queue, stored if stored >= 0 else self._first(queue, init_mode))

    def move(self, queue: Queue, position: int) -> int:
        """Let the group go on at ``position``, wherever it is."""
        self._log.commits.forget(queue)
        self._log.write(PopCheckpoint(Key(queue, position, self._clock.now_ms()), 0, (), position))
        self._committed[queue] = position
        self._offsets.commit(*queue, position)
        return position

    def skipped(self, queue: Queue, position: int) -> None:
        """The group wants no message before ``position``. That is not written: after a crash it is found out again."""
        self._log.inflight.positions[queue] = position
        self._log.commits.moved(queue, position, self._store.log.end)

    def commit(self, safe: dict[Queue, int]) -> None:
        """Commit these positions, except where another offset was committed meanwhile, not by this object."""
        for queue, position in safe.items():
            stored = self._offsets.query(*queue)
            if stored == self._committed.setdefault(queue, stored):
                self._offsets.commit(*queue, position)
                self._committed[queue] = position
            else:
                self._log.commits.forget(queue)

    def _first(self, queue: Queue, init_mode: int) -> int:
        _, topic, queue_id = queue
        if init_mode == INIT_MIN or is_retry_topic(topic):
            return self._store.min_offset(topic, queue_id)
        return 0 if self._all_in_memory(topic, queue_id) else self._store.visible_end(topic, queue_id)
