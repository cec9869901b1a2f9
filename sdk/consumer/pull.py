"""`PullConsumer`: reads queues at offsets of the caller's choice.

A pull goes to the broker's master, or to the replica that the broker suggested with its last answer; when that one
does not answer, to the others. Messages are decoded when their fields are read, so a pull costs little a message.
"""

from collections.abc import AsyncIterator, Mapping
from functools import partial
from types import TracebackType
from typing import Literal, Self

from common.clock import SystemClock
from common.errors import RemotingError, RouteNotFound, UserError
from common.message.message import MessageExt, decode_messages
from common.message.queue import MessageQueue
from common.names import MASTER_ID
from remoting.protocol.bodies.heartbeat import SUB_ALL, parse_subscription
from remoting.protocol.codes import ResponseCode
from sdk import broker_api
from sdk.broker_api import PullAnswer
from sdk.client import ClientInstance
from sdk.consumer.member import PullMember
from sdk.consumer.result import PullBytes, PullResult, PullStatus
from sdk.consumer.stream import MessageStream
from sdk.endpoint import DEFAULT_TIMEOUT_MS
from sdk.routes import TopicRoute

MAX_COUNT = 32
MAX_BYTES = 4 * 1024 * 1024
# A stream asks for as much as fits into STREAM_BYTES, which is enough to make a pull's own cost small; RocketMQ's
# brokers give no more than their own limits (32 messages, 256 KiB).
STREAM_COUNT = 32_768
STREAM_BYTES = 1024 * 1024
STREAM_WAIT_MS = 15_000

_STATUS = {
    ResponseCode.SUCCESS: PullStatus.FOUND,
    ResponseCode.PULL_NOT_FOUND: PullStatus.NO_NEW_MESSAGE,
    ResponseCode.PULL_RETRY_IMMEDIATELY: PullStatus.NO_MATCHED_MESSAGE,
    ResponseCode.PULL_OFFSET_MOVED: PullStatus.OFFSET_ILLEGAL,
}


class PullConsumer:
    """``async with PullConsumer("127.0.0.1:9876", group="g") as consumer: ...``

    ``nameserver`` is ``host:port;host:port``; without it $NAMESRV_ADDR counts. ``group`` is what offsets are committed
    under. ``timeout_ms`` is for each request, on top of a pull's ``wait_ms``. With ``heartbeat`` brokers list this
    consumer in its group; without, it only reads.
    """

    def __init__(
        self,
        nameserver: str | None = None,
        *,
        group: str = "DEFAULT_CONSUMER",
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
        heartbeat: bool = True,
    ) -> None:
        self.group = group
        self._instance = ClientInstance(nameserver, request_timeout_ms=timeout_ms)
        self._member = PullMember(group, ";".join(self._instance.nameserver_addrs), SystemClock().now_ms())
        self._heartbeat = heartbeat
        self._replicas: dict[MessageQueue, int] = {}
        self._tags: dict[str, frozenset[str]] = {}

    async def __aenter__(self) -> Self:
        await self._instance.__aenter__()
        if self._heartbeat:
            self._instance.membership.join_consumer(self.group, self._member)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._instance.__aexit__(kind, error, trace)

    # --- queues and offsets

    async def message_queues(self, topic: str) -> list[MessageQueue]:
        """The queues of ``topic`` that can be read, sorted; RouteNotFound when there is no such topic.

        They are asked for now; while no NameServer answers, those of the last known route count.
        """
        try:
            route = await self._instance.refresh(topic)
        except RemotingError:
            known = self._instance.routes.get(topic)
            if known is None:
                raise
            route = known
        return list(route.readable)

    async def max_offset(self, mq: MessageQueue) -> int:
        """The offset that the queue's next message will get."""
        return await self._instance.ask_master(mq, lambda at: broker_api.max_offset(at, mq.topic, mq.queue_id))

    async def min_offset(self, mq: MessageQueue) -> int:
        """The offset of the queue's oldest message."""
        return await self._instance.ask_master(mq, lambda at: broker_api.min_offset(at, mq.topic, mq.queue_id))

    async def search_offset(
        self, mq: MessageQueue, timestamp_ms: int, boundary: Literal["LOWER", "UPPER"] = "LOWER"
    ) -> int:
        """The offset of the queue's first message stored at ``timestamp_ms`` or later.

        With ``boundary`` UPPER: of its last message stored then or before.
        """
        return await self._instance.ask_master(
            mq, lambda at: broker_api.search_offset(at, mq.topic, mq.queue_id, timestamp_ms, boundary=boundary)
        )

    async def earliest_store_time(self, mq: MessageQueue) -> int | None:
        """When the queue's oldest message was stored (ms); None when it has none."""
        return await self._instance.ask_master(mq, lambda at: broker_api.earliest_store_time(at, mq.topic, mq.queue_id))

    async def committed_offset(self, mq: MessageQueue) -> int | None:
        """What this group has committed for the queue; None when nothing."""
        return await self._instance.ask_master(
            mq, lambda at: broker_api.committed_offset(at, self.group, mq.topic, mq.queue_id)
        )

    async def commit_offset(self, mq: MessageQueue, offset: int) -> None:
        """Set this group's offset for the queue: that of the first message not consumed yet."""
        await self._instance.ask_master(
            mq, lambda at: broker_api.commit_offset(at, self.group, mq.topic, mq.queue_id, offset)
        )

    # --- messages

    async def pull(
        self,
        mq: MessageQueue,
        offset: int,
        *,
        max_count: int = MAX_COUNT,
        max_bytes: int = MAX_BYTES,
        expression: str = SUB_ALL,
        wait_ms: int = 0,
    ) -> PullResult:
        """Messages from ``offset`` on, at most ``max_count`` and ``max_bytes`` (but never less than one).

        ``expression`` chooses tags: ``"*"`` or ``"A || B"``. With ``wait_ms`` the broker waits that long for a message
        when there is none yet. The broker may give less than asked; pull on at ``next_offset`` whatever the status.
        """
        tags = self._tags_of(expression)
        answer = await self._pull(mq, offset, max_count, max_bytes, expression, wait_ms)
        status = _STATUS[answer.code]
        messages = decode_messages(answer.data, mq.broker_name)
        if tags and messages:
            # The broker compared hashes of tags, and two tags may have one hash.
            messages = [message for message in messages if message.tags in tags]
            if not messages:
                status = PullStatus.NO_MATCHED_MESSAGE
        return PullResult(status, messages, answer.next_offset, answer.min_offset, answer.max_offset)

    async def pull_bytes(
        self,
        mq: MessageQueue,
        offset: int,
        *,
        max_count: int = MAX_COUNT,
        max_bytes: int = MAX_BYTES,
        expression: str = SUB_ALL,
        wait_ms: int = 0,
    ) -> PullBytes:
        """As `pull`, with the stored records as they are; whoever decodes them compares tags."""
        answer = await self._pull(mq, offset, max_count, max_bytes, expression, wait_ms)
        return PullBytes(_STATUS[answer.code], answer.data, answer.next_offset, answer.min_offset, answer.max_offset)

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
    ) -> MessageStream:
        """Lists of messages from ``start`` up to, not including, ``end``; without ``end`` it waits for more for ever.

        The next pull is under way while the caller works on a list: the fastest way to read a queue.
        """
        pull = partial(self.pull, mq, max_count=max_count, max_bytes=max_bytes, expression=expression, wait_ms=wait_ms)
        return MessageStream(pull, self._instance.nursery, start, end)

    async def messages(
        self,
        mq: MessageQueue,
        start: int,
        end: int | None = None,
        *,
        expression: str = SUB_ALL,
        wait_ms: int = STREAM_WAIT_MS,
    ) -> AsyncIterator[MessageExt]:
        """The messages of `stream`, one by one."""
        async with self.stream(mq, start, end, expression=expression, wait_ms=wait_ms) as batches:
            async for batch in batches:
                for message in batch:
                    yield message

    # --- whom to ask

    async def _pull(
        self, mq: MessageQueue, offset: int, max_count: int, max_bytes: int, expression: str, wait_ms: int
    ) -> PullAnswer:
        self._tags_of(expression)  # refuses what is no expression
        self._listen_to(mq.topic, expression)
        ask = partial(
            broker_api.pull,
            group=self.group,
            topic=mq.topic,
            queue_id=mq.queue_id,
            offset=offset,
            max_count=max_count,
            max_bytes=max_bytes,
            expression=expression,
            wait_ms=wait_ms,
        )
        route = await self._instance.route(mq.topic)
        failed: dict[str, RemotingError] = {}
        while True:
            addr = self._replica_of(mq, route, failed)
            if addr is None:
                addr = self._replica_of(mq, await self._instance.refresh(mq.topic), failed)
            if addr is None:
                raise next(iter(failed.values()), None) or RouteNotFound(
                    mq.topic, f"broker {mq.broker_name} is not in its route"
                )
            try:
                answer = await ask(self._instance.at(addr))
            except RemotingError as error:
                self._replicas.pop(mq, None)
                failed[addr] = error
            else:
                self._replicas[mq] = answer.suggested_broker_id
                return answer

    def _replica_of(self, mq: MessageQueue, route: TopicRoute, failed: Mapping[str, RemotingError]) -> str | None:
        """Where to pull: the suggested replica, else the lowest id; none that has failed."""
        addrs = route.brokers.get(mq.broker_name, {})
        suggested = addrs.get(self._replicas.get(mq, MASTER_ID))
        if suggested is not None and suggested not in failed:
            return suggested
        return next((addr for addr in addrs.values() if addr not in failed), None)

    def _listen_to(self, topic: str, expression: str) -> None:
        """Let heartbeats say what is read."""
        if self._member.listen_to(topic, expression) and self._heartbeat:
            self._instance.membership.subscription_changed()
            self._instance.tell_brokers()

    def _tags_of(self, expression: str) -> frozenset[str]:
        """The tags that an expression names; empty when it takes all."""
        tags = self._tags.get(expression)
        if tags is None:
            try:
                tags = frozenset(parse_subscription("", expression).tags_set)
            except ValueError as error:
                raise UserError(f"{error}: use '*', or tags separated by '||'") from None
            self._tags[expression] = tags
        return tags
