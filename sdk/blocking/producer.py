"""`Producer` whose methods block."""

from collections.abc import Callable
from datetime import datetime, timedelta

from mqcommon.clock import Clock
from mqcommon.message.message import Message
from mqcommon.message.queue import MessageQueue
from sdk.blocking.client import Client
from sdk.blocking.facade import Facade, call_of, loop_of
from sdk.blocking.tickets import Ticket, Tickets
from sdk.credentials import GivenCredentials, GivenTls
from sdk.nameservers import NameServerSource
from sdk.producer.backlog import BUFFER_BYTES, BUFFER_COUNT
from sdk.producer.lanes import Selector
from sdk.producer.packing import COMPRESS_OVER_BYTES, COMPRESSION_LEVEL
from sdk.producer.producer import DEFAULT_GROUP, MAX_MESSAGE_BYTES
from sdk.producer.producer import Producer as AsyncProducer
from sdk.starting import START_TIMEOUT_MS
from sdk.traces.sink import Trace


class Producer(Facade[AsyncProducer]):
    """``with Producer("127.0.0.1:9876") as producer: ...``

    ``nameserver`` says where the NameServers are, or is a shared `Client`; by default $NAMESRV_ADDR. Topics and the
    group are names in ``namespace``, by default that of the `Client`. ``send_timeout_ms`` is the time for all tries of
    a send together. ``retries`` limits the tries that may have stored the message; each gets an
    equal share of the time, so that a broker that does not answer costs at most ``send_timeout_ms / (retries + 1)``.
    Tries that stored nothing, because no broker was reachable or it was busy, are repeated until the timeout. With
    ``batching``, sends that wait while others are in flight become one request; each still gets its own result. With
    ``accept_weaker``, a result other than SEND_OK (stored, but flush or replication was late) is returned instead of
    raising SendFailed. ``compression`` ("zlib", "lz4" or "zstd") is for bodies longer than ``compress_over_bytes``;
    ``compression_level``, from 1 to 9, is not for LZ4.
    ``trace`` records each message in RocketMQ's trace topic, ``trace_topic`` in another one; ``trace`` may be a sink.
    `send_nowait` accepts messages until ``buffer_count`` of them or ``buffer_bytes`` of bodies wait. Leaving
    ``with`` waits for them, ``send_timeout_ms`` at most, and raises what `flush` would raise, or logs it when the
    block has raised an exception.

    Opening it raises NoNameServer when no NameServer answers within ``start_timeout_ms``, and BrokerError when a broker
    refuses its credentials; with None nothing is asked at the start.

    Each `send` waits for its answer, so one thread sends one message per round trip: use `send_nowait`, `send_many`, or
    several threads, whose sends are batched. `send_many` consumes its argument, and `on_delivery` and `selector` are
    called, in the client's thread, which they must not block. `close` does what is said here about leaving ``with``.
    """

    def __init__(
        self,
        nameserver: NameServerSource | Client | None = None,
        *,
        group: str = DEFAULT_GROUP,
        send_timeout_ms: float = 3000,
        retries: int = 2,
        batching: bool = True,
        accept_weaker: bool = False,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        clock: Clock | None = None,
        namespace: str = "",
        credentials: GivenCredentials = None,
        tls: GivenTls = None,
        trace: Trace = False,
        trace_topic: str | None = None,
        compression: str | None = None,
        compress_over_bytes: int = COMPRESS_OVER_BYTES,
        compression_level: int = COMPRESSION_LEVEL,
        buffer_count: int = BUFFER_COUNT,
        buffer_bytes: int = BUFFER_BYTES,
        start_timeout_ms: float | None = START_TIMEOUT_MS,
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
                    namespace=namespace,
                    credentials=credentials,
                    tls=tls,
                    trace=trace,
                    trace_topic=trace_topic,
                    compression=compression,
                    compress_over_bytes=compress_over_bytes,
                    compression_level=compression_level,
                    buffer_count=buffer_count,
                    buffer_bytes=buffer_bytes,
                    start_timeout_ms=start_timeout_ms,
                ),
            )
        )
        self._tickets = Tickets(self._loop)
        self.group = group

    @property
    def retried(self) -> int:
        """The number of retries of all sends so far."""
        return self._loop.call_sync(lambda producer: producer.retried)

    # --- public methods

    send = call_of(AsyncProducer.send)
    send_many = call_of(AsyncProducer.send_many)
    send_arrow = call_of(AsyncProducer.send_arrow)
    send_oneway = call_of(AsyncProducer.send_oneway)

    # --- sends without waiting

    def send_nowait(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        timeout_ms: float | None = None,
        deliver_at: datetime | None = None,
        delay: timedelta | None = None,
        on_delivery: Callable[[Ticket], object] | None = None,
    ) -> Ticket:
        """Queue one message and return its ticket, which says later what became of it. See `send` for the arguments.

        ``on_delivery`` is called with the ticket at the end, once; it must not block, and what it raises is logged. The
        error of a ``selector`` is that of the ticket. Raises BufferFull when ``buffer_count`` messages or
        ``buffer_bytes`` wait: then call `room`. An error that nobody sees, by waiting for the ticket, with its
        ``result`` or with ``on_delivery``, is raised by `flush`.
        """
        return self._tickets.send_nowait(
            message,
            queue=queue,
            selector=selector,
            timeout_ms=timeout_ms,
            deliver_at=deliver_at,
            delay=delay,
            on_delivery=on_delivery,
        )

    room = call_of(AsyncProducer.room)
    flush = call_of(AsyncProducer.flush)

    # --- requests and replies

    request = call_of(AsyncProducer.request)
    reply_to = call_of(AsyncProducer.reply_to)

    # --- messages with a time of delivery, and queues

    recall = call_of(AsyncProducer.recall)
    queues = call_of(AsyncProducer.queues)

    @property
    def traces_dropped(self) -> int:
        """How many records of the trace were dropped, because brokers did not take them fast enough or at all."""
        return self._loop.call_sync(lambda producer: producer.traces_dropped)
