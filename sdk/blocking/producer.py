"""`Producer`, blocking. Made by scripts/docs from sdk.producer.producer: edit that, not this."""

from collections.abc import Iterable

from mqcommon.clock import Clock
from mqcommon.message.message import Message
from mqcommon.message.queue import MessageQueue
from sdk.blocking.client import Client, loop_of
from sdk.blocking.facade import Facade
from sdk.checked import TopicName
from sdk.producer.producer import DEFAULT_GROUP, MAX_MESSAGE_BYTES, Selector
from sdk.producer.producer import Producer as AsyncProducer
from sdk.producer.result import BulkResult, SendResult


class Producer(Facade[AsyncProducer]):
    """``with Producer("127.0.0.1:9876") as producer: ...``

    ``nameserver`` is ``host:port;host:port`` or a shared `Client`, by default $NAMESRV_ADDR. ``send_timeout_ms`` is the
    time for all tries of a send together. ``retries`` limits the tries that may have stored the message; each gets an
    equal share of the time, so that a broker that does not answer costs at most ``send_timeout_ms / (retries + 1)``.
    Tries that stored nothing, because no broker was reachable or it was busy, are repeated until the timeout. With
    ``batching``, sends that wait while others are in flight become one request; each still gets its own result. With
    ``accept_weaker``, a result other than SEND_OK (stored, but flush or replication was late) is returned instead of
    raising SendFailed.

    Each `send` waits for its answer, so one thread sends one message a round trip: use `send_many`, or several threads,
    whose sends travel together. `send_many` consumes its argument in the client's thread.
    """

    def __init__(
        self,
        nameserver: str | Client | None = None,
        *,
        group: str = DEFAULT_GROUP,
        send_timeout_ms: float = 3000,
        retries: int = 2,
        batching: bool = True,
        accept_weaker: bool = False,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(
            loop_of(
                nameserver,
                lambda client: AsyncProducer(
                    client,
                    group=group,
                    send_timeout_ms=send_timeout_ms,
                    retries=retries,
                    batching=batching,
                    accept_weaker=accept_weaker,
                    max_message_bytes=max_message_bytes,
                    clock=clock,
                ),
            )
        )
        self.group = group

    @property
    def retried(self) -> int:
        """How many tries were made beyond the first of each send, so far."""

        async def read(producer: AsyncProducer) -> int:
            return producer.retried

        return self._loop.call(read)

    # --- public methods

    def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        timeout_ms: float | None = None,
    ) -> SendResult:
        """Store one message; returns when a broker has acknowledged it.

        ``queue``, ``selector`` or a sharding key choose the queue; messages with the same key keep their order. Raises
        SendFailed when no broker stored the message in time, RouteNotFound for an unknown topic, TypeError or
        ValueError for invalid arguments, and any error of ``selector``.
        """
        return self._loop.call(
            lambda producer: producer.send(message, queue=queue, selector=selector, timeout_ms=timeout_ms)
        )

    def send_many(self, topic: TopicName, messages: Iterable[bytes | Message]) -> BulkResult:
        """Store many messages, given as bodies or as Messages of ``topic``; returns when all are acknowledged.

        They are sent in batches, to the topic's queues in turn; each batch has the whole send timeout. Raises
        SendFailed when one message could not be stored; others may have been stored. A list or a tuple is checked
        before anything is sent, other iterables while they are consumed; their errors are raised here.
        """
        return self._loop.call(lambda producer: producer.send_many(topic, messages))

    def send_oneway(self, message: Message) -> None:
        """Send without an acknowledgement: returns when the request is queued on a connection.

        Raises SendFailed when there was no connection before the send timeout.
        """
        self._loop.call(lambda producer: producer.send_oneway(message))

    def queues(self, topic: TopicName) -> tuple[MessageQueue, ...]:
        """The topic's writable queues, sorted."""
        return self._loop.call(lambda producer: producer.queues(topic))
