"""`StreamMessage`: a message of ``for message in consumer``, and the iteration over a `PushConsumer`."""

from mqcommon.arguments import check_int
from mqcommon.message.message import MessageExt
from mqcommon.names import DELAY_LEVELS
from sdk.blocking.loop import ClientLoop
from sdk.consumer import stream_message
from sdk.consumer.push import CrossingMessages, PushConsumer


class StreamMessage(MessageExt):
    """A message that stays its consumer's until `ack`, `nack` or the timeout. The later of them does nothing."""

    __slots__ = ("_message", "_taken")

    def __init__(self, message: stream_message.StreamMessage, taken: CrossingMessages) -> None:
        super().__init__(message._data, message._at, message.broker_name)
        self._record = message._record
        self._message = message
        self._taken = taken

    def ack(self) -> None:
        """The message is consumed."""
        self._taken.ack(self._message)

    def nack(self, delay_level: int = 0) -> None:
        """Deliver the message again: after the delay of this level, or by the number of failures so far (0)."""
        check_int("delay_level", delay_level, 0, DELAY_LEVELS)
        self._taken.client.call(lambda _: self._message.nack(delay_level))


class ConsumerStream:
    """The messages of a `PushConsumer` without a handler; several threads may take them."""

    def __init__(self, loop: ClientLoop[PushConsumer]) -> None:
        self._loop = loop
        self._taken: CrossingMessages | None = None

    def start(self) -> None:
        """Raise InvalidArgument if the consumer has a handler."""
        self._loop.call_sync(lambda consumer: consumer.__aiter__())

    def next(self) -> StreamMessage:
        """The next message; StopIteration when the consumer is closed."""
        client = self._loop.opened()
        taken = self._taken
        if taken is None or taken.client is not client:
            taken = self._taken = CrossingMessages(client)
        while (message := taken.pop()) is None:
            if not self._loop.call(taken.fill):
                raise StopIteration
        return StreamMessage(message, taken)
