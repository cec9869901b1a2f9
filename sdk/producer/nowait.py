"""`SendNowait`: the methods of `Producer` for sends that nobody need wait for. Each has a ticket, and no task.

A ticket is the `PendingSend` of a lane, so these sends are batched and retried as others are. Neighbours: backlog.py
(their bound and errors), lines.py (those that cannot go to a lane at once), elsewhere.py (senders in other threads).
"""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TypeVar

import trio
from trio.lowlevel import enable_ki_protection

from mqcommon.arguments import check_milliseconds, wrong_type
from mqcommon.errors import SkylarkError
from mqcommon.message.message import Message
from mqcommon.message.own_key import OwnKeyMessage
from mqcommon.message.properties import DELAY, LIGHT_QUEUES, SHARDING_KEY
from mqcommon.message.queue import MessageQueue
from sdk.producer.backlog import Backlog
from sdk.producer.bulk import check_body
from sdk.producer.lane import Lane
from sdk.producer.lanes import ANY_QUEUE, Choice, Selector, choice_of
from sdk.producer.lines import Lines
from sdk.producer.pending import PendingSend, Watch, new_ticket
from sdk.producer.ticket import Ticket
from sdk.producer.timed import timed
from sdk.runtime import FORKS
from sdk.shared import ClientHandle

T = TypeVar("T", bound=PendingSend)
# Messages with one of these are not like others.
_SPECIAL = (SHARDING_KEY, DELAY, LIGHT_QUEUES)


class SendNowait:
    """Part of `sdk.Producer`."""

    _client: ClientHandle
    _timeout_s: float
    _max_message_bytes: int
    _plain_bytes: int
    _open_lanes: dict[str | MessageQueue, Lane]
    _lines: Lines
    _backlog: Backlog

    # --- sends without waiting

    @enable_ki_protection
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
        backlog, client = self._backlog, self._client
        if client.forks != FORKS.count:
            client.check_open()
        if (
            type(message) is Message
            and queue is None
            and selector is None
            and timeout_ms is None
            and deliver_at is None
            and delay is None
            and ((properties := message.properties) is None or properties.keys().isdisjoint(_SPECIAL))
            and type(body := message.body) is bytes
            and (size := len(body)) <= self._plain_bytes
            and (lane := self._open_lanes.get(message.topic)) is not None
        ):
            watch = None if on_delivery is None else watch_for(on_delivery)
            backlog.take(size)
            ticket = new_ticket(Ticket, message, body, self._timeout_s, watch, backlog.span, size)
            try:
                lane.put(ticket)
            except SkylarkError:
                backlog.end([ticket])
                raise
            return ticket
        choice = choice_of(queue, selector, deliver_at, delay)
        watch = None if on_delivery is None else watch_for(on_delivery)
        ticket, message = self.make_ticket(Ticket, message, choice, timeout_ms, deliver_at, delay, watch)
        try:
            self._lines.place(ticket, message, choice)
        except Exception:
            backlog.end([ticket])
            raise
        return ticket

    async def room(self) -> None:
        """Return when `send_nowait` accepts a message. It takes a turn of the loop, so call it after a BufferFull."""
        self._client.check_open()
        await self._backlog.room()
        self._client.check_open()

    async def flush(self) -> None:
        """Return when all sends of `send_nowait` until now have ended.

        Raises an ExceptionGroup with the errors that nobody has seen, at most 1,000 of them. They have been seen then.
        """
        self._client.check_open()
        await self._backlog.ended()
        await trio.lowlevel.checkpoint()
        if (failed := self._backlog.take_unseen()) is not None:
            raise failed

    # --- used by senders in other threads

    @property
    def is_open(self) -> bool:
        """Whether the producer is open, and in this process."""
        return self._client.forks == FORKS.count

    @property
    def backlog(self) -> Backlog:
        """What waits."""
        return self._backlog

    def make_ticket(
        self,
        kind: type[T],
        message: Message,
        choice: Choice,
        timeout_ms: float | None,
        deliver_at: datetime | None,
        delay: timedelta | None,
        watch: Watch | None,
    ) -> tuple[T, Message]:
        """Check the arguments and count the send in: its ticket, and the message to send. In any thread."""
        if not isinstance(message, Message):
            raise wrong_type("message", "a Message", message)
        if timeout_ms is not None:
            check_milliseconds("timeout_ms", timeout_ms)
        if choice is not ANY_QUEUE or message.topic not in self._open_lanes:
            choice.check(message)
        sent = timed(message, deliver_at, delay) if choice.is_timed else message
        check_body("message.body", sent.body, self._max_message_bytes)
        size, timeout_s = len(sent.body), self._timeout_s if timeout_ms is None else timeout_ms / 1000
        self._backlog.take(size)
        ticket = new_ticket(kind, sent, sent.body, timeout_s, watch, self._backlog.span, size)
        if isinstance(message, OwnKeyMessage):
            ticket.set_key(message.encoded_key)
        properties = sent.properties or ()
        ticket.alone = choice.is_timed or DELAY in properties or LIGHT_QUEUES in properties
        return ticket, sent

    def place_ticket(self, ticket: PendingSend, message: Message, choice: Choice) -> None:
        """In the loop: let the ticket go its way. It ends in any case."""
        try:
            self._client.check_open()
            self._lines.place(ticket, message, choice)
        except Exception as error:
            ticket.fail(error)

    def goes_straight(self, ticket: PendingSend, message: Message, choice: Choice) -> bool:
        """Whether `put_ticket`, which is faster than `place_ticket`, may be called with it. In any thread."""
        return (
            choice is ANY_QUEUE
            and message.properties is None
            and ticket.size <= self._plain_bytes
            and ticket.topic in self._open_lanes
        )

    def put_ticket(self, ticket: PendingSend) -> None:
        """In the loop: put the ticket into the lane of its topic, or end it."""
        try:
            self._open_lanes[ticket.topic].put(ticket)
        except SkylarkError as error:
            ticket.fail(error)

    # --- used by the end of the producer

    async def _settle(self) -> None:
        """Wait for the end of the sends, for the send timeout at most."""
        if self._backlog.waiting and self._client.forks == FORKS.count:
            with trio.move_on_after(self._timeout_s):
                await self._backlog.ended()


def watch_for(on_delivery: Callable[[T], object]) -> Watch:
    """What tells ``on_delivery``. TypeError when that is not a function."""
    if not callable(on_delivery):
        raise wrong_type("on_delivery", "a function", on_delivery)
    return Watch(on_delivery)
