"""`PullConsumer`, blocking; see `sdk.consumer.pull`."""

from collections.abc import Iterator
from types import TracebackType
from typing import Literal, Self

from mqcommon.message.message import MessageExt
from mqcommon.message.queue import MessageQueue
from remoting.protocol.bodies.heartbeat import SUB_ALL
from sdk.blocking.loop import ClientLoop, LoopThread
from sdk.consumer import pull
from sdk.consumer.pull import MAX_BYTES, MAX_COUNT, STREAM_BYTES, STREAM_COUNT, STREAM_WAIT_MS
from sdk.consumer.result import PullBytes, PullResult
from sdk.consumer.stream import MessageStream
from sdk.endpoint import DEFAULT_TIMEOUT_MS


class PullConsumer:
    """``with PullConsumer("127.0.0.1:9876", group="g") as consumer: ...``; arguments as the async one's."""

    def __init__(
        self,
        nameserver: str | None = None,
        *,
        group: str = "DEFAULT_CONSUMER",
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
        heartbeat: bool = True,
    ) -> None:
        self.group = group
        self._loop = ClientLoop(
            lambda: pull.PullConsumer(nameserver, group=group, timeout_ms=timeout_ms, heartbeat=heartbeat)
        )

    def open(self) -> Self:
        """Connect; ``with`` does it."""
        self._loop.open()
        return self

    def close(self) -> None:
        """Leave the group, close the connections; ``with`` does it."""
        self._loop.close()

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def message_queues(self, topic: str) -> list[MessageQueue]:
        """The queues of ``topic`` that can be read, sorted."""
        return self._loop.call(lambda consumer: consumer.message_queues(topic))

    def max_offset(self, mq: MessageQueue) -> int:
        """The offset that the queue's next message will get."""
        return self._loop.call(lambda consumer: consumer.max_offset(mq))

    def min_offset(self, mq: MessageQueue) -> int:
        """The offset of the queue's oldest message."""
        return self._loop.call(lambda consumer: consumer.min_offset(mq))

    def search_offset(self, mq: MessageQueue, timestamp_ms: int, boundary: Literal["LOWER", "UPPER"] = "LOWER") -> int:
        """The offset of the queue's first message stored at ``timestamp_ms`` or later.

        With ``boundary`` UPPER: of its last message stored then or before.
        """
        return self._loop.call(lambda consumer: consumer.search_offset(mq, timestamp_ms, boundary))

    def earliest_store_time(self, mq: MessageQueue) -> int | None:
        """When the queue's oldest message was stored (ms); None when it has none."""
        return self._loop.call(lambda consumer: consumer.earliest_store_time(mq))

    def committed_offset(self, mq: MessageQueue) -> int | None:
        """What this group has committed for the queue; None when nothing."""
        return self._loop.call(lambda consumer: consumer.committed_offset(mq))

    def commit_offset(self, mq: MessageQueue, offset: int) -> None:
        """Set this group's offset for the queue."""
        self._loop.call(lambda consumer: consumer.commit_offset(mq, offset))

    def pull(
        self,
        mq: MessageQueue,
        offset: int,
        *,
        max_count: int = MAX_COUNT,
        max_bytes: int = MAX_BYTES,
        expression: str = SUB_ALL,
        wait_ms: int = 0,
    ) -> PullResult:
        """Messages from ``offset`` on; see the async one."""
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
        max_count: int = MAX_COUNT,
        max_bytes: int = MAX_BYTES,
        expression: str = SUB_ALL,
        wait_ms: int = 0,
    ) -> PullBytes:
        """As `pull`, with the stored records as they are."""
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
        max_count: int = STREAM_COUNT,
        max_bytes: int = STREAM_BYTES,
        expression: str = SUB_ALL,
        wait_ms: int = STREAM_WAIT_MS,
    ) -> Iterator[list[MessageExt]]:
        """Lists of messages from ``start`` up to, not including, ``end``; the next pull is under way meanwhile."""

        async def start_stream(consumer: pull.PullConsumer) -> MessageStream:
            return consumer.stream(
                mq, start, end, max_count=max_count, max_bytes=max_bytes, expression=expression, wait_ms=wait_ms
            )

        thread = self._loop.opened()
        return _batches(thread, thread.call(start_stream))

    def messages(
        self,
        mq: MessageQueue,
        start: int,
        end: int | None = None,
        *,
        expression: str = SUB_ALL,
        wait_ms: int = STREAM_WAIT_MS,
    ) -> Iterator[MessageExt]:
        """The messages of `stream`, one by one."""
        thread = self._loop.opened()
        return _messages(thread, self.stream(mq, start, end, expression=expression, wait_ms=wait_ms))


def _messages(thread: LoopThread[pull.PullConsumer], batches: Iterator[list[MessageExt]]) -> Iterator[MessageExt]:
    """The messages one by one; none in the child of a fork, which would hand out what its parent does."""
    for batch in batches:
        for message in batch:
            if not thread.home.is_here:
                thread.home.check()
            yield message


def _batches(thread: LoopThread[pull.PullConsumer], stream: MessageStream) -> Iterator[list[MessageExt]]:
    """What ``stream`` brings. It stays with the thread that it was started in, also after a fork."""
    try:
        while (batch := thread.call(lambda _: anext(stream, None))) is not None:
            yield batch
    finally:
        thread.tell(lambda _: stream.close())
