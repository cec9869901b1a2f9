"""`PullConsumer`: reads queues at offsets of the caller's choice, or queues that were assigned to it, in turn.

A message's fields are decoded on access, so a pull has little cost per message. Neighbours: reader.py (one pull, and
which broker it asks), assigned.py (`assign` and `poll`), stream.py, arrow.py.
"""

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Literal, Self

import trio
from trio.lowlevel import enable_ki_protection

from skylark.mqcommon.arguments import wrong_type
from skylark.mqcommon.clock import SystemClock
from skylark.mqcommon.errors import RemotingError, SkylarkError
from skylark.mqcommon.message.message import MessageExt
from skylark.mqcommon.message.queue import MessageQueue
from skylark.remoting.protocol.requests.clients import SUB_ALL
from skylark.sdk import broker_api
from skylark.sdk.arrow import check_arrow
from skylark.sdk.checked import (
    Count,
    GroupName,
    Milliseconds,
    NotNegative,
    Offset,
    TopicName,
    check_queue,
    checked_methods,
)
from skylark.sdk.client import Client, ClientHandle
from skylark.sdk.consumer.arrow import ArrowBatches, ArrowReader, Wanted
from skylark.sdk.consumer.assigned import STREAM_BYTES, STREAM_COUNT, STREAM_WAIT_MS, AssignedQueues
from skylark.sdk.consumer.decompression import keep_contents
from skylark.sdk.consumer.expression import Expression, Sql
from skylark.sdk.consumer.first_offsets import FirstOffsets, PullStart
from skylark.sdk.consumer.given import GivenOffsets
from skylark.sdk.consumer.member import PullMember
from skylark.sdk.consumer.offsets import Commits, GroupOffsets
from skylark.sdk.consumer.outcome import ConsumeFrom
from skylark.sdk.consumer.reader import PullBytes, PullResult, Reader
from skylark.sdk.consumer.replicas import Replicas
from skylark.sdk.consumer.stream import Messages, MessageStream
from skylark.sdk.consumer.tracing import Tracing
from skylark.sdk.consumer.trail import Trail
from skylark.sdk.credentials import GivenCredentials, GivenTls
from skylark.sdk.endpoint import DEFAULT_TIMEOUT_MS
from skylark.sdk.nameservers import NameServerSource
from skylark.sdk.namespaces import Namespace
from skylark.sdk.position import OffsetSpan, Position
from skylark.sdk.producer.producer import traces_of
from skylark.sdk.retry import until_answered
from skylark.sdk.routes import TopicQueues
from skylark.sdk.runtime import AsyncOnly, Home, survived
from skylark.sdk.starting import START_TIMEOUT_MS, Start
from skylark.sdk.traces.sink import Trace

MAX_COUNT = 32
MAX_BYTES = 4 * 1024 * 1024
POLL_COUNT = 1_000
POLL_TIMEOUT_MS = 5_000
# Pulls of `pull_bytes_of_queues` that are under way at a time.
PULLS_AT_ONCE = 64


@checked_methods
class PullConsumer(AsyncOnly):
    """``async with PullConsumer("127.0.0.1:9876", group="g") as consumer: ...``

    ``nameserver`` says where the NameServers are, or is a shared `Client`; by default $NAMESRV_ADDR. Offsets are
    committed for ``group``. ``timeout_ms`` is the timeout of each request; a pull's ``wait_ms`` is added to it. With
    ``heartbeat`` brokers list this consumer in its group; without, it only reads. ``consume_from`` is where `poll`
    begins in queues for which the group has committed no offset; ``consume_timestamp_ms`` is for TIMESTAMP. Topics and
    the group are names in ``namespace``, by default the `Client`'s namespace. ``trace`` records what is pulled and
    polled in RocketMQ's trace topic, ``trace_topic`` in another one; ``trace`` may be a sink.

    Opening it raises NoNameServer when no NameServer answers within ``start_timeout_ms``, NotRocketMQ or NotNameServer
    at once when another server listens there, and BrokerError when a broker refuses its credentials or its group; with
    None the start checks nothing.
    """

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
        beginning = PullStart(consume_from, consume_timestamp_ms)
        self.group = group
        self._client = client = ClientHandle(
            nameserver, timeout_ms=timeout_ms, namespace=namespace, credentials=credentials, tls=tls
        )
        self._instance = client.instance
        self._names = client.names
        wire_group = self._names.group(group)
        self._member = PullMember(
            wire_group, consume_from.value, lambda: ";".join(self._instance.nameserver_addrs), SystemClock().now_ms()
        )
        self._heartbeat = heartbeat
        self._start_timeout_ms = start_timeout_ms
        traces = traces_of(client, group, trace, trace_topic)
        self._tracing = None if traces is None else Tracing(traces, lambda: self._instance.client_id)
        self._replicas = Replicas(client)
        self._commits = Commits(client, self._replicas, wire_group)
        self._offsets = GroupOffsets(self._replicas, self._commits, wire_group)
        self._first = FirstOffsets(wire_group, beginning, self._offsets, self._replicas)
        self._reader = Reader(client, self._replicas, wire_group)
        self._given = GivenOffsets()
        self._arrow = ArrowReader(client, self._reader, self._listen_to)
        self._assigned = AssignedQueues(
            client,
            self._reader,
            self._first_offset,
            self._commit,
            self._given.note_read,
        )

    @enable_ki_protection
    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        try:
            if self._heartbeat:
                self._client.join_consumer(self.group, self._member)
            if self._start_timeout_ms is not None:
                await Start(self._client, self._start_timeout_ms).without_topics()
        except BaseException:
            await self._client.__aexit__(None, None, None)
            raise
        if self._tracing is not None:
            await self._tracing.open(self._client)
        return self

    @enable_ki_protection
    async def __aexit__(self, *error: Any) -> None:
        try:
            # Shielded: offsets are committed although the block was cancelled. `close` has a deadline of its own.
            with survived("committing offsets"), trio.CancelScope(shield=True):
                await self._commits.close()
                if self._tracing is not None:
                    await self._tracing.close()
        finally:
            await self._client.__aexit__(*error)

    # --- queues and offsets

    async def message_queues(self, topic: TopicName) -> list[MessageQueue]:
        """The queues of ``topic`` that can be read, sorted; RouteNotFound when there is no such topic.

        The route is refreshed first; while no NameServer answers, the last known route is used. Queues of brokers that
        are away are left out: `topic_queues` says which brokers these are.
        """
        return (await self.topic_queues(topic)).queues

    async def topic_queues(self, topic: TopicName) -> TopicQueues:
        """The queues of `message_queues`, and the brokers whose queues are missing there."""
        # The route of a topic that this client does not know yet is requested until a NameServer answers: without the
        # queues the caller can do nothing. A known route may be a little old, which is better than an error.
        instance, topic = self._instance, self._names.topic(topic)
        self._client.check_open()
        if instance.routes.get(topic) is None:
            route = await until_answered(lambda: instance.refresh(topic), self._client.timeout_ms, instance.backoff)
            return TopicQueues(list(self._names.plain_queues(route.readable)), route.absent)
        try:
            route = await instance.refresh(topic)
        except RemotingError:
            known = instance.routes.get(topic)
            if known is None:
                raise
            route = known
        return TopicQueues(list(self._names.plain_queues(route.readable)), route.absent)

    async def max_offset(self, mq: MessageQueue) -> int:
        """The offset that the queue's next message will get; while the master is unreachable, a slave's answer."""
        mq = self._names.queue(mq)
        return self._given.note_asked(mq, await self._max(mq))

    async def min_offset(self, mq: MessageQueue) -> int:
        """The offset of the queue's oldest message."""
        mq = self._names.queue(mq)
        return self._given.note_asked(mq, await self._min(mq))

    async def end_position(self, mq: MessageQueue) -> Position:
        """The offset of `max_offset`, with the creation stamp of the queue's topic, if the broker knows the stamp.

        A topic that is deleted and made again has another stamp, and so has a topic on an empty broker that replaces a
        broker: offsets from before the change are invalid there.
        """
        return await self._max(self._names.queue(mq))

    async def topic_offsets(self, topic: TopicName, broker_name: str) -> dict[MessageQueue, OffsetSpan]:
        """The offsets of all queues that the topic has on a broker, by one request.

        Brokers with access control require the right GET for the topic. A static topic's queues are not among them, and
        queues that are only read (when a topic has fewer queues to write) may be missing: ask `min_offset` and
        `max_offset`.
        """
        place = self._names.queue(MessageQueue(topic, broker_name, 0))
        table = await self._replicas.ask(place, lambda at: broker_api.topic_offsets(at, place.topic))
        rows = [one for one in table.offset_table.items() if one[0].broker_name == broker_name]
        queues = self._names.plain_queues(tuple([queue for queue, _ in rows]))
        return {queue: OffsetSpan(row.min_offset, row.max_offset) for queue, (_, row) in zip(queues, rows, strict=True)}

    async def search_offset(
        self, mq: MessageQueue, timestamp_ms: int, boundary: Literal["LOWER", "UPPER"] = "LOWER"
    ) -> int:
        """The offset of the queue's first message stored at or after ``timestamp_ms``.

        With ``boundary`` UPPER: the offset of the queue's last message stored at or before ``timestamp_ms``.
        """
        mq = self._names.queue(mq)
        return self._given.note_asked(mq, await self._search(mq, timestamp_ms, boundary))

    async def earliest_store_time(self, mq: MessageQueue) -> int | None:
        """The store time of the queue's oldest message (ms); None when the queue is empty."""
        mq = self._names.queue(mq)
        return await self._replicas.ask(mq, lambda at: broker_api.earliest_store_time(at, mq.topic, mq.queue_id))

    async def committed_offset(self, mq: MessageQueue) -> int | None:
        """The offset that this group has committed for the queue; None when there is none.

        While the master is unreachable: the offset this consumer committed last, else the slave's.
        """
        mq = self._names.queue(mq)
        position = await self._offsets.read(mq, zero_if_new=False)
        return None if position is None else self._given.note_asked(mq, position)

    async def commit_offset(self, mq: MessageQueue, offset: Offset) -> None:
        """Set this group's offset for the queue: the offset of the first message that is not consumed yet.

        While the master is unreachable the offset is kept in the consumer, and committed when the master is back.
        BrokerError when the queue has no such offset: the offset is past the end, or belongs to a topic that was
        deleted and made again since this consumer read it.
        """
        mq = self._names.queue(mq)
        await self._commit(mq, self._given.position(mq, offset))

    # --- messages

    async def pull(
        self,
        mq: MessageQueue,
        offset: int,
        *,
        max_count: Count = MAX_COUNT,
        max_bytes: Count = MAX_BYTES,
        expression: Expression = SUB_ALL,
        wait_ms: NotNegative = 0,
    ) -> PullResult:
        """Messages from ``offset`` on, at most ``max_count`` and ``max_bytes`` (but at least one).

        ``expression`` chooses tags, ``"*"`` or ``"A || B"``, or is an `Sql`. When there is no message yet, the broker
        waits up to ``wait_ms`` for one. The broker may return less than ``max_count``, or more from queues that store
        whole batches (BatchCQ). Whatever the status, the next pull should be at ``next_offset``.
        """
        mq = self._names.queue(mq)
        trail = self._given.trail(mq, offset)
        result = await self._pull(mq, max_count, max_bytes, expression, wait_ms, trail, offset)
        self._given.note_pulled(mq, trail, offset, result.created_ms, is_made_again=result.is_made_again)
        return result

    async def pull_bytes(
        self,
        mq: MessageQueue,
        offset: int,
        *,
        max_count: Count = MAX_COUNT,
        max_bytes: Count = MAX_BYTES,
        expression: Expression = SUB_ALL,
        wait_ms: NotNegative = 0,
    ) -> PullBytes:
        """Like `pull`, but returns the stored records as bytes. The caller filters by tag when it decodes them.

        In queues that store whole batches (BatchCQ) the first batch may hold messages before ``offset``.
        """
        mq = self._names.queue(mq)
        self._listen_to(mq.topic, expression)
        trail = self._given.trail(mq, offset)
        result = await self._reader.pull_bytes(
            mq, offset, max_count=max_count, max_bytes=max_bytes, expression=expression, wait_ms=wait_ms, trail=trail
        )
        self._given.note_pulled(mq, trail, offset, result.created_ms, is_made_again=result.is_made_again)
        return result

    async def pull_bytes_of_queues(
        self,
        offsets: Mapping[MessageQueue, int],
        *,
        max_count: Count = MAX_COUNT,
        max_bytes: Count = MAX_BYTES,
        expression: Expression = SUB_ALL,
        wait_ms: NotNegative = 0,
    ) -> dict[MessageQueue, PullBytes | SkylarkError]:
        """`pull_bytes` of many queues at once, from these offsets on. The limits hold for each queue.

        An error of one queue is not raised but is the queue's value, so that the other queues can be read.
        """
        if not isinstance(offsets, Mapping):
            raise wrong_type("offsets", "a dict of queues and offsets", offsets)
        for mq in offsets:
            check_queue("offsets", mq)
        found: dict[MessageQueue, PullBytes | SkylarkError] = {}
        limiter = trio.CapacityLimiter(PULLS_AT_ONCE)

        @enable_ki_protection
        async def pull_one(mq: MessageQueue, offset: int) -> None:
            async with limiter:
                try:
                    found[mq] = await self.pull_bytes(
                        mq, offset, max_count=max_count, max_bytes=max_bytes, expression=expression, wait_ms=wait_ms
                    )
                except SkylarkError as error:
                    found[mq] = error

        async with trio.open_nursery() as nursery:
            for mq, offset in offsets.items():
                nursery.start_soon(pull_one, mq, offset)
        return found

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
    ) -> MessageStream:
        """Lists of messages from ``start`` up to, not including, ``end``; without ``end`` it waits for more forever.

        The next pull runs while the caller works on a list: this is the fastest way to read a queue. `MessageStream`
        documents what ends the stream.
        """
        self._reader.tags_of(expression)  # raises if the expression is invalid
        mq = self._names.queue(mq)
        pull = partial(self._pull, mq, max_count, max_bytes, expression, wait_ms)
        return MessageStream(
            pull,
            self._client.nursery,
            self._given.position(mq, start),
            end,
            self._instance.backoff,
            on_taken=partial(self._given.note_read, mq),
        )

    def messages(
        self,
        mq: MessageQueue,
        start: int,
        end: int | None = None,
        *,
        expression: Expression = SUB_ALL,
        wait_ms: NotNegative = STREAM_WAIT_MS,
    ) -> AsyncIterator[MessageExt]:
        """The messages of `stream`, one by one."""
        batches = self.stream(mq, start, end, expression=expression, wait_ms=wait_ms)
        home, token = Home(), trio.lowlevel.current_trio_token()

        def close() -> None:
            with suppress(trio.RunFinishedError):
                if home.is_here:
                    token.run_sync_soon(batches.close)

        return Messages(batches, self._client.check_open, close)

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
    ) -> ArrowBatches:
        """Like `stream`, in pyarrow.RecordBatches: a row for each message, at most ``max_count`` rows.

        ``columns`` are the batches' columns, by default all but the properties: docs/guides/arrow.md has the list.
        Fewer columns cost less. Bodies are decompressed, and not compared with their CRC. This method needs the extra
        ``arrow``.
        """
        check_arrow("PullConsumer.arrow")
        from skylark.sdk.arrow.schema import schema_of

        mq = self._names.queue(mq)
        wanted = Wanted(mq, end, schema_of(columns), expression, max_count, max_bytes, wait_ms)
        return self._arrow.stream(wanted, self._given.position(mq, start), partial(self._given.note_read, mq))

    # --- assigned queues

    def assign(self, queues: Iterable[MessageQueue], *, expression: Expression = SUB_ALL) -> None:
        """Let `poll` read these queues and no others, from now on.

        A queue begins at the group's committed offset, else where ``consume_from`` says. A queue that was assigned
        already keeps its position. Queues that are no longer assigned are not committed: call `commit` first.
        ``expression`` is as in `pull`.
        """
        listed = self._queues(queues)
        for topic in dict.fromkeys(mq.topic for mq in listed):
            self._listen_to(topic, expression)
        self._assigned.assign(listed, expression)

    def assignment(self) -> list[MessageQueue]:
        """The assigned queues, sorted."""
        return list(self._names.plain_queues(self._assigned.queues()))

    async def poll(
        self, *, timeout_ms: NotNegative = POLL_TIMEOUT_MS, max_count: Count = POLL_COUNT
    ) -> list[MessageExt]:
        """Messages of the assigned queues, at most ``max_count``; empty when there is none within ``timeout_ms``.

        Each queue's messages come in order, each once, and queues take turns. More messages are fetched meanwhile. The
        call waits for brokers that are down. A permanent error of a queue is raised, and names the queue in a note; the
        next call tries that queue again, and the other queues go on.
        """
        await self._assigned.wait(timeout_ms)
        return self.finish_poll(max_count=max_count)

    def position(self, mq: MessageQueue) -> int | None:
        """The offset of the assigned queue's next message that `poll` will return; None until it is known."""
        return self._assigned.position(self._names.queue(mq))

    async def commit(self) -> None:
        """Commit the positions of the assigned queues: messages that `poll` has returned count, fetched ones do not.

        While a master is unreachable its offsets are kept, as with `commit_offset`.
        """
        await self._assigned.commit()

    def seek(self, mq: MessageQueue, offset: Offset) -> None:
        """Go on at ``offset`` of an assigned queue; its fetched messages are dropped."""
        mq = self._names.queue(mq)
        self._assigned.seek(mq, self._given.position(mq, offset))

    async def seek_to_begin(self, mq: MessageQueue) -> None:
        """Go on at the oldest message of an assigned queue."""
        mq = self._names.queue(mq)
        self._assigned.check(mq)
        self._assigned.seek(mq, await self._min(mq))

    async def seek_to_end(self, mq: MessageQueue) -> None:
        """Go on at the next message that an assigned queue will get."""
        mq = self._names.queue(mq)
        self._assigned.check(mq)
        self._assigned.seek(mq, await self._max(mq))

    async def seek_to_time(self, mq: MessageQueue, timestamp_ms: Offset) -> None:
        """Go on at the first message of an assigned queue that was stored at or after ``timestamp_ms``."""
        mq = self._names.queue(mq)
        self._assigned.check(mq)
        self._assigned.seek(mq, await self._search(mq, timestamp_ms, "LOWER"))

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Return no messages of these assigned queues until `resume`; their positions stay."""
        self._assigned.pause(self._queues(queues), True)

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Return messages of these assigned queues again."""
        self._assigned.pause(self._queues(queues), False)

    @property
    def traces_dropped(self) -> int:
        """How many records of the trace were dropped, because brokers did not take them fast enough or at all."""
        return 0 if self._tracing is None else self._tracing.dropped

    # --- used by sdk.blocking and sdk.aio

    async def wait_for_poll(self, *, timeout_ms: NotNegative) -> None:
        """The first half of `poll`. It may be cancelled, as it takes no messages."""
        await self._assigned.wait(timeout_ms)

    def finish_poll(self, *, max_count: Count) -> list[MessageExt]:
        """The second half of `poll`, which does not wait."""
        messages = self._assigned.take(max_count)
        self._trace(messages)
        return messages

    # --- internals

    def _trace(self, messages: list[MessageExt]) -> None:
        if self._tracing is not None and messages:
            self._tracing.read(messages)

    async def _max(self, mq: MessageQueue) -> Position:
        return await self._replicas.ask(mq, lambda at: broker_api.max_offset(at, mq.topic, mq.queue_id))

    async def _min(self, mq: MessageQueue) -> Position:
        return await self._replicas.ask(mq, lambda at: broker_api.min_offset(at, mq.topic, mq.queue_id))

    async def _search(self, mq: MessageQueue, timestamp_ms: int, boundary: str) -> Position:
        return await self._replicas.ask(
            mq, lambda at: broker_api.search_offset(at, mq.topic, mq.queue_id, timestamp_ms, boundary=boundary)
        )

    async def _pull(
        self,
        mq: MessageQueue,
        max_count: int,
        max_bytes: int,
        expression: str | Sql,
        wait_ms: int,
        trail: Trail,
        offset: int,
    ) -> PullResult:
        self._listen_to(mq.topic, expression)
        result = await self._reader.pull(
            mq, offset, max_count=max_count, max_bytes=max_bytes, expression=expression, wait_ms=wait_ms, trail=trail
        )
        await keep_contents(result.messages)
        self._trace(result.messages)
        return result

    async def _first_offset(self, mq: MessageQueue) -> Position:
        start = await self._first.of(mq)
        self._first.log_passed()
        return start

    async def _commit(self, mq: MessageQueue, position: Position) -> None:
        await self._commits.commit(mq, position)
        self._member.committed(mq, position.offset)

    def _listen_to(self, topic: str, expression: str | Sql) -> None:
        """Add the topic to the heartbeats. Raises if the expression is invalid or the consumer is not open."""
        # Check first: a wrong expression must not reach the heartbeats.
        self._reader.tags_of(expression)
        self._client.check_open()
        if self._member.listen_to(topic, expression) and self._heartbeat:
            self._instance.membership.subscription_changed()
            self._instance.tell_brokers()

    def _queues(self, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        """The queues, checked, with the names of servers."""
        if isinstance(queues, str | bytes | MessageQueue) or not isinstance(queues, Iterable):
            raise wrong_type("queues", "an iterable of MessageQueues", queues)
        listed = list(queues)
        for number, mq in enumerate(listed):
            check_queue(f"queues[{number}]", mq)
        return [self._names.queue(mq) for mq in listed]
