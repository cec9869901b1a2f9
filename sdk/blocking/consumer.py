"""`PullConsumer` whose methods block."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from skylark.mqcommon.message.message import MessageExt
from skylark.mqcommon.message.queue import MessageQueue
from skylark.remoting.protocol.requests.clients import SUB_ALL
from skylark.sdk.arrow import RecordBatch
from skylark.sdk.blocking.facade import Client, Facade, call_of, call_sync_of
from skylark.sdk.blocking.loop import ClientLoop
from skylark.sdk.checked import Count, GroupName, Milliseconds, NotNegative, Offset, TopicName
from skylark.sdk.consumer.assigned import STREAM_BYTES, STREAM_COUNT, STREAM_WAIT_MS
from skylark.sdk.consumer.expression import Expression
from skylark.sdk.consumer.outcome import ConsumeFrom
from skylark.sdk.consumer.pull import POLL_COUNT, POLL_TIMEOUT_MS
from skylark.sdk.consumer.pull import PullConsumer as TrioPullConsumer
from skylark.sdk.consumer.stream import QueueStream
from skylark.sdk.credentials import GivenCredentials, GivenTls
from skylark.sdk.endpoint import DEFAULT_TIMEOUT_MS
from skylark.sdk.loop_thread import OpenClient
from skylark.sdk.nameservers import NameServerSource
from skylark.sdk.namespaces import Namespace
from skylark.sdk.starting import START_TIMEOUT_MS
from skylark.sdk.traces.sink import Trace

B = TypeVar("B")
C = TypeVar("C")


class PullConsumer(Facade[TrioPullConsumer], of=TrioPullConsumer):
    """`sdk.PullConsumer` with methods that block."""

    def __init__(
        self,
        nameserver: NameServerSource | Client | None = None,
        *,
        group: GroupName = "DEFAULT_CONSUMER",
        timeout_ms: Milliseconds = DEFAULT_TIMEOUT_MS,
        heartbeat: bool = True,
        consume_from: ConsumeFrom = ConsumeFrom.LAST_OFFSET,
        consume_timestamp_ms: Offset | None = None,
        namespace: Namespace = "",
        credentials: GivenCredentials = None,
        tls: GivenTls = None,
        trace: Trace = False,
        trace_topic: TopicName | None = None,
        start_timeout_ms: Milliseconds | None = START_TIMEOUT_MS,
    ) -> None:
        super().__init__(nameserver, locals())
        self.group = group

    # --- queues and offsets

    message_queues = call_of(TrioPullConsumer.message_queues)
    topic_queues = call_of(TrioPullConsumer.topic_queues)
    max_offset = call_of(TrioPullConsumer.max_offset)
    end_position = call_of(TrioPullConsumer.end_position)
    min_offset = call_of(TrioPullConsumer.min_offset)
    topic_offsets = call_of(TrioPullConsumer.topic_offsets)
    search_offset = call_of(TrioPullConsumer.search_offset)
    earliest_store_time = call_of(TrioPullConsumer.earliest_store_time)
    committed_offset = call_of(TrioPullConsumer.committed_offset)
    commit_offset = call_of(TrioPullConsumer.commit_offset)

    # --- messages

    pull = call_of(TrioPullConsumer.pull)
    pull_bytes = call_of(TrioPullConsumer.pull_bytes)
    pull_bytes_of_queues = call_of(TrioPullConsumer.pull_bytes_of_queues)

    def stream(
        self,
        mq: MessageQueue,
        start: int,
        end: int | None = None,
        *,
        max_count: Count = STREAM_COUNT,
        max_bytes: Count = STREAM_BYTES,
        expression: Expression = SUB_ALL,
        wait_ms: NotNegative = STREAM_WAIT_MS,
    ) -> "BatchStream[list[MessageExt]]":
        """Lists of messages from ``start`` up to, not including, ``end``; without ``end`` it waits for more forever.

        The next pull runs while the caller works on a list: this is the fastest way to read a queue. `MessageStream`
        documents what ends the stream.
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
        expression: Expression = SUB_ALL,
        wait_ms: NotNegative = STREAM_WAIT_MS,
    ) -> Iterator[MessageExt]:
        """The messages of `stream`, one by one."""
        return messages_of(
            self._loop, lambda consumer: consumer.stream(mq, start, end, expression=expression, wait_ms=wait_ms)
        )

    def arrow(
        self,
        mq: MessageQueue,
        start: int,
        end: int | None = None,
        *,
        columns: Sequence[str] | None = None,
        max_count: Count = STREAM_COUNT,
        max_bytes: Count = STREAM_BYTES,
        expression: Expression = SUB_ALL,
        wait_ms: NotNegative = STREAM_WAIT_MS,
    ) -> "BatchStream[RecordBatch]":
        """Like `stream`, in pyarrow.RecordBatches: a row for each message, at most ``max_count`` rows.

        ``columns`` are the batches' columns, by default all but the properties: docs/guides/arrow.md has the list.
        Fewer columns cost less. Bodies are decompressed, and not compared with their CRC. This method needs the extra
        ``arrow``.
        """
        return batches_of(
            self._loop,
            lambda consumer: consumer.arrow(
                mq,
                start,
                end,
                columns=columns,
                max_count=max_count,
                max_bytes=max_bytes,
                expression=expression,
                wait_ms=wait_ms,
            ),
        )

    # --- assigned queues

    assign = call_sync_of(TrioPullConsumer.assign)
    assignment = call_sync_of(TrioPullConsumer.assignment)

    def poll(self, *, timeout_ms: NotNegative = POLL_TIMEOUT_MS, max_count: Count = POLL_COUNT) -> list[MessageExt]:
        """Messages of the assigned queues, at most ``max_count``; empty when there is none within ``timeout_ms``.

        Each queue's messages come in order, each once, and queues take turns. More messages are fetched meanwhile. The
        call waits for brokers that are down. A permanent error of a queue is raised, and names the queue in a note; the
        next call tries that queue again, and the other queues go on.
        """
        self._loop.call(lambda consumer: consumer.wait_for_poll(timeout_ms=timeout_ms))
        return self._loop.call_sync(lambda consumer: consumer.finish_poll(max_count=max_count))

    position = call_sync_of(TrioPullConsumer.position)
    commit = call_of(TrioPullConsumer.commit)
    seek = call_sync_of(TrioPullConsumer.seek)
    seek_to_begin = call_of(TrioPullConsumer.seek_to_begin)
    seek_to_end = call_of(TrioPullConsumer.seek_to_end)
    seek_to_time = call_of(TrioPullConsumer.seek_to_time)
    pause = call_sync_of(TrioPullConsumer.pause)
    resume = call_sync_of(TrioPullConsumer.resume)

    @property
    def traces_dropped(self) -> int:
        """How many records of the trace were dropped, because brokers did not take them fast enough or at all."""
        return self._loop.call_sync(lambda consumer: consumer.traces_dropped)


def batches_of(loop: ClientLoop[C], stream_of: Callable[[C], QueueStream[B]]) -> "BatchStream[B]":
    """Start a stream and iterate over its batches."""
    client = loop.opened()

    async def start(it: C) -> QueueStream[B]:
        return stream_of(it)

    return BatchStream(client, client.call(start))


def messages_of(loop: ClientLoop[C], stream_of: Callable[[C], QueueStream[list[MessageExt]]]) -> Iterator[MessageExt]:
    """Start a stream and iterate over its messages."""
    return Messages(loop.opened(), batches_of(loop, stream_of))


class BatchStream(Generic[B]):
    """``for batch in stream``: the batches of a `MessageStream`, or record batches. `MessageStream` says what ends it.

    ``next_offset`` follows the last batch that was returned: it is the offset to commit, and to start again from.
    Iteration can go on after an error. The stream belongs to the event loop in which it was started, also after a fork.
    Close the stream, or use it in ``with``, when you leave the ``for`` loop before its end.
    """

    def __init__(self, client: OpenClient[Any], stream: QueueStream[B]) -> None:
        self._client = client
        self._stream = stream
        self._closed = False
        self._has_ended = False
        # Batches with the offsets after them, added in the loop: a batch that arrives while its caller is interrupted
        # waits here for the next call.
        self._taken: deque[tuple[B, int]] = deque()
        self.next_offset = stream.next_offset

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> B:
        while not self._closed:
            if self._taken:
                batch, self.next_offset = self._taken.popleft()
                return batch
            if self._has_ended:
                self.next_offset = self._stream.next_offset
                break
            self._client.call(self._take)
        raise StopIteration

    async def _take(self, _: object) -> None:
        """In the loop: wait for the next batch, unless a batch is left whose caller was interrupted."""
        if not self._taken and not self._has_ended:
            batch = await anext(self._stream, None)
            if batch is None:
                self._has_ended = True
            else:
                self._taken.append((batch, self._stream.next_offset))

    def close(self) -> None:
        """Cancel the pull in progress; iteration ends."""
        self._closed = True
        self._client.post(lambda _: self._stream.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        # Without this, the pulls of an abandoned iterator would go on forever.
        self.close()


class Messages(Iterator[MessageExt]):
    """The messages of ``batches``, one by one. Iteration can go on after an error."""

    def __init__(self, client: OpenClient[Any], batches: BatchStream[list[MessageExt]]) -> None:
        self._client = client
        self._batches = batches
        self._rest: Iterator[MessageExt] = iter(())

    def __next__(self) -> MessageExt:
        while (message := next(self._rest, None)) is None:
            self._rest = iter(next(self._batches))
        if not self._client.home.is_here:
            # The child of a fork must not return the messages that its parent returns.
            self._client.home.check()
        return message

    def close(self) -> None:
        """Cancel the pull in progress; iteration ends."""
        self._rest = iter(())
        self._batches.close()
