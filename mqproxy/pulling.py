"""Calls of clients that choose queues and offsets themselves: pulls, and the offsets of groups and queues.

RocketMQ's .proto has these calls, and its own proxy does not answer them: statuses follow the meaning of their names.
"""

from types import TracebackType
from typing import Self

from skylark.mqcommon.errors import InvalidArgument
from skylark.mqcommon.message.queue import MessageQueue
from skylark.mqproxy.names import topic_of
from skylark.mqproxy.statuses import OK, Refused
from skylark.mqproxy.wire import messaging_pb2 as wire
from skylark.remoting.protocol.requests.clients import SQL92
from skylark.sdk import broker_api
from skylark.sdk.client import Client, ClientHandle
from skylark.sdk.consumer.decompression import keep_contents
from skylark.sdk.consumer.expression import Sql
from skylark.sdk.consumer.reader import PullResult, PullStatus, Reader
from skylark.sdk.consumer.replicas import Replicas
from skylark.sdk.nameservers import NameServerSource

# The most bytes of bodies in one answer; the first message may be larger.
MAX_BYTES = 4 * 1024 * 1024

_STATUSES = {
    PullStatus.FOUND: OK,
    PullStatus.NO_NEW_MESSAGE: wire.Status(code=wire.MESSAGE_NOT_FOUND, message="no new message"),
    PullStatus.NO_MATCHED_MESSAGE: wire.Status(code=wire.MESSAGE_NOT_FOUND, message="no matched message"),
    PullStatus.OFFSET_ILLEGAL: wire.Status(code=wire.ILLEGAL_OFFSET, message="the queue has no message at this offset"),
}


def pull_status(result: PullResult) -> wire.Status:
    """The status of a pull; the answer says in each case at which offset to go on."""
    return _STATUSES[result.status]


def queue_of(queue: wire.MessageQueue) -> MessageQueue:
    """The queue that a call names. Refused when the call does not name a queue."""
    topic = topic_of(queue.topic)
    if not queue.broker.name or queue.id < 0:
        raise Refused(wire.BAD_REQUEST, "the message queue needs the name of its broker, and an id")
    return MessageQueue(topic, queue.broker.name, queue.id)


def check_offset(offset: int) -> int:
    """Refused when ``offset`` cannot be an offset."""
    if offset < 0:
        raise Refused(wire.ILLEGAL_OFFSET, f"the offset is {offset}; it must not be negative")
    return offset


class Queues:
    """Pulls and requests about offsets."""

    def __init__(self, nameserver: NameServerSource | Client | None = None) -> None:
        self._client = ClientHandle(nameserver)
        self._replicas = Replicas(self._client)

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.__aexit__(kind, error, trace)

    async def pull(
        self, group: str, queue: MessageQueue, offset: int, *, most: int, expression: str, kind: str, wait_ms: int
    ) -> PullResult:
        """Messages of a queue, from the master or from a slave that it suggests."""
        # A reader costs next to nothing; its knowledge of replicas, and of slaves that brokers suggest, is shared.
        reader = Reader(self._client, self._replicas, group)
        try:
            result = await reader.pull(
                queue,
                offset,
                max_count=most,
                max_bytes=MAX_BYTES,
                expression=Sql(expression) if kind == SQL92 else expression,
                wait_ms=wait_ms,
            )
        except InvalidArgument as error:
            raise Refused(wire.ILLEGAL_FILTER_EXPRESSION, str(error)) from None
        await keep_contents(result.messages)
        return result

    async def commit(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Set the offset of a group."""
        await self._client.ask_master(
            queue, lambda at: broker_api.commit_offset(at, group, queue.topic, queue.queue_id, offset)
        )

    async def committed(self, group: str, queue: MessageQueue) -> int | None:
        """The offset of a group; None when it has none."""
        position = await self._client.ask_master(
            queue, lambda at: broker_api.committed_offset(at, group, queue.topic, queue.queue_id)
        )
        return None if position is None else position.offset

    async def min_offset(self, queue: MessageQueue) -> int:
        """The offset of the oldest message."""
        position = await self._client.ask_master(
            queue, lambda at: broker_api.min_offset(at, queue.topic, queue.queue_id)
        )
        return position.offset

    async def max_offset(self, queue: MessageQueue) -> int:
        """The offset that the next message will get."""
        position = await self._client.ask_master(
            queue, lambda at: broker_api.max_offset(at, queue.topic, queue.queue_id)
        )
        return position.offset

    async def search_offset(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """The offset of the first message that was stored at this time or later."""
        position = await self._client.ask_master(
            queue, lambda at: broker_api.search_offset(at, queue.topic, queue.queue_id, timestamp_ms)
        )
        return position.offset
