"""`StreamMessage`: a message of ``async for message in consumer``, which the caller acknowledges."""

from collections.abc import Callable

from mqcommon.arguments import check_int
from mqcommon.message.message import MessageExt
from mqcommon.names import DELAY_LEVELS
from sdk.consumer.failures import Counters, Failures
from sdk.consumer.ready import Takable


class StreamMessage(MessageExt):
    """A message that stays its consumer's until `ack` or `nack`. The later of two calls does nothing."""

    __slots__ = ("_batch", "_counters", "_failures", "_is_settled", "_number", "settled")

    def __init__(self, batch: Takable, number: int, failures: Failures, counters: Counters) -> None:
        message = batch.messages[number]
        super().__init__(message._data, message._at, message.broker_name)
        self._record = message._record
        if batch.has_packed and message.has_content:
            self._content = message._content
            message.drop_content()
        self._batch = batch
        self._number = number
        self._failures = failures
        self._counters = counters
        self._is_settled = False
        # Told whether it was consumed, for the trace.
        self.settled: Callable[[bool], None] | None = None

    @property
    def is_ours(self) -> bool:
        """Whether its queue is still this member's. Else another member gets the message, too."""
        return not self._batch.window.is_closed

    async def ack(self) -> None:
        """The message is consumed."""
        self.note_consumed()

    def note_consumed(self) -> None:
        """What `ack` does, for other threads and loops: it does not wait."""
        if not self._is_settled:
            self._is_settled = True
            self._batch.finish(self._number, self._number + 1)
            self._counters.consumed += 1
            if self.settled is not None:
                self.settled(True)

    async def nack(self, delay_level: int = 0) -> None:
        """Deliver the message again: after the delay of this level, or by the number of failures so far (0)."""
        check_int("delay_level", delay_level, 0, DELAY_LEVELS)
        if not self._is_settled:
            self._is_settled = True
            if self.settled is not None:
                self.settled(False)
            await self._failures.later(self._batch, self._number, self._number + 1, delay_level)
