"""How long delayed messages and halves have waited, although the clock may have been set meanwhile."""

from skylark.broker.store.store import MessageStore
from skylark.mqcommon.clock import Clock
from skylark.mqcommon.message.record import Record


class MessageAges:
    """Store times converted to the present setting of the clock, see store/clock_steps.py.

    If this broker has stored a message as the master, its time is moved with the clock. Other messages were stored
    before the last start, or by another master: their times come from a clock that this process did not observe. If
    such a time is in the future, the message counts as stored when this broker began to deliver: its delay is never
    shortened, and at most the message waits once more for its whole delay.
    """

    def __init__(self, store: MessageStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self.begin()

    def begin(self) -> None:
        """Begin as the master: all messages in the log are another master's, or from this broker's past."""
        self._store.check_clock()
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
