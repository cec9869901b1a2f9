"""`Producer.send_nowait` for senders in threads other than the loop's thread.

A message is checked and counted in the sender's thread. The tickets cross to the loop in batches (`Inbox`): only the
first ticket of a batch wakes the loop. While the lock is held no span ends, so each ticket is counted in its own span.
"""

from collections import deque
from datetime import datetime, timedelta
from typing import Generic, TypeVar

import trio

from skylark.mqcommon.errors import SkylarkError
from skylark.mqcommon.message.message import Message
from skylark.mqcommon.message.queue import MessageQueue
from skylark.sdk.loop_thread import Inbox, OpenClient, closed
from skylark.sdk.producer.lanes import QueueChoice, Selector, choice_of
from skylark.sdk.producer.pending import PendingSend, Watch, new_ticket
from skylark.sdk.producer.producer import Producer

T = TypeVar("T", bound=PendingSend)


class ForeignTickets(Generic[T]):
    """Sends from any thread, with tickets of class ``kind``, to the producer in the loop of ``client``.

    ``wait_with`` is the call that the error recommends when there is no room.
    """

    def __init__(self, client: OpenClient[Producer], kind: type[T], wait_with: str) -> None:
        self.client = client
        #: The process of the client, by its number of forks.
        self.forks = client.home.forks
        self._kind = kind
        self._producer: Producer = client.client
        self._backlog = self._producer.backlog
        self._backlog.wait_with = wait_with
        inbox: Inbox[T | tuple[T, Message, QueueChoice]] = Inbox(client.token.run_sync_soon, self._place)
        self._put = inbox.put

    def send(
        self,
        message: Message,
        queue: MessageQueue | None,
        selector: Selector | None,
        timeout_ms: float | None,
        deliver_at: datetime | None,
        delay: timedelta | None,
        watch: Watch | None,
    ) -> T:
        """As `Producer.send_nowait`; may be called in any thread."""
        producer, backlog = self._producer, self._backlog
        size = producer.straight_size(message, queue, selector, timeout_ms, deliver_at, delay)
        if size is not None:
            with backlog.lock:
                backlog.count_in(size)
                ticket = new_ticket(self._kind, message, message.body, producer.timeout_s, watch, backlog.span, size)
                try:
                    self._put(ticket)
                except trio.RunFinishedError:
                    raise self._lost(ticket) from None
            return ticket
        if not producer.is_open:
            self.client.home.check()
            raise closed()
        choice = choice_of(queue, selector, deliver_at, delay)
        with backlog.lock:
            ticket, sent = producer.make_ticket(self._kind, message, choice, timeout_ms, deliver_at, delay, watch)
            try:
                self._put((ticket, sent, choice))
            except trio.RunFinishedError:
                raise self._lost(ticket) from None
        return ticket

    def _lost(self, ticket: T) -> SkylarkError:
        self._backlog.end([ticket])
        return closed()

    def _place(self, tickets: deque[T | tuple[T, Message, QueueChoice]]) -> None:
        producer = self._producer
        while tickets:
            ticket = tickets.popleft()
            if isinstance(ticket, tuple):
                producer.place_ticket(*ticket)
            else:
                producer.put_ticket(ticket)
