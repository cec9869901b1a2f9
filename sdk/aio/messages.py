"""`StreamMessage`: a message of ``async for message in consumer``, and the iteration over a `PushConsumer`."""

from mqcommon.arguments import check_int
from mqcommon.message.message import MessageExt
from mqcommon.names import DELAY_LEVELS
from sdk.aio.portal import Portal
from sdk.consumer import stream_message
from sdk.consumer.push import CrossingMessages, PushConsumer


class StreamMessage(MessageExt):
    """A message that stays its consumer's until `ack`, `nack` or the timeout. The later of them does nothing."""

    __slots__ = ("_message", "_portal", "_taken")

    def __init__(
        self, message: stream_message.StreamMessage, taken: CrossingMessages, portal: Portal[PushConsumer]
    ) -> None:
        super().__init__(message._data, message._at, message.broker_name)
        self._record = message._record
        self._message = message
        self._portal = portal
        self._taken = taken

    async def ack(self) -> None:
        """The message is consumed."""
        self._taken.ack(self._message)

    async def nack(self, delay_level: int = 0) -> None:
        """Deliver the message again: after the delay of this level, or by the number of failures so far (0)."""
        check_int("delay_level", delay_level, 0, DELAY_LEVELS)
        await self._portal.call(lambda _: self._message.nack(delay_level))


class ConsumerStream:
    """The messages of a `PushConsumer` without a handler; several tasks may take them."""

    def __init__(self, loop: Portal[PushConsumer]) -> None:
        self._loop = loop
        self._taken: CrossingMessages | None = None

    def start(self) -> None:
        """Raise InvalidArgument if the consumer has a handler."""
        self._loop.call_sync(lambda consumer: consumer.__aiter__())

    async def next(self) -> StreamMessage:
        """The next message; StopAsyncIteration when the consumer is closed."""
        client = self._loop.opened()
        taken = self._taken
        if taken is None or taken.client is not client:
            taken = self._taken = CrossingMessages(client)
        while (message := taken.pop()) is None:
            if not await self._loop.call(taken.fill):
                raise StopAsyncIteration
        return StreamMessage(message, taken, self._loop)
