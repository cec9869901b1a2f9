"""`PushConsumer` for asyncio."""

from collections.abc import Sequence
from typing import Self

from mqcommon.message.queue import MessageQueue
from sdk.aio.client import Client
from sdk.aio.facade import Facade, call_of, loop_of
from sdk.aio.handlers import elsewhere, in_loop
from sdk.aio.messages import ConsumerStream, StreamMessage
from sdk.checked import Count, GroupName, Milliseconds, NotNegative, TopicName
from sdk.consumer.allocate import Strategy
from sdk.consumer.arrow import ArrowHandler
from sdk.consumer.expression import Subscriptions
from sdk.consumer.outcome import BatchHandler, ConsumeFrom, Handler
from sdk.consumer.problems import OnProblem, Problem
from sdk.consumer.push import (
    MAX_CACHED_BYTES,
    MAX_CACHED_MESSAGES,
    MAX_QUEUE_BYTES,
    MAX_QUEUE_MESSAGES,
    PULL_BYTES,
    PULL_COUNT,
    WAIT_MS,
)
from sdk.consumer.push import PushConsumer as TrioPushConsumer
from sdk.credentials import GivenCredentials, GivenTls
from sdk.endpoint import DEFAULT_TIMEOUT_MS
from sdk.nameservers import NameServerSource
from sdk.namespaces import Namespace
from sdk.starting import START_TIMEOUT_MS
from sdk.traces.sink import Trace


class PushConsumer(Facade[TrioPushConsumer]):
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

    Handlers are coroutine functions, or plain ones that do not block; they run in the loop that opens the consumer, and
    ``on_problem`` is called there. A ``strategy`` that is a function is called in the client's thread.
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
        handler_elsewhere = elsewhere(handler)
        batch_handler_elsewhere = elsewhere(batch_handler)
        arrow_handler_elsewhere = elsewhere(arrow_handler)
        on_problem_elsewhere = in_loop(on_problem)
        super().__init__(
            loop_of(
                nameserver,
                lambda client: TrioPushConsumer(
                    client,
                    group=group,
                    subscriptions=subscriptions,
                    handler=handler_elsewhere,
                    batch_handler=batch_handler_elsewhere,
                    arrow_handler=arrow_handler_elsewhere,
                    arrow_columns=arrow_columns,
                    batch_size=batch_size,
                    concurrency=concurrency,
                    orderly=orderly,
                    broadcast=broadcast,
                    consume_from=consume_from,
                    consume_timestamp_ms=consume_timestamp_ms,
                    strategy=strategy,
                    max_reconsume_times=max_reconsume_times,
                    consume_timeout_ms=consume_timeout_ms,
                    suspend_ms=suspend_ms,
                    max_queue_messages=max_queue_messages,
                    max_queue_bytes=max_queue_bytes,
                    max_cached_messages=max_cached_messages,
                    max_cached_bytes=max_cached_bytes,
                    pull_count=pull_count,
                    pull_bytes=pull_bytes,
                    wait_ms=wait_ms,
                    commit_interval_ms=commit_interval_ms,
                    stop_timeout_ms=stop_timeout_ms,
                    instance_name=instance_name,
                    local_offsets_dir=local_offsets_dir,
                    timeout_ms=timeout_ms,
                    namespace=namespace,
                    credentials=credentials,
                    tls=tls,
                    trace=trace,
                    trace_topic=trace_topic,
                    start_timeout_ms=start_timeout_ms,
                    on_problem=on_problem_elsewhere,
                ),
            ),
            handler_elsewhere,
            batch_handler_elsewhere,
            arrow_handler_elsewhere,
            on_problem_elsewhere,
        )
        self._stream = ConsumerStream(self._loop)
        self.group = group

    # --- messages of a consumer without a handler

    def __aiter__(self) -> Self:
        self._stream.start()
        return self

    async def __anext__(self) -> StreamMessage:
        return await self._stream.next()

    # --- subscriptions

    subscribe = call_of(TrioPushConsumer.subscribe)
    unsubscribe = call_of(TrioPushConsumer.unsubscribe)
    pause = call_of(TrioPushConsumer.pause)
    resume = call_of(TrioPushConsumer.resume)

    # --- what users look at

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues that are this member's now, sorted. Queue -1 of a broker is any of its queues, to pop from."""
        return self._loop.call_sync(lambda consumer: consumer.queues)

    @property
    def problem(self) -> Problem | None:
        """What keeps the consumer from working now, and the error; None when all is well. Of several the oldest."""
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
        """How many messages were not consumed and must be delivered again; one that failed twice counts twice."""
        return self._loop.call_sync(lambda consumer: consumer.failed)

    @property
    def traces_dropped(self) -> int:
        """How many records of the trace were dropped, because brokers did not take them fast enough or at all."""
        return self._loop.call_sync(lambda consumer: consumer.traces_dropped)

    @property
    def cached(self) -> int:
        """How many messages are in memory: pulled, and not consumed yet."""
        return self._loop.call_sync(lambda consumer: consumer.cached)
