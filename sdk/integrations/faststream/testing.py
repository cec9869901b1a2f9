"""`TestRocketBroker`: what a program publishes goes to its own handlers, in memory, and is recorded by their mocks.

    async with TestRocketBroker(broker) as br:
        await br.publish({"number": 7}, "orders", tags="tea")
        handle.mock.assert_called_once_with({"number": 7})

Messages are stored records as a broker makes them, chosen by tags and SQL as a broker chooses. They are delivered at
once, whatever their delay, in the task that publishes; what a handler raises is raised there.
"""

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any, cast

import anyio
from faststream._internal.endpoint.utils import ParserComposition
from faststream._internal.parser import CodecProto, DefaultCodec
from faststream._internal.producer import ProducerProto
from faststream._internal.testing.broker import TestBroker, change_producer
from faststream._internal.types import AsyncCallable
from faststream.exceptions import SubscriberNotFound

from skylark.mqcommon.clock import SystemClock
from skylark.mqcommon.message.ids import encode_host
from skylark.mqcommon.message.message import Message, MessageExt, wire_properties
from skylark.mqcommon.message.record import encode_record, topic_field
from skylark.sdk.integrations.faststream.broker import RocketBroker
from skylark.sdk.integrations.faststream.message import RocketParser
from skylark.sdk.integrations.faststream.producing import RocketPublishCommand, RocketPublisher, encoded
from skylark.sdk.integrations.faststream.subscriber import RocketSubscriber
from skylark.sdk.producer.result import SendResult, SendStatus, StoredBatch
from skylark.sdk.producer.wire import Stored
from skylark.sdk.testing.selection import is_chosen

BROKER_NAME = "memory"
_HOST = encode_host("127.0.0.1", 0)


class TestRocketBroker(TestBroker[RocketBroker, Any], broker=RocketBroker):
    """Runs a broker in memory for a test. With ``with_real=True`` it connects to its cluster, with mocks added."""

    @contextmanager
    def _patch_producer(self, broker: RocketBroker) -> Generator[None, None, None]:
        config = broker.config.broker_config
        config.is_in_memory = True
        try:
            with change_producer(config, MemoryProducer(broker, self.brokers)):
                yield
        finally:
            config.is_in_memory = False

    async def _fake_connect(self, broker: RocketBroker, *args: Any, **kwargs: Any) -> None:
        """Do nothing: a broker in memory connects to no server."""

    def create_publisher_fake_subscriber(
        self, broker: RocketBroker, publisher: RocketPublisher
    ) -> tuple[RocketSubscriber, bool]:
        """The subscriber whose mock ``publisher`` shares, and whether the program has a subscriber of its topic."""
        for subscriber in _subscribers(self.brokers):
            if subscriber.topic == publisher.topic:
                return subscriber, True
        group = f"of-the-publisher-of-{publisher.topic}"
        return broker.subscriber(publisher.topic, group=group, batch=publisher.batch, persistent=False), False


class MemoryProducer(ProducerProto[RocketPublishCommand]):
    """Gives messages to the subscribers of some brokers."""

    _parser: AsyncCallable
    _decoder: AsyncCallable
    codec: CodecProto

    def __init__(self, broker: RocketBroker, brokers: Sequence[RocketBroker]) -> None:
        default = RocketParser()
        self._parser = ParserComposition(broker._parser, default.parse_message)
        self._decoder = ParserComposition(broker._decoder, default.decode_message)
        self.codec = broker.config.broker_codec or DefaultCodec()
        self._serializer = broker.config.fd_config._serializer
        self._brokers = brokers
        self._numbers = count()
        self._clock = SystemClock()

    async def publish(self, cmd: RocketPublishCommand) -> SendResult:
        """Give a message to the handlers of its topic."""
        body, content_type = await self.codec.encode(cmd.body, self._serializer)
        stored = self._stored(cmd.message(body, content_type))
        for subscriber in self._listening(cmd.destination):
            if is_chosen(stored, subscriber.consuming.expression):
                await subscriber.process_message([stored] if subscriber.consuming.batch else stored)
        return _result_of(stored)

    async def publish_batch(self, cmd: RocketPublishCommand) -> list[SendResult]:
        """Give messages to the handlers of their topic; those with ``batch`` get all of them at once."""
        stored = [self._stored(message) for message in await encoded(self.codec, self._serializer, cmd)]
        for subscriber in self._listening(cmd.destination):
            chosen = [message for message in stored if is_chosen(message, subscriber.consuming.expression)]
            batches: Sequence[Any] = [chosen] if subscriber.consuming.batch and chosen else chosen
            for raw in batches:
                await subscriber.process_message(raw)
        return [_result_of(message) for message in stored]

    async def request(self, cmd: RocketPublishCommand) -> MessageExt:
        """Call a handler of the topic, and make a message of what it returns. TimeoutError when that takes too long."""
        body, content_type = await self.codec.encode(cmd.body, self._serializer)
        stored = self._stored(cmd.message(body, content_type))
        for subscriber in self._listening(cmd.destination):
            if is_chosen(stored, subscriber.consuming.expression):
                with anyio.fail_after(cmd.timeout_s):
                    answer = await subscriber.process_message([stored] if subscriber.consuming.batch else stored)
                reply = RocketPublishCommand.from_cmd(answer.as_publish_command())
                reply.destination, reply.correlation_id = cmd.destination, answer.correlation_id
                return self._stored(reply.message(*await self.codec.encode(answer.body, self._serializer)))
        raise SubscriberNotFound(f"no handler gets a request in topic {cmd.destination}")

    def _listening(self, topic: str) -> Iterator[RocketSubscriber]:
        """The subscribers of a topic, one of each group, as members of a group share its messages."""
        groups: set[str] = set()
        for subscriber in _subscribers(self._brokers):
            if subscriber.topic == topic and (subscriber.group not in groups or subscriber.consuming.broadcast):
                groups.add(subscriber.group)
                yield subscriber

    def _stored(self, message: Message) -> MessageExt:
        number, now_ms = next(self._numbers), self._clock.now_ms()
        record = encode_record(
            *topic_field(message.topic),
            0,
            number,
            0,
            message.body,
            wire_properties(message, f"MEMORY{number:026}"),
            message.flag,
            0,
            now_ms,
            _HOST,
            now_ms,
            _HOST,
            0,
            0,
        )
        return MessageExt(record, 0, BROKER_NAME)


def _subscribers(brokers: Sequence[RocketBroker]) -> list[RocketSubscriber]:
    return [cast(RocketSubscriber, subscriber) for broker in brokers for subscriber in broker.subscribers]


def _result_of(stored: MessageExt) -> SendResult:
    where = Stored(0, _HOST, stored.queue_id, stored.queue_offset, (stored.physical_offset,))
    return StoredBatch(where, SendStatus.SEND_OK, stored.queue, [(0, b"", stored.record.properties)])[0]
