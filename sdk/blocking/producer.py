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

    ``nameserver`` is ``host:port;host:port``, or a `Client` to share; without it $NAMESRV_ADDR counts.
    ``send_timeout_ms`` is for all tries of a send together. ``retries`` bounds those that may have stored the message;
    each gets an equal share of the time, so that a broker that does not answer costs at most
    ``send_timeout_ms / (retries + 1)``. Tries that stored nothing, because no broker was there or it was busy, go on
    until the time is over. With ``batching`` sends that gather while others are in flight travel together; each still
    gets its own result. ``accept_weaker``: take a result other than SEND_OK (stored, but flush or replication was late)
    instead of raising SendFailed.

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

    # --- what users call

    def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        timeout_ms: float | None = None,
    ) -> SendResult:
        """Store one message; returns when a broker has acknowledged it.

        ``queue`` or ``selector`` say where it goes; a sharding key does, too: messages with one key keep their order.
        Raises SendFailed when no broker stored it in time, RouteNotFound for an unknown topic, TypeError or ValueError
        for arguments that cannot be used, and what ``selector`` raises.
        """
        return self._loop.call(
            lambda producer: producer.send(message, queue=queue, selector=selector, timeout_ms=timeout_ms)
        )

    def send_many(self, topic: TopicName, messages: Iterable[bytes | Message]) -> BulkResult:
        """Store many messages, given as bodies or as Messages of ``topic``; returns when all are acknowledged.

        They travel in batches that go round the topic's queues; each batch has the whole send timeout. Raises
        SendFailed when one could not be stored; others may be then. A list or a tuple is checked before anything is
        sent, other iterables while they are consumed; what they raise is raised here.
        """
        return self._loop.call(lambda producer: producer.send_many(topic, messages))

    def send_oneway(self, message: Message) -> None:
        """Send without an acknowledgement: returns when the request is queued on a connection.

        SendFailed when there was no connection to be had before the send timeout.
        """
        self._loop.call(lambda producer: producer.send_oneway(message))

    def queues(self, topic: TopicName) -> tuple[MessageQueue, ...]:
        """The queues that can be written now, sorted."""
        return self._loop.call(lambda producer: producer.queues(topic))
