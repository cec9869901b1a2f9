"""`PullConsumer`: reads queues at offsets of the caller's choice.

reader.py chooses the broker that is asked. A message's fields are decoded when they are read, so a pull has little
cost per message.
"""

from collections.abc import AsyncIterator
from functools import partial
from types import TracebackType
from typing import Literal, Self

import trio

from mqcommon.clock import SystemClock
from mqcommon.errors import InvalidArgument, RemotingError
from mqcommon.message.message import MessageExt
from mqcommon.message.queue import MessageQueue
from remoting.protocol.bodies.heartbeat import SUB_ALL
from sdk import broker_api
from sdk.checked import Count, GroupName, Milliseconds, NotNegative, Offset, TopicName, checked_methods
from sdk.consumer.commits import Commits
from sdk.consumer.member import PullMember
from sdk.consumer.reader import Reader
from sdk.consumer.replicas import Replicas
from sdk.consumer.result import PullBytes, PullResult
from sdk.consumer.stream import MessageStream
from sdk.endpoint import DEFAULT_TIMEOUT_MS
from sdk.runtime import FORKS, survived
from sdk.shared import Client, ClientHandle
from sdk.waiting import until_answered

MAX_COUNT = 32
MAX_BYTES = 4 * 1024 * 1024
# Large enough to make the fixed cost of a pull negligible. RocketMQ's brokers have lower limits of their own (32
# messages, 256 KiB).
STREAM_COUNT = 32_768
STREAM_BYTES = 1024 * 1024
STREAM_WAIT_MS = 15_000


@checked_methods
class PullConsumer:
    """``async with PullConsumer("127.0.0.1:9876", group="g") as consumer: ...``

    ``nameserver`` is ``host:port;host:port`` or a shared `Client`, by default $NAMESRV_ADDR. Offsets are committed for
    ``group``. ``timeout_ms`` is the timeout of each request; a pull's ``wait_ms`` is added to it. With ``heartbeat``
    brokers list this consumer in its group; without, it only reads.
    """

    def __init__(
        self,
        nameserver: str | Client | None = None,
        *,
        group: GroupName = "DEFAULT_CONSUMER",
        timeout_ms: Milliseconds = DEFAULT_TIMEOUT_MS,
        heartbeat: bool = True,
    ) -> None:
        self.group = group
        self._client = ClientHandle(nameserver, timeout_ms=timeout_ms)
        self._instance = self._client.instance
        self._member = PullMember(group, ";".join(self._instance.nameserver_addrs), SystemClock().now_ms())
        self._heartbeat = heartbeat
        self._replicas = Replicas(self._client)
        self._commits = Commits(self._client, self._replicas, group)
        self._reader = Reader(self._client, self._replicas, group)

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        if self._heartbeat:
            try:
                self._client.join_consumer(self.group, self._member)
            except InvalidArgument:
                await self._client.__aexit__(None, None, None)
                raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with survived("committing offsets"), trio.CancelScope(shield=True):
            await self._commits.close()
        await self._client.__aexit__(kind, error, trace)

    # --- queues and offsets

    async def message_queues(self, topic: TopicName) -> list[MessageQueue]:
        """The queues of ``topic`` that can be read, sorted; RouteNotFound when there is no such topic.

        The route is refreshed first; while no NameServer answers, the last known route is used.
        """
        instance = self._instance
        self._client.check_open()
        if instance.routes.get(topic) is None:
            route = await until_answered(lambda: instance.refresh(topic), self._client.timeout_ms, instance.backoff)
            return list(route.readable)
        try:
            route = await instance.refresh(topic)
        except RemotingError:
            known = instance.routes.get(topic)
            if known is None:
                raise
            route = known
        return list(route.readable)

    async def max_offset(self, mq: MessageQueue) -> int:
        """The offset that the queue's next message will get; while the master is unreachable, as a slave knows it."""
        return await self._replicas.ask(mq, lambda at: broker_api.max_offset(at, mq.topic, mq.queue_id))

    async def min_offset(self, mq: MessageQueue) -> int:
        """The offset of the queue's oldest message."""
        return await self._replicas.ask(mq, lambda at: broker_api.min_offset(at, mq.topic, mq.queue_id))

    async def search_offset(
        self, mq: MessageQueue, timestamp_ms: int, boundary: Literal["LOWER", "UPPER"] = "LOWER"
    ) -> int:
        """The offset of the queue's first message stored at or after ``timestamp_ms``.

        With ``boundary`` UPPER: of its last message stored at or before it.
        """
        return await self._replicas.ask(
            mq, lambda at: broker_api.search_offset(at, mq.topic, mq.queue_id, timestamp_ms, boundary=boundary)
        )

    async def earliest_store_time(self, mq: MessageQueue) -> int | None:
        """The store time of the queue's oldest message (ms); None when the queue is empty."""
        return await self._replicas.ask(mq, lambda at: broker_api.earliest_store_time(at, mq.topic, mq.queue_id))

    async def committed_offset(self, mq: MessageQueue) -> int | None:
        """The offset that this group has committed for the queue; None when there is none.

        While the master is unreachable: the last one that this consumer committed, else the one that a slave has.
        """
        kept = self._commits.kept(mq)
        if kept is not None:
            return kept
        return await self._replicas.ask(
            mq, lambda at: broker_api.committed_offset(at, self.group, mq.topic, mq.queue_id)
        )

    async def commit_offset(self, mq: MessageQueue, offset: Offset) -> None:
        """Set this group's offset for the queue: the offset of the first message that is not consumed yet.

        While the master is unreachable the offset is kept in the consumer, and committed when the master is back.
        """
        await self._commits.commit(mq, offset)
        self._member.committed(mq, offset)

    # --- messages

    async def pull(
        self,
        mq: MessageQueue,
        offset: int,
        *,
        max_count: Count = MAX_COUNT,
        max_bytes: Count = MAX_BYTES,
        expression: str = SUB_ALL,
        wait_ms: NotNegative = 0,
    ) -> PullResult:
        """Messages from ``offset`` on, at most ``max_count`` and ``max_bytes`` (but at least one).

        ``expression`` chooses tags: ``"*"`` or ``"A || B"``. With ``wait_ms`` the broker waits that long for a message
        when there is none yet. The broker may return less than asked for. Whatever the status, the next pull should be
        at ``next_offset``.
        """
        self._listen_to(mq.topic, expression)
        return await self._reader.pull(
            mq, offset, max_count=max_count, max_bytes=max_bytes, expression=expression, wait_ms=wait_ms
        )

    async def pull_bytes(
        self,
        mq: MessageQueue,
        offset: int,
        *,
        max_count: Count = MAX_COUNT,
        max_bytes: Count = MAX_BYTES,
        expression: str = SUB_ALL,
        wait_ms: NotNegative = 0,
    ) -> PullBytes:
        """Like `pull`, but returns the stored records as bytes. The caller filters by tag when it decodes them."""
        self._listen_to(mq.topic, expression)
        return await self._reader.pull_bytes(
            mq, offset, max_count=max_count, max_bytes=max_bytes, expression=expression, wait_ms=wait_ms
        )

    def stream(
        self,
        mq: MessageQueue,
        start: int,
        end: int | None = None,
        *,
        max_count: Count = STREAM_COUNT,
        max_bytes: Count = STREAM_BYTES,
        expression: str = SUB_ALL,
        wait_ms: NotNegative = STREAM_WAIT_MS,
    ) -> MessageStream:
        """Lists of messages from ``start`` up to, not including, ``end``; without ``end`` it waits for more forever.

        The next pull runs while the caller works on a list: this is the fastest way to read a queue. `MessageStream`
        documents what ends it.
        """
        self._reader.tags_of(expression)  # raises if the expression is invalid
        pull = partial(self.pull, mq, max_count=max_count, max_bytes=max_bytes, expression=expression, wait_ms=wait_ms)
        return MessageStream(pull, self._client.nursery, start, end, self._instance.backoff)

    async def messages(
        self,
        mq: MessageQueue,
        start: int,
        end: int | None = None,
        *,
        expression: str = SUB_ALL,
        wait_ms: NotNegative = STREAM_WAIT_MS,
    ) -> AsyncIterator[MessageExt]:
        """The messages of `stream`, one by one."""
        async with self.stream(mq, start, end, expression=expression, wait_ms=wait_ms) as batches:
            async for batch in batches:
                for message in batch:
                    if self._client.forks != FORKS.count:
                        # The child of a fork must not return the messages that its parent returns.
                        self._client.check_open()
                    yield message

    def _listen_to(self, topic: str, expression: str) -> None:
        """Add the topic to this consumer's heartbeats. Raises if the expression is invalid, or this is not open."""
        self._reader.tags_of(expression)
        self._client.check_open()
        if self._member.listen_to(topic, expression) and self._heartbeat:
            self._instance.membership.subscription_changed()
            self._instance.tell_brokers()
