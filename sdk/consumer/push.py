"""`PushConsumer`: a member of a consumer group, whose handler is called with the messages of its share of the queues.

machinery.py has the parts that do the work.
"""

from collections.abc import Sequence
from types import TracebackType
from typing import Self

import trio

from mqcommon.errors import InvalidArgument
from mqcommon.message.queue import MessageQueue
from remoting.protocol.requests.clients import SUB_ALL
from sdk.checked import Count, GroupName, Milliseconds, NotNegative, TopicName, check_topic_name, checked_methods
from sdk.consumer.allocate import Strategy
from sdk.consumer.arrow_handler import ArrowHandler, batch_handler_of
from sdk.consumer.expression import Expression, Sql, Subscriptions
from sdk.consumer.machinery import Machinery
from sdk.consumer.outcome import BatchHandler, ConsumeFrom, Handler
from sdk.consumer.problems import OnProblem, Problem
from sdk.consumer.settings import Settings, in_namespace
from sdk.consumer.stream_message import StreamMessage
from sdk.credentials import GivenCredentials
from sdk.endpoint import DEFAULT_TIMEOUT_MS
from sdk.given_tls import GivenTls
from sdk.nameserver_source import NameServerSource
from sdk.namespaces import Namespace
from sdk.runtime import FORKS, survived
from sdk.shared import Client, ClientHandle
from sdk.starting import START_TIMEOUT_MS
from sdk.traces.sink import Trace

MAX_QUEUE_MESSAGES = 16_384
MAX_QUEUE_BYTES = 8 * 1024 * 1024
MAX_CACHED_MESSAGES = 262_144
MAX_CACHED_BYTES = 64 * 1024 * 1024
PULL_COUNT = 8_192
PULL_BYTES = 1024 * 1024
WAIT_MS = 15_000
# A stream lets other tasks run after so many messages.
YIELD_EVERY = 64


@checked_methods
class PushConsumer:
    """``async with PushConsumer("127.0.0.1:9876", group="g", subscriptions={"orders": "*"}, handler=handle): ...``

    ``nameserver`` says where the NameServers are, or is a shared `Client`; by default $NAMESRV_ADDR. ``subscriptions``
    maps topics to the tags to read, ``"*"`` or ``"A || B"``, or to an `Sql`. Names are in ``namespace``, by default
    that of the `Client`. See docs/consumers.md for the other arguments.

    A handler returns None or ``ConsumeResult.SUCCESS`` when its messages are consumed. ``ConsumeResult.LATER``,
    ``Later(delay_level)`` and an exception have them delivered again; ``ConsumeResult.SUSPEND`` is for ``orderly``.
    Any other value is a TypeError: it is logged, and counts as an exception.

    Opening it raises NoNameServer when no NameServer answers within ``start_timeout_ms``, and BrokerError when brokers
    refuse its credentials, permissions, group or subscriptions; with None it starts and goes on trying. What fails
    later is in `problem`, and ``on_problem`` is called with it: a plain function, which must not block.
    """

    def __init__(
        self,
        nameserver: NameServerSource | Client | None = None,
        *,
        group: GroupName,
        subscriptions: Subscriptions,
        handler: Handler | None = None,
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
        max_reconsume_times: NotNegative = 16,
        consume_timeout_ms: Milliseconds = 900_000,
        suspend_ms: Milliseconds = 1_000,
        max_queue_messages: Count = MAX_QUEUE_MESSAGES,
        max_queue_bytes: Count = MAX_QUEUE_BYTES,
        max_cached_messages: Count = MAX_CACHED_MESSAGES,
        max_cached_bytes: Count = MAX_CACHED_BYTES,
        pull_count: Count = PULL_COUNT,
        pull_bytes: Count = PULL_BYTES,
        wait_ms: NotNegative = WAIT_MS,
        commit_interval_ms: Milliseconds = 1_000,
        stop_timeout_ms: Milliseconds = 30_000,
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
        self.group = group
        self._client = ClientHandle(nameserver, timeout_ms, namespace=namespace, credentials=credentials, tls=tls)
        self._names = names = self._client.names
        self._settings = Settings(
            group=names.group(group),
            handler=handler,
            batch_handler=batch_handler_of(batch_handler, arrow_handler, arrow_columns),
            batch_size=batch_size,
            concurrency=concurrency,
            orderly=orderly,
            broadcast=broadcast,
            consume_from=consume_from,
            consume_timestamp_ms=consume_timestamp_ms,
            strategy=in_namespace(strategy, names),
            max_reconsume_times=max_reconsume_times,
            consume_timeout_ms=consume_timeout_ms,
            suspend_ms=suspend_ms,
            max_queue_messages=max_queue_messages, max_queue_bytes=max_queue_bytes,
            max_cached_messages=max_cached_messages, max_cached_bytes=max_cached_bytes,
            pull_count=pull_count, pull_bytes=pull_bytes,
            wait_ms=wait_ms, commit_interval_ms=commit_interval_ms, stop_timeout_ms=stop_timeout_ms,
            instance_name=instance_name, local_offsets_dir=local_offsets_dir,
            trace=trace, trace_topic=trace_topic,
        )  # fmt: skip
        self._machinery = Machinery(self._client, self._settings, on_problem)
        self._start_timeout_ms = start_timeout_ms
        for topic, expression in subscriptions.items():
            self._note(topic, expression)
        self._yield_in = YIELD_EVERY

    # --- life

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        try:
            await self._machinery.start(self._start_timeout_ms)
        except BaseException:
            await self._client.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let running handlers finish, commit, and leave the group."""
        if self._client.forks == FORKS.count:
            with survived("stopping the consumer"), trio.CancelScope(shield=True):
                await self._machinery.stop()
        await self._client.__aexit__(kind, error, trace)

    # --- messages of a consumer without a handler

    def __aiter__(self) -> Self:
        if not self._settings.is_stream:
            raise InvalidArgument("this consumer has a handler, which gets the messages; leave it out to iterate")
        return self

    async def __anext__(self) -> StreamMessage:
        self._client.check_open()
        if not self._yield_in:
            self._yield_in = YIELD_EVERY
            await trio.lowlevel.checkpoint()
        self._yield_in -= 1
        message = await self._machinery.next_message()
        message.give()
        return message

    # --- used by streams in other threads and loops

    async def take(self, most: Count) -> list[StreamMessage]:
        """Wait for the next message; with it those that can be had without waiting. None at the end.

        The caller calls `StreamMessage.give` when it gives one to its own caller.
        """
        self._client.check_open()
        taken: list[StreamMessage] = []
        try:
            message: StreamMessage | None = await self._machinery.next_message()
        except StopAsyncIteration:
            return taken
        while message is not None:
            taken.append(message)
            # Not by another wait: somebody else may take the last message meanwhile, and these would wait for the next.
            message = self._machinery.ready_message() if len(taken) < most else None
        return taken

    # --- subscriptions

    async def subscribe(self, topic: TopicName, expression: Expression = SUB_ALL) -> None:
        """Read ``topic`` too, or read it with another expression. BrokerError when a broker refuses an `Sql`."""
        self._client.check_open()
        check_topic_name("a topic of subscriptions", topic)
        await self._machinery.check_subscription(self._names.topic(topic), expression)
        self._note(topic, expression)
        self._machinery.subscriptions_changed()

    async def unsubscribe(self, topic: TopicName) -> None:
        """Do not read ``topic`` any more; messages that no handler has taken yet are left to others."""
        self._client.check_open()
        topic = self._names.topic(topic)
        if topic != self._settings.retry_topic and self._machinery.subscriptions.pop(topic, None) is not None:
            self._machinery.subscriptions_changed()

    async def pause(self, what: str | Sequence[MessageQueue]) -> None:
        """Do not pull a topic, or some queues, until `resume`. Messages in memory still go to the handler."""
        self._machinery.set_paused(self._listed(what), paused=True)

    async def resume(self, what: str | Sequence[MessageQueue]) -> None:
        """Pull a topic, or some queues, again."""
        self._machinery.set_paused(self._listed(what), paused=False)

    def _note(self, topic: str, expression: str | Sql) -> None:
        check_topic_name("a topic of subscriptions", topic)
        self._machinery.reader.tags_of(expression)  # raises if the expression is invalid
        self._machinery.subscriptions[self._names.topic(topic)] = expression

    def _listed(self, what: str | Sequence[MessageQueue]) -> list[str | MessageQueue]:
        return [self._names.topic(what)] if isinstance(what, str) else [self._names.queue(mq) for mq in what]

    # --- what users look at

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues that are this member's now, sorted. Queue -1 of a broker is any of its queues, to pop from."""
        machinery = self._machinery
        return sorted(map(self._names.plain_queue, [*machinery.owning.owned, *machinery.popping.owned]))

    @property
    def problem(self) -> Problem | None:
        """What keeps the consumer from working now, and the error; None when all is well. Of several the oldest."""
        return self._machinery.problems.first

    @property
    def pulled(self) -> int:
        """How many messages were pulled."""
        return self._machinery.counters.pulled

    @property
    def consumed(self) -> int:
        """How many messages were consumed."""
        return self._machinery.counters.consumed

    @property
    def failed(self) -> int:
        """How many messages were not consumed and must be delivered again; one that failed twice counts twice."""
        return self._machinery.counters.failed

    @property
    def traces_dropped(self) -> int:
        """How many records of the trace were dropped, because brokers did not take them fast enough or at all."""
        return 0 if self._machinery.tracing is None else self._machinery.tracing.dropped

    @property
    def cached(self) -> int:
        """How many messages are in memory: pulled, and not consumed yet."""
        return self._machinery.room.messages
