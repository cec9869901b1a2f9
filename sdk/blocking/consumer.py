"""`PullConsumer`, blocking. Made by scripts/docs from sdk.consumer.pull: edit that, not this."""

from collections.abc import Iterator
from typing import Literal

from mqcommon.message.message import MessageExt
from mqcommon.message.queue import MessageQueue
from remoting.protocol.bodies.heartbeat import SUB_ALL
from sdk.blocking.client import Client, loop_of
from sdk.blocking.facade import Facade, batches_of, messages_of
from sdk.checked import Count, GroupName, Milliseconds, NotNegative, Offset, TopicName
from sdk.consumer.pull import MAX_BYTES, MAX_COUNT, STREAM_BYTES, STREAM_COUNT, STREAM_WAIT_MS
from sdk.consumer.pull import PullConsumer as AsyncPullConsumer
from sdk.consumer.result import PullBytes, PullResult
from sdk.endpoint import DEFAULT_TIMEOUT_MS


class PullConsumer(Facade[AsyncPullConsumer]):
    """``with PullConsumer("127.0.0.1:9876", group="g") as consumer: ...``

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
        super().__init__(
            loop_of(
                nameserver,
                lambda client: AsyncPullConsumer(client, group=group, timeout_ms=timeout_ms, heartbeat=heartbeat),
            )
        )
        self.group = group

    # --- queues and offsets

    def message_queues(self, topic: TopicName) -> list[MessageQueue]:
        """The queues of ``topic`` that can be read, sorted; RouteNotFound when there is no such topic.

        The route is refreshed first; while no NameServer answers, the last known route is used.
        """
        return self._loop.call(lambda consumer: consumer.message_queues(topic))

    def max_offset(self, mq: MessageQueue) -> int:
        """The offset that the queue's next message will get; while the master is unreachable, as a slave knows it."""
        return self._loop.call(lambda consumer: consumer.max_offset(mq))

    def min_offset(self, mq: MessageQueue) -> int:
        """The offset of the queue's oldest message."""
        return self._loop.call(lambda consumer: consumer.min_offset(mq))

    def search_offset(self, mq: MessageQueue, timestamp_ms: int, boundary: Literal["LOWER", "UPPER"] = "LOWER") -> int:
        """The offset of the queue's first message stored at or after ``timestamp_ms``.

        With ``boundary`` UPPER: of its last message stored at or before it.
        """
        return self._loop.call(lambda consumer: consumer.search_offset(mq, timestamp_ms, boundary))

    def earliest_store_time(self, mq: MessageQueue) -> int | None:
        """The store time of the queue's oldest message (ms); None when the queue is empty."""
        return self._loop.call(lambda consumer: consumer.earliest_store_time(mq))

    def committed_offset(self, mq: MessageQueue) -> int | None:
        """The offset that this group has committed for the queue; None when there is none.

        While the master is unreachable: the last one that this consumer committed, else the one that a slave has.
        """
        return self._loop.call(lambda consumer: consumer.committed_offset(mq))

    def commit_offset(self, mq: MessageQueue, offset: Offset) -> None:
        """Set this group's offset for the queue: the offset of the first message that is not consumed yet.

        While the master is unreachable the offset is kept in the consumer, and committed when the master is back.
        """
        self._loop.call(lambda consumer: consumer.commit_offset(mq, offset))

    # --- messages

    def pull(
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
        return self._loop.call(
            lambda consumer: consumer.pull(
                mq, offset, max_count=max_count, max_bytes=max_bytes, expression=expression, wait_ms=wait_ms
            )
        )

    def pull_bytes(
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
        return self._loop.call(
            lambda consumer: consumer.pull_bytes(
                mq, offset, max_count=max_count, max_bytes=max_bytes, expression=expression, wait_ms=wait_ms
            )
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
    ) -> Iterator[list[MessageExt]]:
        """Lists of messages from ``start`` up to, not including, ``end``; without ``end`` it waits for more forever.

        The next pull runs while the caller works on a list: this is the fastest way to read a queue. `MessageStream`
        documents what ends it.
        """
        return batches_of(
            self._loop,
            lambda consumer: consumer.stream(
                mq, start, end, max_count=max_count, max_bytes=max_bytes, expression=expression, wait_ms=wait_ms
            ),
        )

    def messages(
        self,
        mq: MessageQueue,
        start: int,
        end: int | None = None,
        *,
        expression: str = SUB_ALL,
        wait_ms: NotNegative = STREAM_WAIT_MS,
    ) -> Iterator[MessageExt]:
        """The messages of `stream`, one by one."""
        return messages_of(
            self._loop, lambda consumer: consumer.stream(mq, start, end, expression=expression, wait_ms=wait_ms)
        )
