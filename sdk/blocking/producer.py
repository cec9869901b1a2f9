"""`Producer` whose methods block."""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from threading import Event
from typing import Any

import trio

from skylark.mqcommon.clock import Clock
from skylark.mqcommon.message.message import Message
from skylark.mqcommon.message.queue import MessageQueue
from skylark.sdk.blocking.facade import Client, Facade, call_of
from skylark.sdk.credentials import GivenCredentials, GivenTls
from skylark.sdk.nameservers import NameServerSource
from skylark.sdk.producer.backlog import BUFFER_BYTES, BUFFER_COUNT
from skylark.sdk.producer.foreign_thread import ForeignTickets
from skylark.sdk.producer.lanes import Selector
from skylark.sdk.producer.packing import COMPRESS_OVER_BYTES, COMPRESSION_LEVEL
from skylark.sdk.producer.pending import PendingSend
from skylark.sdk.producer.producer import DEFAULT_GROUP, MAX_MESSAGE_BYTES, watch_for
from skylark.sdk.producer.producer import Producer as TrioProducer
from skylark.sdk.producer.result import SendResult
from skylark.sdk.runtime import FORKS
from skylark.sdk.starting import START_TIMEOUT_MS
from skylark.sdk.traces.sink import Trace
from skylark.sdk.values.libraries import JSON
from skylark.sdk.values.values import Values, values_of


class Ticket(PendingSend):
    """One send, until its end and after it: `result` waits for the `SendResult`, or raises the error of the send.

    Any thread may call `result`, any number of times. ``error`` is set when the message was not stored.
    """

    __slots__ = ()

    @property
    def message(self) -> Message:
        """A message equal to the message that was sent: the producer does not keep the original."""
        return self.given()

    def done(self) -> bool:
        """Whether the message is stored, or the send has failed."""
        return self.has_ended

    def result(self, timeout: float | None = None) -> SendResult:
        """The result, or the error of the send. Waits for the end, which comes before the send's own timeout.

        Raises TimeoutError when that takes more than ``timeout`` seconds; the send goes on. RuntimeError when called in
        the client's thread (as in ``on_delivery``) before the end.
        """
        if not self.has_ended:
            self._wait(timeout)
        return self.outcome()

    def _wait(self, timeout: float | None) -> None:
        assert self.span is not None
        self.span.backlog.home.check("the producer of this ticket")
        if _is_in_loop():
            raise RuntimeError("result() would block the event loop of this thread: ask `done` first")
        ended = Event()
        self.watch(ended.set)
        try:
            if not self.has_ended:
                ended.wait(timeout)
        except BaseException:
            if self.error is not None:
                # The send has failed meanwhile, and this interrupted thread cannot raise its error.
                self.span.backlog.keep(self)
            raise
        finally:
            self.unwatch(ended.set)
        if not self.has_ended:
            raise TimeoutError(f"the send has not ended within {timeout} s; it goes on")


def _is_in_loop() -> bool:
    try:
        trio.lowlevel.current_trio_token()
    except RuntimeError:
        return False
    return True


class Producer(Facade[TrioProducer], of=TrioProducer):
    """`sdk.Producer` with methods that block.

    Each `send` waits for its answer, so one thread sends one message per round trip: use `send_nowait`, `send_many`, or
    several threads, whose sends are batched. `send_many` consumes its argument, and `on_delivery` and `selector` are
    called, in the client's thread, which they must not block. `close` does the same as leaving ``with``.
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
        self.group = group

    @property
    def retried(self) -> int:
        """The number of retries of all sends so far."""
        return self._loop.call_sync(lambda producer: producer.retried)

    # --- public methods

    send = call_of(TrioProducer.send)

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

    def send_value(
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
        return self.send(message, timeout_ms=timeout_ms, deliver_at=deliver_at, delay=delay)

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
        sender = self._sender
        if sender is None or sender.forks != FORKS.count:
            # The first ticket, or the first ticket in the child of a fork.
            sender = self._sender = ForeignTickets(self._loop.opened(), Ticket, "producer.room()")
        watch = None if on_delivery is None else watch_for(on_delivery)
        return sender.send(message, queue, selector, timeout_ms, deliver_at, delay, watch)

    room = call_of(TrioProducer.room)

    def flush(self) -> None:
        # Two steps: errors are taken, and then count as seen, only when the call can no longer be cancelled.
        self._loop.call(lambda producer: producer.wait_for_flush())
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
