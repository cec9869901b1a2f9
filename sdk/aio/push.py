"""`PushConsumer` for asyncio."""

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from skylark.mqcommon.arguments import check_int, check_text
from skylark.mqcommon.message.message import MessageExt
from skylark.mqcommon.message.queue import MessageQueue
from skylark.mqcommon.names import DELAY_LEVELS
from skylark.sdk.aio.facade import Client, Facade, call_of
from skylark.sdk.aio.handlers import in_loop, in_tasks
from skylark.sdk.aio.portal import Portal
from skylark.sdk.checked import Count, GroupName, Milliseconds, NotNegative, TopicName
from skylark.sdk.consumer import stream_message
from skylark.sdk.consumer.allocate import Strategy
from skylark.sdk.consumer.arrow import ArrowHandler
from skylark.sdk.consumer.expression import Subscriptions
from skylark.sdk.consumer.outcome import BatchHandler, ConsumeFrom, GivenHandler
from skylark.sdk.consumer.problems import OnProblem, Problem
from skylark.sdk.consumer.push import (
    MAX_CACHED_BYTES,
    MAX_CACHED_MESSAGES,
    MAX_QUEUE_BYTES,
    MAX_QUEUE_MESSAGES,
    MAX_RECONSUME_TIMES,
    PULL_BYTES,
    PULL_COUNT,
    WAIT_MS,
    CrossingMessages,
    early_end,
)
from skylark.sdk.consumer.push import PushConsumer as TrioPushConsumer
from skylark.sdk.consumer.retry_policy import RetryPolicy
from skylark.sdk.credentials import GivenCredentials, GivenTls
from skylark.sdk.endpoint import DEFAULT_TIMEOUT_MS
from skylark.sdk.nameservers import NameServerSource
from skylark.sdk.namespaces import Namespace
from skylark.sdk.starting import START_TIMEOUT_MS
from skylark.sdk.traces.sink import Trace
from skylark.sdk.values.handlers import reading_values


class StreamMessage(MessageExt):
    """A message that its consumer holds until `ack`, `nack` or the timeout. Only the first of these has an effect."""

    __slots__ = ("_message", "_portal", "_taken")

    def __init__(
        self, message: stream_message.StreamMessage, taken: CrossingMessages, portal: Portal[TrioPushConsumer]
    ) -> None:
        super().__init__(message._data, message._at, message.broker_name)
        self._record = message._record
        self._message = message
        self._portal = portal
        self._taken = taken

    async def ack(self) -> None:
        """Acknowledge the message as consumed."""
        self._taken.ack(self._message)

    async def nack(self, delay_level: int = 0, reason: str = "") -> None:
        """Deliver the message again: after the delay of this level, or by the number of failures so far (0).

        ``reason`` is kept with the message, in case that it becomes a dead letter.
        """
        check_int("delay_level", delay_level, 0, DELAY_LEVELS)
        check_text("reason", reason)
        await self._portal.call(lambda _: self._message.nack(delay_level, reason))


class PushConsumer(Facade[TrioPushConsumer], of=TrioPushConsumer):
    """`sdk.PushConsumer` for asyncio.

    Handlers are coroutine functions, or plain functions that do not block; they run in the loop that opens the
    consumer, and ``on_problem`` is called there. A ``strategy`` that is a function is called in the client's thread.
    """

    def __init__(
        self,
        nameserver: NameServerSource | Client | None = None,
        *,
        group: GroupName,
        subscriptions: Subscriptions,
        handler: GivenHandler | None = None,
        batch_handler: BatchHandler | None = None,
        arrow_handler: ArrowHandler | None = None,
        arrow_columns: Sequence[str] | None = None,
        batch_size: Count = 32,
        concurrency: Count = 20,
        orderly: bool = False,
        broadcast: bool = False,
        consume_from: ConsumeFrom = ConsumeFrom.LAST_OFFSET,
        consume_timestamp_ms: int | None = None,
        strategy: str | Sequence[MessageQueue] | Strategy = "averagely",
        max_reconsume_times: NotNegative = MAX_RECONSUME_TIMES,
        retry: RetryPolicy | None = None,
        consume_timeout_ms: Milliseconds = 900000,
        suspend_ms: Milliseconds = 1000,
        max_queue_messages: Count = MAX_QUEUE_MESSAGES,
        max_queue_bytes: Count = MAX_QUEUE_BYTES,
        max_cached_messages: Count = MAX_CACHED_MESSAGES,
        max_cached_bytes: Count = MAX_CACHED_BYTES,
        pull_count: Count = PULL_COUNT,
        pull_bytes: Count = PULL_BYTES,
        wait_ms: NotNegative = WAIT_MS,
        commit_interval_ms: Milliseconds = 1000,
        stop_timeout_ms: Milliseconds = 30000,
        instance_name: str = "DEFAULT",
        local_offsets_dir: str | None = None,
        timeout_ms: Milliseconds = DEFAULT_TIMEOUT_MS,
        namespace: Namespace = "",
        credentials: GivenCredentials = None,
        tls: GivenTls = None,
        trace: Trace = False,
        trace_topic: TopicName | None = None,
        start_timeout_ms: Milliseconds | None = START_TIMEOUT_MS,
        on_problem: OnProblem | None = None,
    ) -> None:
        super().__init__(
            nameserver,
            {
                **locals(),
                "handler": in_tasks(reading_values(handler)),
                "batch_handler": in_tasks(batch_handler),
                "arrow_handler": in_tasks(arrow_handler),
                "on_problem": in_loop(on_problem),
            },
        )
        self._taken: CrossingMessages | None = None
        self.group = group

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._loop.post(early_end)
        await super().__aexit__(kind, error, trace)

    # --- messages of a consumer without a handler; several tasks may take them

    def __aiter__(self) -> Self:
        """Raise InvalidArgument if the consumer has a handler."""
        self._loop.call_sync(lambda consumer: consumer.__aiter__())
        return self

    async def __anext__(self) -> StreamMessage:
        """The next message; StopAsyncIteration when the consumer is closed."""
        client, taken = self._loop.opened(), self._taken
        if taken is None or taken.client is not client:
            taken = self._taken = CrossingMessages(client)
        while (message := taken.pop()) is None:
            if not await self._loop.call(taken.fill):
                raise StopAsyncIteration
        return StreamMessage(message, taken, self._loop)

    # --- subscriptions

    subscribe = call_of(TrioPushConsumer.subscribe)
    unsubscribe = call_of(TrioPushConsumer.unsubscribe)
    pause = call_of(TrioPushConsumer.pause)
    resume = call_of(TrioPushConsumer.resume)

    # --- status

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues that this member owns now, sorted. Queue -1 of a broker means pops from any of its queues."""
        return self._loop.call_sync(lambda consumer: consumer.queues)

    @property
    def problem(self) -> Problem | None:
        """What keeps the consumer from working now (the oldest problem), and the error; None when all is well."""
        return self._loop.call_sync(lambda consumer: consumer.problem)

    @property
    def pulled(self) -> int:
        """How many messages were pulled."""
        return self._loop.call_sync(lambda consumer: consumer.pulled)

    @property
    def consumed(self) -> int:
        """How many messages were consumed."""
        return self._loop.call_sync(lambda consumer: consumer.consumed)

    @property
    def failed(self) -> int:
        """How many messages were not consumed and must be delivered again; a message that failed twice counts twice."""
        return self._loop.call_sync(lambda consumer: consumer.failed)

    @property
    def dropped(self) -> int:
        """How many messages were given up: by the retry policy, or after too many failures of a broadcast message."""
        return self._loop.call_sync(lambda consumer: consumer.dropped)

    @property
    def traces_dropped(self) -> int:
        """How many records of the trace were dropped, because brokers did not take them fast enough or at all."""
        return self._loop.call_sync(lambda consumer: consumer.traces_dropped)

    @property
    def cached(self) -> int:
        """How many messages are in memory: pulled, and not consumed yet."""
        return self._loop.call_sync(lambda consumer: consumer.cached)
