"""Publishing: commands, the producer that sends them, publishers, and replies to requests.

Every way of publishing makes a `RocketPublishCommand`, which passes through the middlewares to `RocketProducer`.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from fast_depends.library.serializer import SerializerProto
from faststream._internal.configs import PublisherSpecificationConfig, PublisherUsecaseConfig
from faststream._internal.endpoint.publisher import PublisherSpecification, PublisherUsecase
from faststream._internal.endpoint.publisher.fake import FakePublisher
from faststream._internal.endpoint.utils import ParserComposition
from faststream._internal.parser import BatchCodecProto, CodecProto, DefaultCodec
from faststream._internal.producer import ProducerProto
from faststream._internal.types import AsyncCallable, CustomCallable, PublisherMiddleware
from faststream.exceptions import IncorrectState
from faststream.message import StreamMessage
from faststream.response.publish_type import PublishType
from faststream.response.response import BatchPublishCommand, PublishCommand, Response
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import Message as MessageSpec
from faststream.specification.schema import Operation, PublisherSpec

from skylark.mqcommon.errors import ReplyTimeout, SendFailed
from skylark.mqcommon.message.message import Message, MessageExt
from skylark.mqcommon.message.properties import CONTENT_TYPE, CORRELATION_ID, REPLY_TO_CLIENT
from skylark.sdk.aio.facade import Client
from skylark.sdk.aio.producer import Producer
from skylark.sdk.integrations.faststream.message import CORRELATION_HEADER, REPLY_TO_HEADER, RocketMessage, RocketParser
from skylark.sdk.producer.result import SendResult
from skylark.sdk.values.libraries import CBOR, CONTENT_TYPES
from skylark.sdk.values.values import Values

logger = logging.getLogger(__name__)

REQUEST_TIMEOUT_S = 3.0


@dataclass(kw_only=True, slots=True)
class SendOptions:
    """RocketMQ's attributes of a message besides body and headers. None: the publisher's setting."""

    tags: str | None = None
    keys: str | Iterable[str] | None = None
    #: Messages with one key are in one queue, and subscribers with ``orderly`` handle them one after another.
    sharding_key: str | None = None
    #: In a topic of type PRIORITY a higher number is consumed first.
    priority: int | None = None
    delay: timedelta | None = None
    deliver_at: datetime | None = None

    def over(self, other: "SendOptions") -> "SendOptions":
        """These options, with missing values taken from ``other``."""
        # Two times of delivery exclude each other, as do a key and a priority: these options' choice wins.
        has_time = self.delay is not None or self.deliver_at is not None
        has_queue = self.sharding_key is not None or self.priority is not None
        return SendOptions(
            tags=other.tags if self.tags is None else self.tags,
            keys=other.keys if self.keys is None else self.keys,
            sharding_key=self.sharding_key if has_queue else other.sharding_key,
            priority=self.priority if has_queue else other.priority,
            delay=self.delay if has_time else other.delay,
            deliver_at=self.deliver_at if has_time else other.deliver_at,
        )


class RocketResponse(Response):
    """``return RocketResponse(order, tags="tea", delay=timedelta(seconds=5))``: what a handler returns to publish."""

    def __init__(
        self,
        body: Any,
        *,
        tags: str | None = None,
        keys: str | Iterable[str] | None = None,
        sharding_key: str | None = None,
        priority: int | None = None,
        delay: timedelta | None = None,
        deliver_at: datetime | None = None,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
    ) -> None:
        super().__init__(body, headers=headers, correlation_id=correlation_id)
        self.sending = SendOptions(
            tags=tags, keys=keys, sharding_key=sharding_key, priority=priority, delay=delay, deliver_at=deliver_at
        )

    def get_publish_key(self) -> str | None:
        """The sharding key."""
        return self.sending.sharding_key

    def as_publish_command(self) -> "RocketPublishCommand":
        """The command for publishers of the handler."""
        return RocketPublishCommand(
            self.body,
            topic="",
            sending=self.sending,
            headers=self.headers,
            correlation_id=self.correlation_id,
            _publish_type=PublishType.PUBLISH,
        )


class RocketPublishCommand(BatchPublishCommand):
    """One publication, of one body or several. ``asked`` is the request that this publication answers."""

    def __init__(
        self,
        body: Any,
        /,
        *bodies: Any,
        topic: str = "",
        sending: SendOptions | None = None,
        timeout_s: float = REQUEST_TIMEOUT_S,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        _publish_type: PublishType,
    ) -> None:
        super().__init__(
            body,
            *bodies,
            destination=topic,
            headers=headers,
            correlation_id=correlation_id,
            reply_to=reply_to,
            _publish_type=_publish_type,
        )
        self.sending = sending or SendOptions()
        self.timeout_s = timeout_s
        self.asked: MessageExt | None = None

    @classmethod
    def from_cmd(cls, cmd: PublishCommand, *, batch: bool = False) -> "RocketPublishCommand":
        """A command of this class made of ``cmd``; with ``batch`` a list is a body for each element."""
        body, others = cls._parse_bodies(cmd.body, batch=batch)
        if isinstance(cmd, RocketPublishCommand):
            cmd.body, cmd.extra_bodies = body, (*others, *cmd.extra_bodies)
            return cmd
        return cls(
            body,
            *others,
            topic=cmd.destination,
            headers=cmd.headers,
            correlation_id=cmd.correlation_id,
            reply_to=cmd.reply_to,
            _publish_type=cmd.publish_type,
        )

    def properties(self, content_type: str | None) -> dict[str, str]:
        """The properties of the command's messages."""
        found = {name: str(value) for name, value in self.headers.items()}
        own = (
            (CONTENT_TYPE, content_type),
            (CORRELATION_HEADER, self.correlation_id),
            (REPLY_TO_HEADER, self.reply_to),
        )
        return found | {name: value for name, value in own if value}

    def message(self, body: bytes, content_type: str | None) -> Message:
        """The message for an encoded body. ValueError or TypeError when it cannot be sent."""
        sending = self.sending
        return Message(
            self.destination,
            body,
            tags=sending.tags,
            keys=sending.keys,
            sharding_key=sending.sharding_key,
            priority=sending.priority,
            properties=self.properties(content_type),
        )


class ValueCodec(DefaultCodec):
    """``RocketBroker(codec=ValueCodec())``: values are sent as CBOR, texts and bytes as they are.

    Subscribers need no codec to read CBOR, JSON and texts: each message names its format.
    """

    async def encode(self, msg: Any, serializer: SerializerProto | None = None) -> tuple[bytes, str | None]:
        """The body, and its content type."""
        if msg is None or isinstance(msg, str | bytes):
            return await super().encode(msg, serializer)
        return Values(type(msg), CBOR).encode(msg), CONTENT_TYPES[CBOR]

    async def decode(self, msg: Any) -> Any:
        """The value of a body."""
        return await RocketParser().decode_message(msg)

    async def encode_batch(
        self, msgs: Sequence[Any], serializer: SerializerProto | None = None
    ) -> list[tuple[bytes, str | None]]:
        """The bodies of a batch."""
        return [await self.encode(msg, serializer) for msg in msgs]

    async def decode_batch(self, msg: Any) -> list[Any]:
        """The values of a batch."""
        return await RocketParser().decode_batch(msg)


async def encoded(codec: CodecProto, serializer: SerializerProto | None, cmd: RocketPublishCommand) -> list[Message]:
    """The messages of a command, one for each of its bodies."""
    if isinstance(codec, BatchCodecProto):
        pairs = await codec.encode_batch(cmd.batch_bodies, serializer)
    else:
        pairs = [await codec.encode(body, serializer) for body in cmd.batch_bodies]
    return [cmd.message(body, content_type) for body, content_type in pairs]


class RocketProducer(ProducerProto[RocketPublishCommand]):
    """Sends commands with a producer of the SDK, which is open while the broker is connected."""

    _parser: AsyncCallable
    _decoder: AsyncCallable
    codec: CodecProto

    def __init__(
        self,
        parser: CustomCallable | None = None,
        decoder: CustomCallable | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        default = RocketParser()
        self._parser = ParserComposition(parser, default.parse_message)
        self._decoder = ParserComposition(decoder, default.decode_message)
        self.codec = DefaultCodec()
        self._options = options or {}
        self._serializer: SerializerProto | None = None
        self._producer: Producer | None = None

    async def connect(self, client: Client, serializer: SerializerProto | None, codec: CodecProto | None) -> None:
        """Open the producer."""
        self._serializer = serializer
        self.codec = codec or DefaultCodec()
        producer = Producer(client, **self._options)
        await producer.__aenter__()
        self._producer = producer

    async def disconnect(self) -> None:
        """Close the producer; raises SendsFailed when messages are lost."""
        producer, self._producer = self._producer, None
        if producer is not None:
            await producer.__aexit__(None, None, None)

    @property
    def _opened(self) -> Producer:
        if self._producer is None:
            raise IncorrectState("the broker is not connected: call `await broker.connect()` or start it first")
        return self._producer

    async def publish(self, cmd: RocketPublishCommand) -> SendResult | None:
        """Send one message, or answer a request. SendFailed when a message could not be stored."""
        producer = self._opened
        body, content_type = await self.codec.encode(cmd.body, self._serializer)
        if cmd.asked is not None:
            try:
                await producer.reply_to(cmd.asked, body, properties=cmd.properties(content_type))
            except SendFailed as error:
                # The work is done, and the requester has gone. If the handler failed now, the request would be
                # delivered again, and the work repeated in vain.
                logger.warning("the reply to message %s was not delivered: %s", cmd.asked.msg_id, error)
            return None
        return await self._send(producer, cmd.message(body, content_type), cmd)

    async def publish_batch(self, cmd: RocketPublishCommand) -> list[SendResult]:
        """Send a message for each body; the SDK puts them into few requests.

        Raises an ExceptionGroup with the error of each message that could not be sent, when all others are sent.
        """
        producer = self._opened
        messages = await encoded(self.codec, self._serializer, cmd)
        # All at once: the SDK makes batches of sends that wait for a lane together.
        sends = [self._send(producer, message, cmd) for message in messages]
        results = await asyncio.gather(*sends, return_exceptions=True)
        errors = [result for result in results if isinstance(result, BaseException)]
        if errors:
            raise BaseExceptionGroup(f"{len(errors)} of {len(messages)} messages could not be sent", errors)
        return [result for result in results if not isinstance(result, BaseException)]

    async def request(self, cmd: RocketPublishCommand) -> MessageExt:
        """Send a message and wait for its reply. TimeoutError when there is none in time."""
        producer = self._opened
        body, content_type = await self.codec.encode(cmd.body, self._serializer)
        message = cmd.message(body, content_type)
        try:
            # The SDK's timeouts are at least a millisecond.
            return await producer.request(message, timeout_ms=max(cmd.timeout_s * 1000, 1))
        except ReplyTimeout as error:
            raise TimeoutError(str(error)) from error

    @staticmethod
    async def _send(producer: Producer, message: Message, cmd: RocketPublishCommand) -> SendResult:
        return await producer.send(message, delay=cmd.sending.delay, deliver_at=cmd.sending.deliver_at)


@dataclass(kw_only=True)
class PublisherSpecConfig(PublisherSpecificationConfig):
    """The AsyncAPI configuration of a publisher."""

    topic: str


class RocketPublisherSpec(PublisherSpecification[Any, Any]):
    """The part of a publisher in the AsyncAPI schema."""

    @property
    def topic(self) -> str:
        """The topic, with the prefix of routers."""
        return f"{self._outer_config.prefix}{self.config.topic}"

    @property
    def name(self) -> str:
        """The key of the publisher's channel in the AsyncAPI document: its title, or ``TOPIC:Publisher``."""
        return self.config.title_ or f"{self.topic}:Publisher"

    def get_schema(self) -> dict[str, PublisherSpec]:
        """The channel."""
        payloads = self.get_payloads()
        message = MessageSpec(title=f"{self.name}:Message", payload=resolve_payloads(payloads, "Publisher"))
        return {
            self.name: PublisherSpec(
                address=self.topic,
                description=self.config.description_,
                operation=Operation(message=message, bindings=None),
                bindings=None,
            )
        }


class RocketPublisher(PublisherUsecase):
    """A publisher of one topic: a decorator of handlers, and an object to publish with."""

    def __init__(
        self,
        config: PublisherUsecaseConfig,
        specification: RocketPublisherSpec,
        *,
        sending: SendOptions,
        headers: dict[str, str] | None,
        reply_to: str,
        batch: bool,
    ) -> None:
        super().__init__(config, specification)
        self._spec = specification
        self.sending = sending
        self.headers = headers or {}
        self.reply_to = reply_to
        self.batch = batch

    @property
    def topic(self) -> str:
        """The topic, with the prefix of routers."""
        return self._spec.topic

    async def publish(
        self,
        message: Any,
        /,
        topic: str = "",
        *,
        tags: str | None = None,
        keys: str | Iterable[str] | None = None,
        sharding_key: str | None = None,
        priority: int | None = None,
        delay: timedelta | None = None,
        deliver_at: datetime | None = None,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
    ) -> Any:
        """Publish a message, or with ``batch`` a list of messages. Defaults are the publisher's settings."""
        sending = SendOptions(
            tags=tags, keys=keys, sharding_key=sharding_key, priority=priority, delay=delay, deliver_at=deliver_at
        )
        cmd = RocketPublishCommand(
            message,
            topic=topic,
            sending=sending,
            headers=headers,
            correlation_id=correlation_id,
            reply_to=reply_to,
            _publish_type=PublishType.PUBLISH,
        )
        return await self._publish(cmd, _extra_middlewares=())

    async def _publish(self, cmd: PublishCommand, *, _extra_middlewares: Iterable[PublisherMiddleware]) -> Any:
        whole = self._completed(RocketPublishCommand.from_cmd(cmd, batch=self.batch))
        publish = self._basic_publish_batch if self.batch else self._basic_publish
        return await publish(whole, producer=self._outer_config.producer, _extra_middlewares=_extra_middlewares)

    async def request(
        self,
        message: Any,
        /,
        topic: str = "",
        *,
        timeout: float = REQUEST_TIMEOUT_S,
        tags: str | None = None,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
    ) -> RocketMessage:
        """Publish a message and return the reply of its handler. TimeoutError when there is none in time."""
        cmd = RocketPublishCommand(
            message,
            topic=topic,
            sending=SendOptions(tags=tags),
            headers=headers,
            correlation_id=correlation_id,
            timeout_s=timeout,
            _publish_type=PublishType.REQUEST,
        )
        reply: RocketMessage = await self._basic_request(self._completed(cmd), producer=self._outer_config.producer)
        return reply

    def _completed(self, cmd: RocketPublishCommand) -> RocketPublishCommand:
        cmd.destination = cmd.destination or self.topic
        cmd.add_headers(self.headers, override=False)
        cmd.reply_to = cmd.reply_to or self.reply_to
        cmd.sending = cmd.sending.over(self.sending)
        cmd.correlation_id = cmd.correlation_id or self._outer_config.id_generator()
        return cmd


class ReplyPublisher(FakePublisher):
    """Publishes a handler's result as a reply: to a waiting client, or to the topic that the message names."""

    def __init__(self, producer: ProducerProto[Any], message: StreamMessage[Any]) -> None:
        super().__init__(producer=producer)
        self._message = message

    def patch_command(self, cmd: PublishCommand) -> RocketPublishCommand:
        """The command, with its destination."""
        reply = RocketPublishCommand.from_cmd(super().patch_command(cmd))
        raw = self._message.raw_message
        if isinstance(raw, MessageExt) and raw.properties.get(REPLY_TO_CLIENT) and raw.properties.get(CORRELATION_ID):
            reply.asked = raw
        else:
            reply.destination = self._message.reply_to
        return reply
