"""Sends of `Producer.send_nowait` that cannot go to their lanes at once: they need a route, or compression.

The waiting sends of a topic form a line, which a task of the producer works off. Messages whose queue is chosen keep
their order: while there is a line, later such messages of the topic join it, and `Producer.send` waits until the
earlier sends are gone. Other messages join the line only to wait for the route; large messages are compressed outside
the line, each in a task of its own.
"""

from collections import deque
from collections.abc import Callable

import trio
from trio.lowlevel import enable_ki_protection

from skylark.mqcommon.errors import RouteNotFound, SendFailed, SkylarkError
from skylark.mqcommon.message.message import Message
from skylark.sdk.loop_thread import closed
from skylark.sdk.producer.lane import Lane
from skylark.sdk.producer.lanes import Lanes, QueueChoice
from skylark.sdk.producer.packing import Packing
from skylark.sdk.producer.pending import PendingSend


class _Entry:
    """A ticket in a line. Its ``deadline`` counts from ``since`` on."""

    __slots__ = ("choice", "message", "since", "ticket")

    def __init__(self, ticket: PendingSend, message: Message, choice: QueueChoice) -> None:
        self.ticket = ticket
        self.message = message
        self.choice = choice
        self.since = trio.current_time()

    @property
    def left_s(self) -> float:
        """The time that the ticket has left."""
        return self.since + self.ticket.deadline - trio.current_time()


class WaitingSends:
    """The lines of one producer. ``nursery`` returns the nursery of its tasks, or raises an error once it is closed."""

    def __init__(self, lanes: Lanes, packing: Packing, nursery: Callable[[], trio.Nursery]) -> None:
        self._lanes = lanes
        self._packing = packing
        self._nursery = nursery
        self._is_closed = False
        #: By topic; empty most of the time. An Event is set when the entries before it are gone.
        self.waiting: dict[str, deque[_Entry | trio.Event]] = {}

    def place(self, ticket: PendingSend, message: Message, choice: QueueChoice) -> None:
        """Put the ticket of ``message`` into its lane, or a line. Raises SkylarkError when the client was closed."""
        if self._is_closed:
            raise closed()
        # A message whose queue is chosen must not overtake waiting messages: it joins their line, even if it could be
        # sent now.
        keeps_order = choice.keeps_order(message)
        if message.topic not in self.waiting or not keeps_order:
            must_wait = self._packing.waits(message, is_ordered=keeps_order)
            if must_wait and not keeps_order:
                self._nursery().start_soon(self._pack, _Entry(ticket, message, choice))
                return
            if not must_wait and (lane := self._known_lane(ticket, message, choice)) is not None:
                ticket.pack(self._packing.pack(message))
                lane.put(ticket)
                return
            if ticket.has_ended:
                return
        entry = _Entry(ticket, message, choice)
        line = self.waiting.get(message.topic)
        if line is None:
            line = deque[_Entry | trio.Event]()
            self._nursery().start_soon(self._work_off, message.topic, line)
            self.waiting[message.topic] = line
        line.append(entry)

    def _known_lane(self, ticket: PendingSend, message: Message, choice: QueueChoice) -> Lane | None:
        """As `Lanes.known`. The error of a selector ends the ticket."""
        try:
            return self._lanes.known(message, choice)
        except Exception as error:
            ticket.fail(error)
            return None

    async def passed(self, topic: str, timeout_s: float) -> float:
        """Wait until the sends in the line now are gone. Returns how much of the time is left.

        Raises SendFailed when the time is over.
        """
        line = self.waiting.get(topic)
        if line is None:
            return timeout_s
        gone, began = trio.Event(), trio.current_time()
        line.append(gone)
        with trio.move_on_after(timeout_s):
            await gone.wait()
            return timeout_s - (trio.current_time() - began)
        raise _too_late(topic)

    async def _finish(self, entry: _Entry, left_s: float) -> None:
        """Put the ticket into its lane as soon as that is possible."""
        ticket, message, choice = entry.ticket, entry.message, entry.choice
        packed, left_s = await self._packing.packed(message, left_s, is_ordered=choice.keeps_order(message))
        lane = await self._lanes.find(message, choice, left_s)
        ticket.deadline = entry.left_s
        ticket.pack(packed)
        lane.put(ticket)

    @enable_ki_protection
    async def _pack(self, entry: _Entry) -> None:
        """Compress a large message that need not keep its order."""
        try:
            await self._finish(entry, entry.left_s)
        except Exception as error:
            entry.ticket.fail(error)
        except trio.Cancelled:
            self._is_closed = True
            entry.ticket.fail(closed())
            raise

    @enable_ki_protection
    async def _work_off(self, topic: str, line: deque[_Entry | trio.Event]) -> None:
        last_error: Exception | None = None
        try:
            while line:
                # The entry stays in the line during its work, so that later ordered sends see that there is a line.
                first = line[0]
                if isinstance(first, _Entry):
                    try:
                        if (left_s := first.left_s) <= 0:
                            raise _too_late(topic) from last_error
                        await self._finish(first, left_s)
                    except RouteNotFound as error:
                        # All entries of the line need this route.
                        _fail_all(line, error)
                        continue
                    except Exception as error:
                        last_error = last_error or error
                        first.ticket.fail(error)
                else:
                    first.set()
                line.popleft()
        except trio.Cancelled:
            self._is_closed = True
            _fail_all(line, closed())
            raise
        finally:
            del self.waiting[topic]


def _fail_all(line: deque[_Entry | trio.Event], error: SkylarkError) -> None:
    """End all sends of the line with ``error``. Sends that join meanwhile stay in the line."""
    entries = list(line)
    line.clear()
    for entry in entries:
        if isinstance(entry, _Entry):
            entry.ticket.fail(error)
        else:
            entry.set()


def _too_late(topic: str) -> SendFailed:
    return SendFailed(f"message for {topic} was not sent in time: it had to wait for others, or for its route")
