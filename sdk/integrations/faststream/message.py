"""Messages as handlers of FastStream see them, how each is settled, and the parsers that make them.

A handler's message is settled once: acknowledged, refused for now or refused for good. `Handling` records the
settlement for a push consumer, whose handler waits for it and returns `Handling.result`. `Popped` sends the settlement
to the broker at once.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol

from faststream.exceptions import FeatureNotSupportedException
from faststream.message import StreamMessage as FastStreamMessage
from faststream.message import decode_message
from faststream.middlewares import AckPolicy

from skylark.mqcommon.message.message import MessageExt
from skylark.mqcommon.message.properties import CONTENT_TYPE, CORRELATION_ID, REPLY_TO_CLIENT
from skylark.remoting.protocol.strict_cbor import loads_values
from skylark.sdk.aio.simple import SimpleConsumer
from skylark.sdk.consumer.outcome import ConsumeResult, Later, Result
from skylark.sdk.consumer.popped import ReceivedMessage
from skylark.sdk.consumer.retry_policy import LEVEL_DELAYS_S, reason_of
from skylark.sdk.values.libraries import CBOR, CONTENT_TYPES

#: FastStream's names for values without a RocketMQ property; FastStream's Kafka broker uses the same names.
CORRELATION_HEADER = "correlation_id"
REPLY_TO_HEADER = "reply_to"

#: What a subscriber gets: a message, or with ``batch`` several messages.
Raw = MessageExt | Sequence[MessageExt]


class Rejected(Exception):
    """The handler has refused a message for good: it becomes a dead letter. The text is the reason."""


class Settlement(Protocol):
    """The ways to settle a message."""

    async def ack(self) -> None: ...

    async def nack(self, delay_level: int, reason: str) -> None: ...

    async def reject(self, reason: str) -> None: ...


class Handling:
    """One call of a push consumer's handler. Once `settled` is set, `result` is the handler's result."""

    def __init__(self) -> None:
        self.settled = asyncio.Event()
        #: The exception that the handler, a middleware or a parser has raised.
        self.error: Exception | None = None
        self._result: Result = None
        self._raises: Exception | None = None

    async def ack(self) -> None:
        self._settle(None, None)

    async def nack(self, delay_level: int, reason: str) -> None:
        self._settle(Later(delay_level, reason), None)

    async def reject(self, reason: str) -> None:
        self._settle(None, Rejected(reason))

    def _settle(self, result: Result, raises: Exception | None) -> None:
        # The first settlement counts: a middleware may settle a message that the handler has settled already.
        if not self.settled.is_set():
            self._result, self._raises = result, raises
            self.settled.set()

    def result(self, policy: AckPolicy) -> Result:
        """The push consumer's handler returns this result, or raises this method's exception."""
        if not self.settled.is_set():
            # The message could not be parsed, not even by the default parser, so it could not be settled.
            if self.error is None:
                return ConsumeResult.LATER
            if policy is AckPolicy.ACK:
                return None
            raise Rejected(reason_of(self.error)) if policy is AckPolicy.REJECT_ON_ERROR else self.error
        # A message that was rejected without a reason gets the handler's error as its reason.
        if self._raises is not None:
            if self.error is not None and not str(self._raises):
                raise Rejected(reason_of(self.error)) from self.error
            raise self._raises
        if self.error is not None and self._result == Later():
            # The error itself, so that a RetryPolicy can decide by its class, and a dead letter names it.
            raise self.error
        return self._result


class Popped:
    """A message, or several, that a `SimpleConsumer` has received."""

    def __init__(self, consumer: SimpleConsumer, messages: Sequence[ReceivedMessage]) -> None:
        self._consumer = consumer
        self._messages = messages

    async def ack(self) -> None:
        await self._consumer.ack(self._messages)

    async def nack(self, delay_level: int, reason: str) -> None:
        hidden_ms = LEVEL_DELAYS_S[delay_level - 1] * 1000 if delay_level else 0
        for message in self._messages:
            await self._consumer.change_invisible_time(message, hidden_ms)

    async def reject(self, reason: str) -> None:
        raise FeatureNotSupportedException(
            "a message of get_one() or of an iteration cannot be made a dead letter at once: "
            "ack() drops it, and nack() has it delivered again until the attempts of its group are over"
        )


class RocketMessage(FastStreamMessage[Any]):
    """A message of FastStream; ``raw_message`` is the `MessageExt`, or with ``batch`` a list of `MessageExt`."""

    def __init__(self, *args: Any, settlement: Settlement | None, **others: Any) -> None:
        super().__init__(*args, **others)
        self._settlement = settlement

    async def ack(self) -> None:
        """Acknowledge the message as consumed."""
        if self._settlement is not None and self.committed is None:
            await self._settlement.ack()
        await super().ack()

    async def nack(self, delay_level: int = 0, reason: str = "") -> None:
        """Deliver the message again: after the delay of this level, or by the number of failures so far (0).

        ``reason`` is kept with the message, in case that it becomes a dead letter.
        """
        if self._settlement is not None and self.committed is None:
            await self._settlement.nack(delay_level, reason)
        await super().nack()

    async def reject(self, reason: str = "") -> None:
        """Make the message a dead letter now. ``reason`` is kept with it."""
        if self._settlement is not None and self.committed is None:
            await self._settlement.reject(reason)
        await super().reject()


class RocketParser:
    """Makes a `RocketMessage` of a consumer's message. ``settlements``: raw messages' settlements, by `id`."""

    def __init__(self) -> None:
        self.settlements: dict[int, Settlement] = {}

    async def parse_message(self, message: MessageExt) -> RocketMessage:
        """One message."""
        properties = message.properties
        return RocketMessage(
            raw_message=message,
            body=message.body,
            headers=dict(message.headers),
            message_id=message.msg_id,
            content_type=properties.get(CONTENT_TYPE),
            # Requests of `Producer.request`, and of RocketMQ's clients, name the client that waits.
            reply_to=properties.get(REPLY_TO_CLIENT) or properties.get(REPLY_TO_HEADER, ""),
            correlation_id=properties.get(CORRELATION_HEADER) or properties.get(CORRELATION_ID),
            settlement=self.settlements.get(id(message)),
        )

    async def parse_batch(self, messages: Sequence[MessageExt]) -> RocketMessage:
        """Several messages as one message, whose body is a list; all else is taken from the first message."""
        first = await self.parse_message(messages[0])
        return RocketMessage(
            raw_message=messages,
            body=[message.body for message in messages],
            headers=first.headers,
            batch_headers=[dict(message.headers) for message in messages],
            message_id=first.message_id,
            content_type=first.content_type,
            correlation_id=first.correlation_id,
            # A waiting client needs the answer to its own message, but a batch has one answer: only topics get it.
            reply_to=messages[0].properties.get(REPLY_TO_HEADER, ""),
            settlement=self.settlements.get(id(messages)),
        )

    async def decode_message(self, message: FastStreamMessage[Any]) -> Any:
        """The value of a body, by its content type: as FastStream does it, and CBOR."""
        if message.content_type == CONTENT_TYPES[CBOR]:
            return loads_values(message.body)
        return decode_message(message)

    async def decode_batch(self, message: FastStreamMessage[Any]) -> list[Any]:
        """The values of a batch."""
        return [await self.decode_message(await self.parse_message(each)) for each in message.raw_message]
