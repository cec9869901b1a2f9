"""`Producer`, blocking; see `sdk.producer.producer`."""

from collections.abc import Iterable
from types import TracebackType
from typing import Self

from mqcommon.message.message import Message
from mqcommon.message.queue import MessageQueue
from sdk.blocking.loop import ClientLoop
from sdk.producer import producer
from sdk.producer.producer import DEFAULT_GROUP, MAX_MESSAGE_BYTES, Selector
from sdk.producer.result import BulkResult, SendResult


class Producer:
    """``with Producer("127.0.0.1:9876") as producer: ...``; arguments as the async one's.

    Each `send` waits for its answer, so one thread sends one message a round trip: use `send_many`, or several
    threads, whose sends travel together.
    """

    def __init__(
        self,
        nameserver: str | None = None,
        *,
        group: str = DEFAULT_GROUP,
        send_timeout_ms: float = 3_000,
        retries: int = 2,
        batching: bool = True,
        accept_weaker: bool = False,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
    ) -> None:
        self.group = group
        self._loop = ClientLoop(
            lambda: producer.Producer(
                nameserver,
                group=group,
                send_timeout_ms=send_timeout_ms,
                retries=retries,
                batching=batching,
                accept_weaker=accept_weaker,
                max_message_bytes=max_message_bytes,
            )
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

    @property
    def retried(self) -> int:
        """How many tries were made beyond the first of each send, so far."""

        async def count(client: producer.Producer) -> int:
            return client.retried

        return self._loop.call(count)

    def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        timeout_ms: float | None = None,
    ) -> SendResult:
        """Store one message; returns when a broker has acknowledged it."""
        return self._loop.call(
            lambda client: client.send(message, queue=queue, selector=selector, timeout_ms=timeout_ms)
        )

    def send_many(self, topic: str, messages: Iterable[bytes | Message]) -> BulkResult:
        """Store many messages, given as bodies or as Messages of ``topic``; returns when all are acknowledged.

        ``messages`` is consumed in the client's own thread.
        """
        return self._loop.call(lambda client: client.send_many(topic, messages))

    def send_oneway(self, message: Message) -> None:
        """Send without an acknowledgement."""
        self._loop.call(lambda client: client.send_oneway(message))

    def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """The queues that can be written now, sorted."""
        return self._loop.call(lambda client: client.queues(topic))
