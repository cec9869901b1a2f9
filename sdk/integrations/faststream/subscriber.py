"""`RocketSubscriber`: the handlers of one topic and group, on a `PushConsumer`; without handlers, messages one by one.

The push consumer calls `_handle` with each message. That runs FastStream's middlewares and the handler, and returns
when the message is settled, with what the consumer is to do: so retries, dead letters, the order of queues and commits
are the SDK's. `get_one` and iteration receive with a `SimpleConsumer` instead.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from faststream._internal.configs import SubscriberSpecificationConfig, SubscriberUsecaseConfig
from faststream._internal.constants import EMPTY
from faststream._internal.endpoint.publisher import PublisherProto
from faststream._internal.endpoint.subscriber import SubscriberSpecification, SubscriberUsecase
from faststream._internal.endpoint.subscriber.call_item import CallsCollection
from faststream._internal.endpoint.utils import process_msg
from faststream.exceptions import SetupError, StopConsume
from faststream.message import StreamMessage
from faststream.middlewares import AckPolicy
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import Message as MessageSpec
from faststream.specification.schema import Operation, SubscriberSpec

from skylark.mqcommon.errors import BrokerError, RouteNotFound, SkylarkError
from skylark.remoting.protocol.codes import ResponseCode
from skylark.sdk.aio.facade import Facade
from skylark.sdk.aio.push import PushConsumer
from skylark.sdk.aio.simple import SimpleConsumer
from skylark.sdk.consumer.expression import Sql
from skylark.sdk.consumer.outcome import ConsumeFrom, ConsumeResult, Result
from skylark.sdk.consumer.popped import ReceivedMessage
from skylark.sdk.consumer.retry_policy import RetryPolicy
from skylark.sdk.consumer.simple import MAX_COUNT
from skylark.sdk.integrations.faststream.config import LOGGED_ID, RocketBrokerConfig
from skylark.sdk.integrations.faststream.message import Handling, Popped, Raw, Rejected, RocketMessage, RocketParser
from skylark.sdk.integrations.faststream.producing import ReplyPublisher

# How long late calls of handlers wait for their consumer to stop calling. Then their messages are given back.
LEAVING_S = 0.5
# How often a subscriber checks whether a missing topic exists now.
NO_TOPIC_PAUSE_S = 0.25
# How long one request of an iteration waits.
WAIT_S = 15.0
# The shortest timeout that the SDK accepts.
LEAST_MS = 1


@dataclass(kw_only=True)
class ConsumeOptions:
    """How a subscriber consumes: the arguments of ``broker.subscriber`` that are RocketMQ's."""

    topic: str
    group: str | None
    tags: str
    sql: str | None
    orderly: bool
    broadcast: bool
    batch: bool
    batch_size: int
    max_workers: int
    consume_from: ConsumeFrom
    retry: RetryPolicy | None
    options: Mapping[str, Any]

    def __post_init__(self) -> None:
        if self.sql is not None and self.tags != "*":
            raise SetupError("give tags or sql, not both: in SQL the tag is TAGS = 'tea'")
        self.expression: str | Sql = self.tags if self.sql is None else Sql(self.sql)

    @property
    def policy(self) -> RetryPolicy:
        """The retry policy, by which a message that was refused for good becomes a dead letter."""
        policy = self.retry or RetryPolicy()
        given = policy.dead_letter_on
        return replace(policy, dead_letter_on=(*(given if isinstance(given, tuple) else (given,)), Rejected))


@dataclass(kw_only=True)
class SubscriberConfig(SubscriberUsecaseConfig):
    """The configuration for FastStream's base class."""

    _outer_config: RocketBrokerConfig = field(repr=False)

    @property
    def ack_policy(self) -> AckPolicy:
        """A failure has the message delivered again, unless the subscriber, a router or the broker say otherwise."""
        for policy in (self._ack_policy, self._outer_config.ack_policy):
            if policy is not EMPTY:
                return AckPolicy(policy)
        return AckPolicy.NACK_ON_ERROR


@dataclass(kw_only=True)
class SubscriberSpecConfig(SubscriberSpecificationConfig):
    """The AsyncAPI configuration of a subscriber."""

    topic: str


class RocketSubscriberSpec(SubscriberSpecification[Any, Any]):
    """The part of a subscriber in the AsyncAPI schema."""

    @property
    def topic(self) -> str:
        """The topic, with the prefix of routers."""
        return f"{self._outer_config.prefix}{self.config.topic}"

    @property
    def channel_labels(self) -> list[str]:
        """The names of the subscriber's channels."""
        return [self.topic]

    def get_schema(self) -> dict[str, SubscriberSpec]:
        """The channel."""
        message = MessageSpec(title=f"{self.name}:Message", payload=resolve_payloads(self.get_payloads()))
        return {
            self.name: SubscriberSpec(
                address=self.topic,
                description=self.description,
                operation=Operation(message=message, bindings=None),
                bindings=None,
            )
        }


class RocketSubscriber(SubscriberUsecase[Any]):
    """The subscriber of one topic and group: its handlers run on a `PushConsumer`, `get_one` on a `SimpleConsumer`."""

    _outer_config: RocketBrokerConfig

    def __init__(
        self,
        config: SubscriberConfig,
        specification: RocketSubscriberSpec,
        calls: CallsCollection[Any],
        consuming: ConsumeOptions,
    ) -> None:
        self._raw_parser = parser = RocketParser()
        config.parser = parser.parse_batch if consuming.batch else parser.parse_message
        config.decoder = parser.decode_batch if consuming.batch else parser.decode_message
        super().__init__(config, specification, calls)
        self._own_config = config
        self.consuming = consuming
        self._spec = specification
        self._consumer: PushConsumer | None = None
        self._simple: SimpleConsumer | None = None
        # Several tasks may open the `SimpleConsumer` at once.
        self._opening = asyncio.Lock()
        # Running handlers of messages that were acknowledged first: the consumer no longer knows them.
        self._running: set[asyncio.Task[None]] = set()
        self._places = asyncio.Semaphore(consuming.max_workers)
        self._leaving: asyncio.Task[None] | None = None

    @property
    def topic(self) -> str:
        """The topic, with the prefix of routers."""
        return self._spec.topic

    @property
    def group(self) -> str:
        """The consumer group: the given one, else ``<group of the broker>-<topic>``. SetupError without both."""
        if self.consuming.group is not None:
            return self.consuming.group
        group = self._outer_config.group
        if group is None:
            raise SetupError(
                f"the subscriber of {self.topic} has no consumer group: give RocketBroker(..., group='shop'), which "
                f"makes it 'shop-{self.topic}', or subscriber(..., group='shop-{self.topic}')"
            )
        return f"{group}-{self.topic}"

    def get_log_context(self, message: StreamMessage[Any] | None) -> dict[str, str]:
        """The columns of each line of the log."""
        # A logger of FastStream shows the first characters of an id, which are equal in all ids of one producer.
        shown = super().get_log_context(message)
        return {"topic": self.topic, "group": self.group, **shown, "message_id": shown["message_id"][-LOGGED_ID:]}

    # --- life

    async def start(self) -> None:
        """Join the group, if there are handlers."""
        await super().start()
        self._leaving = None
        if self.calls and not self._outer_config.is_in_memory:
            self._consumer = await self._joined()
        self._post_start()

    def _build_fastdepends_model(self) -> None:
        # Both ways of starting a subscriber call this first: a real start, and a start by `TestRocketBroker`.
        self._read_policy()
        super()._build_fastdepends_model()

    def _read_policy(self) -> None:
        """Read the acknowledgement policy, which is fixed from now on.

        FastStream reads the policy when a subscriber is made. A router's subscriber is made before its broker is known,
        and the policy of a broker would not hold for it: with MANUAL its messages would be acknowledged by themselves.
        """
        self.ack_policy = self._own_config.ack_policy
        self._SubscriberUsecase__auto_ack_disabled = self._own_config.auto_ack_disabled

    async def _joined(self) -> PushConsumer:
        consuming, graceful_s, group = self.consuming, self._outer_config.graceful_timeout, self.group
        # Breaking this rule of RocketMQ loses messages, so it is checked here, where the mistake is made.
        if (other := self._outer_config.joined.get(group)) is not None:
            raise SetupError(
                f"group {group} has two subscribers, of the topics {other} and {self.topic}: members of a group must "
                "subscribe to the same, or they lose messages; give each a group of its own: subscriber(..., group=...)"
            )
        options: dict[str, Any] = {
            "batch_handler" if consuming.batch else "handler": self._handle,
            "stop_timeout_ms": max((graceful_s or 0) * 1000, LEAST_MS),
            **consuming.options,
        }
        consumer = PushConsumer(
            self._outer_config.client,
            group=group,
            subscriptions={self.topic: consuming.expression},
            batch_size=consuming.batch_size,
            concurrency=consuming.max_workers,
            orderly=consuming.orderly,
            broadcast=consuming.broadcast,
            consume_from=consuming.consume_from,
            retry=consuming.policy,
            **options,
        )
        await consumer.__aenter__()
        self._outer_config.joined[group] = self.topic
        return consumer

    async def stop(self) -> None:
        """Let running handlers finish, for ``graceful_timeout`` seconds at most; commit, and leave the group."""
        if self._leaving is not None and self._leaving is not asyncio.current_task():
            await self._leaving
        consumer, self._consumer = self._consumer, None
        simple, self._simple = self._simple, None
        # Consumers first, as they wait for handlers. FastStream drops messages that come after its own stop.
        try:
            if consumer is not None:
                self._outer_config.joined.pop(consumer.group)
                # Its own method warns of a user's block that ends early. Here the user has no block.
                await Facade.__aexit__(consumer, None, None, None)
            if simple is not None:
                await simple.__aexit__(None, None, None)
        finally:
            await super().stop()
            for task in self._running:
                task.cancel()

    def _leave(self) -> None:
        """Stop at the request of a handler. A consumer waits for its handlers, so no handler can wait for the stop."""
        if self._leaving is None:
            self._leaving = asyncio.create_task(self.stop())

    # --- with handlers

    async def _handle(self, raw: Any) -> Result:
        """Handle one message or batch of the push consumer, and return its result."""
        # A handler has asked to stop, and the consumer still has messages: they go back without a call.
        if self._leaving is not None:
            await asyncio.sleep(LEAVING_S)
            return ConsumeResult.SUSPEND if self.consuming.orderly else ConsumeResult.LATER
        delivery = Handling()
        if self.ack_policy is AckPolicy.ACK_FIRST and not self.consuming.orderly:
            # The message counts as consumed before its handler has run, so the consumer's own limit of handlers does
            # not hold for it.
            await self._places.acquire()
            task = asyncio.create_task(self._process(raw, delivery))
            self._running.add(task)
            task.add_done_callback(lambda task: self._ended(task, delivery))
            await delivery.settled.wait()
        else:
            await self._process(raw, delivery)
            # With MANUAL the program may settle the message later, but not after a failed or stopped handler.
            if self.ack_policy is AckPolicy.MANUAL and delivery.error is None and self._leaving is None:
                await delivery.settled.wait()
        return delivery.result(self.ack_policy)

    def _ended(self, task: asyncio.Task[None], delivery: Handling) -> None:
        self._running.discard(task)
        self._places.release()
        delivery.settled.set()

    async def _process(self, raw: Raw, delivery: Handling) -> None:
        """Run middlewares and handlers. FastStream logs their exceptions, and ``delivery`` keeps them."""
        # FastStream passes nothing from here to the parser but the message itself, so the parser finds the settlement
        # by the identity of the message.
        settlements = self._raw_parser.settlements
        settlements[id(raw)] = delivery
        try:
            await self.process_message(raw)
        except StopConsume:
            self._leave()
        except SystemExit:
            self._leave()
            if app := self._outer_config.context.get("app"):
                app.exit()
        except Exception as error:
            delivery.error = error
        finally:
            del settlements[id(raw)]

    def _make_response_publisher(self, message: StreamMessage[Any]) -> Sequence[PublisherProto]:
        return (ReplyPublisher(self._outer_config.producer, message),)

    # --- without handlers

    async def get_one(self, *, timeout: float = 5.0) -> RocketMessage | None:
        """The next message, which the caller acknowledges; None when there is none in time.

        Any number of programs share a group in this way. A message that is neither acknowledged nor refused within
        ``invisible_ms`` is delivered again.
        """
        assert not self.calls, "a subscriber with handlers gives its messages to them: get_one() needs one without"
        simple = await self._opened_simple()
        return await self._parsed(simple, await self._receive(simple, timeout))

    async def __aiter__(self) -> AsyncIterator[RocketMessage]:
        """Messages, one after another, which the caller acknowledges; until the subscriber stops."""
        assert not self.calls, "a subscriber with handlers gives its messages to them: iteration needs one without"
        simple = await self._opened_simple()
        while self._simple is simple:
            try:
                found = await self._receive(simple, WAIT_S)
            except SkylarkError:
                if self._simple is simple:
                    raise
                return  # it was stopped
            message = await self._parsed(simple, found)
            if message is not None:
                yield message

    async def _receive(self, simple: SimpleConsumer, wait_s: float) -> list[ReceivedMessage]:
        """The next messages; empty when there are none in time. Waits for a topic that does not exist yet."""
        deadline = time.monotonic() + wait_s
        while True:
            left_s = max(deadline - time.monotonic(), 0)
            try:
                return await simple.receive(self._most, wait_ms=int(left_s * 1000))
            except (RouteNotFound, BrokerError) as error:
                # The route may exist before the topic: the default topic's route, by which the first message makes the
                # topic.
                if isinstance(error, BrokerError) and error.code != ResponseCode.TOPIC_NOT_EXIST:
                    raise
                if left_s <= 0:
                    return []
                await asyncio.sleep(min(NO_TOPIC_PAUSE_S, left_s))

    @property
    def _most(self) -> int:
        # One by one: further messages would be hidden from other members while the caller works on the first.
        return min(self.consuming.batch_size, MAX_COUNT) if self.consuming.batch else 1

    async def _opened_simple(self) -> SimpleConsumer:
        consuming = self.consuming
        self._read_policy()  # a broker that is connected but not started has started no subscriber
        if isinstance(consuming.expression, Sql):
            raise SetupError("sql needs a handler: get_one() and iteration choose messages by tags only")
        async with self._opening:
            if self._simple is None:
                simple = SimpleConsumer(
                    self._outer_config.client,
                    group=self.group,
                    subscriptions={self.topic: consuming.tags},
                    consume_from=consuming.consume_from,
                    **consuming.options,
                )
                await simple.__aenter__()
                self._simple = simple
            return self._simple

    async def _parsed(self, simple: SimpleConsumer, found: list[ReceivedMessage]) -> RocketMessage | None:
        if not found:
            return None
        raw: Raw = found if self.consuming.batch else found[0]
        settlements = self._raw_parser.settlements
        parser, decoder = self._get_parser_and_decoder()
        context = self._outer_config.context
        settlements[id(raw)] = Popped(simple, found)
        try:
            message = await process_msg(
                msg=raw,
                middlewares=(make(raw, context=context) for make in self._broker_middlewares),
                parser=parser,
                decoder=decoder,
            )
        finally:
            del settlements[id(raw)]
        # A user's parser may make another message; FastStream requires it to be a message of this class.
        parsed = cast(RocketMessage, message)
        if self.ack_policy is AckPolicy.ACK_FIRST:
            await parsed.ack()
        return parsed
