"""`Ticket` of the asyncio `Producer`, and what its `send_nowait` calls."""

import asyncio
from collections.abc import Callable, Generator
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from mqcommon.message.message import Message
from mqcommon.message.queue import MessageQueue
from sdk.aio.crossing import Crossing
from sdk.aio.portal import Portal, set_future
from sdk.producer.foreign_thread import ForeignTickets
from sdk.producer.lanes import Selector, choice_of
from sdk.producer.pending import PendingSend, deliver
from sdk.producer.producer import Producer, watch_for
from sdk.producer.result import SendResult


class Ticket(PendingSend):
    """One send, until its end and after it: ``await ticket`` returns the `SendResult` or raises the error of the send.

    Any number of tasks of the producer's loop may await it, also after its end, when that returns at once. Cancelling
    them does not end the send. ``error`` is set when it was not stored.
    """

    __slots__ = ("crossing",)

    crossing: Crossing

    @property
    def message(self) -> Message:
        """The message: an equal one, as the producer does not keep the one that it was given."""
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
                # It has failed meanwhile, and this task cannot raise that any more.
                self.span.backlog.keep(self)
            raise


class Tickets:
    """Sends without waiting of one producer."""

    def __init__(self, loop: Portal[Producer]) -> None:
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
        client, sender, crossing = self._loop.opened(), self._sender, self._loop.crossing
        if sender is None:
            sender = self._sender = ForeignTickets(client, Ticket, "await producer.room()")
        watch = None
        if on_delivery is not None:
            watch = watch_for(on_delivery)
            # The loop of the client calls it, and lets the application's loop call the function.
            watch.on_delivery = lambda ticket: crossing.to_asyncio(partial(deliver, on_delivery, ticket))
        choice = choice_of(queue, selector, deliver_at, delay)
        ticket = sender.send(message, choice, timeout_ms, deliver_at, delay, watch)
        ticket.crossing = crossing
        return ticket
