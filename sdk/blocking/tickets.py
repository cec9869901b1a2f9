"""`Ticket` of the blocking `Producer`, and what its `send_nowait` calls."""

from collections.abc import Callable
from datetime import datetime, timedelta
from threading import Event

import trio

from mqcommon.message.message import Message
from mqcommon.message.queue import MessageQueue
from sdk.blocking.loop import ClientLoop
from sdk.producer.foreign_thread import ForeignTickets
from sdk.producer.lanes import Selector, choice_of
from sdk.producer.pending import PendingSend
from sdk.producer.producer import Producer, watch_for
from sdk.producer.result import SendResult


class Ticket(PendingSend):
    """One send, until its end and after it: `result` waits for the `SendResult`, or raises the error of the send.

    Any thread may ask, and more than once. ``error`` is set when it was not stored.
    """

    __slots__ = ()

    @property
    def message(self) -> Message:
        """The message: an equal one, as the producer does not keep the one that it was given."""
        return self.given()

    def done(self) -> bool:
        """Whether the message is stored, or the send has failed."""
        return self.has_ended

    def result(self, timeout: float | None = None) -> SendResult:
        """The result, or the error of the send; waits for the end, which comes before the send's own timeout.

        Raises TimeoutError when that takes more than ``timeout`` seconds; the send goes on. RuntimeError when the
        client's thread, in which ``on_delivery`` is called, would have to wait.
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


class Tickets:
    """Sends without waiting of one producer."""

    def __init__(self, loop: ClientLoop[Producer]) -> None:
        self._loop = loop
        self._sender: ForeignTickets[Ticket] | None = None

    def send_nowait(
        self,
        message: Message,
        *,
        queue: MessageQueue | None,
        selector: Selector | None,
        timeout_ms: float | None,
        deliver_at: datetime | None,
        delay: timedelta | None,
        on_delivery: Callable[[Ticket], object] | None,
    ) -> Ticket:
        """See `Producer.send_nowait`."""
        client, sender = self._loop.opened(), self._sender
        if sender is None or sender.client is not client:
            sender = self._sender = ForeignTickets(client, Ticket, "producer.room()")
        watch = None if on_delivery is None else watch_for(on_delivery)
        choice = choice_of(queue, selector, deliver_at, delay)
        return sender.send(message, choice, timeout_ms, deliver_at, delay, watch)
