"""How long messages have waited that wait for a time, although the clock may have been set meanwhile."""

from skylark.broker.store.store import MessageStore
from skylark.mqcommon.clock import Clock
from skylark.mqcommon.message.record import Record


class MessageAges:
    """Store times on the clock as it is set now, see store/clock_steps.py.

    The time of a message that this broker has stored as the master is moved with the clock. Other messages were stored
    before the last start, or by another master: their times come from a clock that this process did not see. Such a
    message with a time in the future counts as stored when this broker began to deliver: its delay is never shortened,
    and the message waits once more for its whole delay at most.
    """

    def __init__(self, store: MessageStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self.begin()

    def begin(self) -> None:
        """This broker becomes the master, and all in its log is of others, or of its past."""
        self._store.look_at_clock()
        self._begun_ms, self._begun_at = self._clock.now_ms(), self._store.log.end
        self._steps_before = self._store.clock_steps.count

    def of(self, record: Record) -> int:
        """How long ago the message was stored (ms)."""
        return self._clock.now_ms() - self.stored_ms(record.physical_offset, record.store_timestamp)

    def dated(self, record: Record) -> Record:
        """The message with its store time by the present clock."""
        return record._replace(store_timestamp=self.stored_ms(record.physical_offset, record.store_timestamp))

    def stored_ms(self, physical: int, stored_ms: int) -> int:
        """The store time of the message at ``physical`` of the log, by the present clock."""
        if physical < self._begun_at:
            stored_ms = min(stored_ms, self._begun_ms)
        steps = self._store.clock_steps
        if steps.count == self._steps_before:
            return stored_ms
        return stored_ms + steps.moved_since(self._steps_before, physical, stored_ms)
