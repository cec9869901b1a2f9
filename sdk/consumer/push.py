"""`PushConsumer`: a member of a consumer group, whose handler is called with the messages of its share of the queues.

The parts: rebalance.py decides which queues are this member's, owning.py takes and gives them up, intake.py pulls them,
ready.py holds what waits for a handler, workers.py calls handlers, failures.py and returns.py care for messages that
were not consumed, offsets.py keeps what was. They run as tasks of the client, which outlives the cancellation of the
``async with`` block, so that a stop is graceful also then.
"""

import logging
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

import trio

from mqcommon.clock import SystemClock
from mqcommon.errors import InvalidArgument
from mqcommon.files import OsFiles
from mqcommon.message.queue import MessageQueue
from remoting.protocol.bodies.heartbeat import SUB_ALL
from sdk.checked import Count, GroupName, Milliseconds, NotNegative, TopicName, check_topic_name, checked_methods
from sdk.consumer.allocate import Strategy
from sdk.consumer.commits import Commits
from sdk.consumer.elsewhere import make_workers
from sdk.consumer.failures import Counters, Failures
from sdk.consumer.intake import Intake
from sdk.consumer.local_offsets import LocalOffsets
from sdk.consumer.offsets import GroupOffsets, OffsetStore
from sdk.consumer.orderly import Orderly
from sdk.consumer.outcome import BatchHandler, ConsumeFrom, Handler
from sdk.consumer.owned import Room
from sdk.consumer.owning import Owning
from sdk.consumer.push_member import PushMember
from sdk.consumer.reader import Reader
from sdk.consumer.ready import Ready
from sdk.consumer.rebalance import Rebalance
from sdk.consumer.replicas import Replicas
from sdk.consumer.returns import Returns
from sdk.consumer.settings import Settings
from sdk.consumer.stream_message import StreamMessage
from sdk.endpoint import DEFAULT_TIMEOUT_MS
from sdk.runtime import FORKS, survived
from sdk.shared import Client, ClientHandle

logger = logging.getLogger(__name__)

MAX_QUEUE_MESSAGES = 16_384
MAX_QUEUE_BYTES = 8 * 1024 * 1024
MAX_CACHED_MESSAGES = 262_144
MAX_CACHED_BYTES = 64 * 1024 * 1024
PULL_COUNT = 8_192
PULL_BYTES = 1024 * 1024
WAIT_MS = 15_000
# How long the last commits may take.
LAST_COMMITS_S = 5.0
# A stream lets other tasks run after so many messages.
YIELD_EVERY = 64


@checked_methods
class PushConsumer:
    """``async with PushConsumer("127.0.0.1:9876", group="g", subscriptions={"orders": "*"}, handler=handle): ...``

    ``nameserver`` is ``host:port;host:port`` or a shared `Client`, by default $NAMESRV_ADDR. ``subscriptions`` maps
    topics to the tags to read: ``"*"`` or ``"A || B"``. See docs/consumers.md for the other arguments.
    """

    def __init__(
        self,
        nameserver: str | Client | None = None,
        *,
        group: GroupName,
        subscriptions: Mapping[str, str],
        handler: Handler | None = None,
        batch_handler: BatchHandler | None = None,
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
        commit_interval_ms: Milliseconds = 5_000,
        stop_timeout_ms: Milliseconds = 30_000,
        instance_name: str = "DEFAULT",
        local_offsets_dir: str | None = None,
        timeout_ms: Milliseconds = DEFAULT_TIMEOUT_MS,
    ) -> None:
        self.group = group
        self._settings = Settings(
            group=group,
            handler=handler,
            batch_handler=batch_handler,
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
        )
        settings, clock = self._settings, SystemClock()
        self._client = ClientHandle(nameserver, timeout_ms=timeout_ms)
        self._instance = self._client.instance
        replicas = Replicas(self._client)
        self._reader = Reader(self._client, replicas, group)
        self._subscriptions: dict[str, str] = {}
        for topic, expression in subscriptions.items():
            self._check_subscription(topic, expression)
            self._subscriptions[topic] = expression
        if not broadcast:
            self._subscriptions[settings.retry_topic] = SUB_ALL
        self._counters = Counters()
        self._ready = Ready()
        self._room = Room(settings)
        self._commits = Commits(self._client, replicas, group)
        self._local = LocalOffsets(settings, OsFiles()) if broadcast else None
        offsets: OffsetStore = self._local or GroupOffsets(replicas, self._commits, group)
        returns = Returns(self._client, replicas, settings, clock)
        self._failures = Failures(settings, self._ready, returns, self._counters)
        self._workers = make_workers(settings, self._ready, self._failures, self._counters)
        ordered = Orderly(settings, self._room, returns, self._counters, clock)
        put = ordered.put if orderly else self._ready.put
        intake = Intake(settings, self._instance, self._reader, self._room, self._counters, clock, put)
        serve = [intake.pull, ordered.serve] if orderly else [intake.pull]
        self._owning = Owning(
            self._client, settings, replicas, offsets, self._room, self._ready, serve, lambda: self._rebalance.soon()
        )
        self._rebalance = Rebalance(
            self._client, settings, self._subscriptions, self._owning.owned, self._owning.change
        )
        nameservers = ";".join(self._instance.nameserver_addrs)
        self._member = PushMember(
            settings, nameservers, clock.now_ms(), self._subscriptions, self._owning.owned, self._rebalance.soon,
            self._owning.reset,
        )  # fmt: skip
        self._rebalancing = trio.CancelScope()
        self._handled = trio.Event()
        self._is_stopping = False
        self._yield_in = YIELD_EVERY

    # --- life

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        try:
            if self._local is not None:
                await self._local.open()
            self._client.join_consumer(self.group, self._member)
        except InvalidArgument:
            await self._client.__aexit__(None, None, None)
            raise
        self._instance.tell_brokers()
        nursery = self._client.nursery
        await nursery.start(self._owning.run)
        nursery.start_soon(self._ready.run)
        nursery.start_soon(self._run_handlers)
        nursery.start_soon(self._run_rebalance)
        nursery.start_soon(self._commit_often)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let running handlers finish, commit, and leave the group."""
        if self._client.forks == FORKS.count:
            with survived("stopping the consumer"), trio.CancelScope(shield=True):
                await self._stop()
        await self._client.__aexit__(kind, error, trace)

    async def _stop(self) -> None:
        self._is_stopping = True
        self._rebalancing.cancel()
        self._ready.clear()
        self._workers.stop()
        with trio.move_on_after(self._settings.stop_timeout_ms / 1000) as finishing:
            await self._handled.wait()
            await self._owning.give_up_all()
        if finishing.cancelled_caught:
            logger.warning("handlers still run after %d ms: cancelling them", self._settings.stop_timeout_ms)
        with trio.move_on_after(LAST_COMMITS_S):
            await self._owning.commit_leaving()
            await self._commits.close()
        if self._local is not None:
            await self._local.close()

    async def _run_handlers(self) -> None:
        try:
            if not self._settings.is_stream and not self._settings.orderly:
                await self._workers.run()
        finally:
            self._handled.set()

    async def _run_rebalance(self) -> None:
        with self._rebalancing:
            await self._rebalance.run()

    async def _commit_often(self) -> None:
        while True:
            await trio.sleep(self._settings.commit_interval_ms / 1000)
            with survived("committing offsets"):
                await self._owning.commit()

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
        while not (batches := self._ready.batches):
            if self._is_stopping:
                raise StopAsyncIteration
            await self._ready.wait()
        batch = batches[0]
        number = batch.taken
        batch.taken = number + 1
        if batch.taken == len(batch.done):
            batches.popleft()
        return StreamMessage(batch, number, self._failures, self._counters)

    # --- used by streams in other threads and loops

    async def take(self, most: Count) -> list[StreamMessage]:
        """Wait for the next message; with it those that can be had without waiting. None at the end."""
        taken: list[StreamMessage] = []
        while not taken or (self._ready.batches and len(taken) < most):
            message = await anext(self, None)
            if message is None:
                break
            taken.append(message)
        return taken

    # --- subscriptions

    async def subscribe(self, topic: TopicName, expression: str = SUB_ALL) -> None:
        """Read ``topic`` too, or read it with another expression."""
        self._check_subscription(topic, expression)
        self._client.check_open()
        self._subscriptions[topic] = expression
        self._subscriptions_changed()

    async def unsubscribe(self, topic: TopicName) -> None:
        """Do not read ``topic`` any more; messages that no handler has taken yet are left to others."""
        self._client.check_open()
        if topic != self._settings.retry_topic and self._subscriptions.pop(topic, None) is not None:
            self._subscriptions_changed()

    async def pause(self, what: str | Sequence[MessageQueue]) -> None:
        """Do not pull a topic, or some queues, until `resume`. Messages in memory still go to the handler."""
        self._owning.set_paused(_listed(what), paused=True)

    async def resume(self, what: str | Sequence[MessageQueue]) -> None:
        """Pull a topic, or some queues, again."""
        self._owning.set_paused(_listed(what), paused=False)

    def _subscriptions_changed(self) -> None:
        self._instance.membership.subscription_changed()
        self._instance.tell_brokers()
        self._rebalance.soon()

    def _check_subscription(self, topic: str, expression: str) -> None:
        check_topic_name("a topic of subscriptions", topic)
        self._reader.tags_of(expression)

    # --- what users look at

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues that are this member's now, sorted."""
        return sorted(self._owning.owned)

    @property
    def pulled(self) -> int:
        """How many messages were pulled."""
        return self._counters.pulled

    @property
    def consumed(self) -> int:
        """How many messages were consumed."""
        return self._counters.consumed

    @property
    def failed(self) -> int:
        """How many messages were not consumed and must be delivered again; one that failed twice counts twice."""
        return self._counters.failed

    @property
    def cached(self) -> int:
        """How many messages are in memory: pulled, and not consumed yet."""
        return self._room.messages


def _listed(what: str | Sequence[MessageQueue]) -> Sequence[str | MessageQueue]:
    return [what] if isinstance(what, str) else what
