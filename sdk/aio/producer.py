"""`Producer` for asyncio."""

import asyncio
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import trio

from skylark.mqcommon.clock import Clock
from skylark.mqcommon.message.message import Message
from skylark.mqcommon.message.queue import MessageQueue
from skylark.sdk.aio.facade import Client, Facade, call_of
from skylark.sdk.aio.portal import Crossing, Portal, set_future
from skylark.sdk.credentials import GivenCredentials, GivenTls
from skylark.sdk.loop_thread import Inbox, closed
from skylark.sdk.nameservers import NameServerSource
from skylark.sdk.producer.backlog import BUFFER_BYTES, BUFFER_COUNT
from skylark.sdk.producer.foreign_thread import ForeignTickets
from skylark.sdk.producer.lanes import QueueChoice, Selector, choice_of
from skylark.sdk.producer.packing import COMPRESS_OVER_BYTES, COMPRESSION_LEVEL
from skylark.sdk.producer.pending import PendingSend, deliver, new_ticket
from skylark.sdk.producer.producer import DEFAULT_GROUP, MAX_MESSAGE_BYTES, watch_for
from skylark.sdk.producer.producer import Producer as TrioProducer
from skylark.sdk.producer.result import SendResult
from skylark.sdk.starting import START_TIMEOUT_MS
from skylark.sdk.traces.sink import Trace
from skylark.sdk.values.libraries import JSON
from skylark.sdk.values.values import Values, values_of


class Ticket(PendingSend):
    """One send, until its end and after it: ``await ticket`` returns the `SendResult` or raises the error of the send.

    Any number of tasks of the producer's loop may await a ticket; after the send's end that returns at once. Cancelling
    these tasks does not end the send. ``error`` is set when the message was not stored.
    """

    __slots__ = ("crossing",)

    crossing: Crossing

    @property
    def message(self) -> Message:
        """A message equal to the message that was sent: the producer does not keep the original."""
        return self.given()

    def done(self) -> bool:
        """Whether the message is stored, or the send has failed."""
        return self.has_ended

    def result(self) -> SendResult:
        """The result; raises the error of the send, and RuntimeError before its end."""
        return self.outcome()

    def __await__(self) -> Generator[Any, Any, SendResult]:
        if not self.has_ended:
            yield from self._wait().__await__()
        return self.outcome()

    async def _wait(self) -> None:
        assert self.span is not None
        self.span.backlog.home.check("the producer of this ticket")
        crossing = self.crossing
        ended = crossing.loop.create_future()
        wake = partial(crossing.to_asyncio, partial(set_future, ended))
        self.watch(wake)
        if self.has_ended:
            return
        try:
            await ended
        except asyncio.CancelledError:
            self.unwatch(wake)
            if self.error is not None:
                # The send has failed meanwhile, and this cancelled task cannot raise its error.
                self.span.backlog.keep(self)
            raise


class _AwaitedSend(PendingSend):
    """A send that a task of the asyncio loop waits for."""

    __slots__ = ("answer",)

    answer: "asyncio.Future[SendResult]"


class _AwaitedSends:
    """`Producer.send` of one producer: sends cross to the client's loop in batches, and come back when they have ended.

    A separate call for each send would cost a task in each loop, and waking both loops.
    """

    def __init__(self, portal: Portal[TrioProducer]) -> None:
        client, crossing = portal.opened(), portal.crossing
        self._portal, self._crossing, self._loop = portal, crossing, crossing.loop
        self._producer = client.client
        self._is_over = False
        self._for_trio: Inbox[_AwaitedSend | tuple[_AwaitedSend, Message, QueueChoice]] = Inbox(
            client.token.run_sync_soon, self._place
        )
        self._for_asyncio: Inbox[_AwaitedSend] = Inbox(crossing.wake_asyncio, self._answer)
        self._waiting: dict[_AwaitedSend, None] = {}
        # A client that ends, in whatever way, may leave sends without an outcome.
        client.when_ended.append(lambda: crossing.to_asyncio(self._fail_all))

    async def send(
        self,
        message: Message,
        queue: MessageQueue | None,
        selector: Selector | None,
        timeout_ms: float | None,
        deliver_at: datetime | None,
        delay: timedelta | None,
    ) -> SendResult:
        """As `Producer.send`."""
        producer, ended = self._producer, self._for_asyncio
        entry: _AwaitedSend | tuple[_AwaitedSend, Message, QueueChoice]
        if self._is_over or not self._crossing.is_here():
            self._portal.opened()  # says so in another loop
            raise closed()
        if producer.straight_size(message, queue, selector, timeout_ms, deliver_at, delay) is not None:
            entry = send = new_ticket(_AwaitedSend, message, message.body, producer.timeout_s, ended)
        else:
            if not producer.is_open:
                self._portal.opened()  # says so in a child of the process that opened the producer
                raise closed()
            choice = choice_of(queue, selector, deliver_at, delay)
            send, sent = producer.make_send(_AwaitedSend, message, choice, timeout_ms, deliver_at, delay, ended)
            entry = (send, sent, choice)
        # Not the loop's `create_future`, which is a Python function around this constructor.
        send.answer = asyncio.Future(loop=self._loop)
        self._waiting[send] = None
        try:
            self._for_trio.put(entry)
            return await send.answer
        except trio.RunFinishedError:
            raise closed() from None
        finally:
            # Cancelled: a request that was sent already may still store the message; no further try is made.
            send.task = None
            self._waiting.pop(send, None)

    def _place(self, sends: deque[_AwaitedSend | tuple[_AwaitedSend, Message, QueueChoice]]) -> None:
        """In the client's loop."""
        producer = self._producer
        while sends:
            send = sends.popleft()
            if isinstance(send, tuple):
                producer.place_ticket(*send)
            else:
                producer.add_send(send)

    def _answer(self, sends: deque[_AwaitedSend]) -> None:
        """In asyncio."""
        while sends:
            send = sends.popleft()
            if not send.answer.done():
                if send.error is None:
                    send.answer.set_result(send.outcome())
                else:
                    send.answer.set_exception(send.error)

    def _fail_all(self) -> None:
        self._is_over = True
        for send in self._waiting:
            if not send.answer.done():
                send.answer.set_exception(closed())


class Producer(Facade[TrioProducer], of=TrioProducer):
    """`sdk.Producer` for asyncio.

    `selector` is called, and the argument of `send_many` consumed, in the client's thread; `on_delivery` is called in
    the loop that opens the producer.
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
        value: Any = None,
        value_format: str = JSON,
    ) -> None:
        super().__init__(nameserver, locals())
        # Values are encoded in the thread that sends them.
        self._values = None if value is None else Values(value, value_format)
        self._sender: ForeignTickets[Ticket] | None = None
        self._sends: _AwaitedSends | None = None
        self._crossing: Crossing | None = None
        self.group = group

    @property
    def retried(self) -> int:
        """The number of retries of all sends so far."""
        return self._loop.call_sync(lambda producer: producer.retried)

    # --- public methods

    async def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        timeout_ms: float | None = None,
        deliver_at: datetime | None = None,
        delay: timedelta | None = None,
    ) -> SendResult:
        sends = self._sends
        if sends is None:
            sends = self._sends = _AwaitedSends(self._loop)
        return await sends.send(message, queue, selector, timeout_ms, deliver_at, delay)

    send.__doc__ = TrioProducer.send.__doc__

    def message(
        self,
        topic: str,
        value: Any,
        *,
        headers: Mapping[str, str] | None = None,
        tags: str | None = None,
        keys: str | Iterable[str] | None = None,
        delay_level: int = 0,
        sharding_key: str | None = None,
        priority: int | None = None,
    ) -> Message:
        return values_of(self._values).message(
            topic,
            value,
            headers=headers,
            tags=tags,
            keys=keys,
            delay_level=delay_level,
            sharding_key=sharding_key,
            priority=priority,
        )

    message.__doc__ = TrioProducer.message.__doc__

    async def send_value(
        self,
        topic: str,
        value: Any,
        *,
        headers: Mapping[str, str] | None = None,
        tags: str | None = None,
        keys: str | Iterable[str] | None = None,
        sharding_key: str | None = None,
        priority: int | None = None,
        timeout_ms: float | None = None,
        deliver_at: datetime | None = None,
        delay: timedelta | None = None,
    ) -> SendResult:
        message = self.message(
            topic, value, headers=headers, tags=tags, keys=keys, sharding_key=sharding_key, priority=priority
        )
        return await self.send(message, timeout_ms=timeout_ms, deliver_at=deliver_at, delay=delay)

    send_value.__doc__ = TrioProducer.send_value.__doc__

    send_many = call_of(TrioProducer.send_many)
    send_arrow = call_of(TrioProducer.send_arrow)
    send_oneway = call_of(TrioProducer.send_oneway)

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
        """Queue one message and return its ticket, which later has the send's outcome. See `send` for the arguments.

        ``on_delivery`` is called with the ticket at the end, once; it must not block, and its exceptions are logged. An
        error of a ``selector`` becomes the ticket's error. Raises BufferFull when ``buffer_count`` messages or
        ``buffer_bytes`` wait: then call `room`. An error that the program does not see (by awaiting the ticket, by its
        ``result`` or by ``on_delivery``) is raised by `flush`.
        """
        sender, crossing = self._sender, self._crossing
        if sender is None or crossing is None or not crossing.is_here():
            client, crossing = self._loop.opened(), self._loop.crossing
            sender = self._sender = ForeignTickets(client, Ticket, "await producer.room()")
            self._crossing = crossing
        watch = None
        if on_delivery is not None:
            watch = watch_for(on_delivery)
            # The client's loop calls this lambda, which lets the application's loop call ``on_delivery``.
            watch.on_delivery = lambda ticket: crossing.to_asyncio(partial(deliver, on_delivery, ticket))
        ticket = sender.send(message, queue, selector, timeout_ms, deliver_at, delay, watch)
        ticket.crossing = crossing
        return ticket

    room = call_of(TrioProducer.room)

    async def flush(self) -> None:
        # Two steps: errors are taken, and then count as seen, only when the call can no longer be cancelled.
        await self._loop.call(lambda producer: producer.wait_for_flush())
        self._loop.call_sync(lambda producer: producer.finish_flush())

    flush.__doc__ = TrioProducer.flush.__doc__

    # --- requests and replies

    request = call_of(TrioProducer.request)
    reply_to = call_of(TrioProducer.reply_to)

    # --- messages with a time of delivery, and queues

    recall = call_of(TrioProducer.recall)
    queues = call_of(TrioProducer.queues)

    @property
    def traces_dropped(self) -> int:
        """How many records of the trace were dropped, because brokers did not take them fast enough or at all."""
        return self._loop.call_sync(lambda producer: producer.traces_dropped)
