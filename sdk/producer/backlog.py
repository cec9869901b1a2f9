"""The sends that `Producer.send_nowait` has accepted: how many have no outcome yet, and which errors are unseen.

Sends are counted in by their senders, who may be in other threads and then hold ``lock``, and counted out by the loop.
Each side has counters of its own, so the loop needs no lock to count. `flush` waits only for earlier sends: it ends
their span, and later sends belong to the next span. The tickets of a span are counted out one by one only after its
end; before that, a span's number of tickets is the total less the tickets of earlier spans.

An error counts as seen when a task waited for the ticket, a caller read its result, or the ticket has an
``on_delivery``. Unseen errors are kept for the next `flush`, at most MOST_KEPT of them; further errors are only
counted.
"""

from collections.abc import Sequence
from threading import Lock
from typing import Protocol

import trio

from skylark.mqcommon.arguments import INT_MAX, LONG_MAX, check_int
from skylark.mqcommon.errors import BufferFull, SendFailed
from skylark.sdk.runtime import Home, SendsFailed

# Few enough to be sent before the default timeout by a slow broker, and many more than the largest batches in flight.
BUFFER_COUNT = 20_000
BUFFER_BYTES = 32 * 1024 * 1024
MOST_KEPT = 1_000


class Counted(Protocol):
    """A ticket as the backlog sees it."""

    size: int
    span: "Span | None"
    error: Exception | None


class Span:
    """The sends between two flushes. ``left``: how many have not ended, counted while a flush waits for the span."""

    __slots__ = ("backlog", "ended", "left")

    def __init__(self, backlog: "Backlog") -> None:
        self.backlog = backlog
        self.left = 0
        self.ended = trio.Event()


class Backlog:
    """The waiting sends of one producer: at most ``most_count``, of ``most_bytes``; the last may exceed the bytes."""

    def __init__(self, most_count: int, most_bytes: int) -> None:
        check_int("buffer_count", most_count, 1, INT_MAX)
        check_int("buffer_bytes", most_bytes, 1, LONG_MAX)
        self._most_count = most_count
        self._most_bytes = most_bytes
        self.lock = Lock()
        #: The span of new sends.
        self.span = Span(self)
        #: The call that an error recommends when there is no room.
        self.wait_with = "await producer.room()"
        #: The process in which the sends end.
        self.home = Home()
        # Only senders change these counters.
        self._taken = self._taken_bytes = 0
        # Only the loop changes these counters.
        self._ended = self._ended_bytes = 0
        # Spans that flushes wait for, oldest first.
        self._closed: list[Span] = []
        # Set when the next send ends, if a task waits for room.
        self._freed: trio.Event | None = None
        self._unseen: dict[Counted, None] = {}
        self._not_kept = 0

    @property
    def waiting(self) -> int:
        """How many sends have no outcome yet."""
        return self._taken - self._ended

    @property
    def waiting_bytes(self) -> int:
        """How many bytes the bodies of sends without an outcome have."""
        return self._taken_bytes - self._ended_bytes

    # --- of senders

    def count_in(self, size: int) -> None:
        """Count in a send of ``size`` bytes, which belongs to ``span``. BufferFull when there is no room."""
        if self._taken - self._ended >= self._most_count or self._taken_bytes - self._ended_bytes >= self._most_bytes:
            raise BufferFull(
                f"{self.waiting} messages with {self.waiting_bytes} bytes wait to be stored, and the buffer is for "
                f"{self._most_count} and {self._most_bytes}: call `{self.wait_with}`, then send again"
            )
        self._taken += 1
        self._taken_bytes += size

    def seen(self, ticket: Counted) -> None:
        """Drop the ticket's error, which the program has seen."""
        self._unseen.pop(ticket, None)

    def keep(self, ticket: Counted) -> None:
        """Keep the ticket's error, which the program has not seen."""
        if len(self._unseen) < MOST_KEPT:
            self._unseen[ticket] = None
        else:
            self._not_kept += 1

    # --- in the loop

    def end(self, tickets: Sequence[Counted]) -> None:
        """Count out sends that have ended."""
        self._ended += len(tickets)
        for ticket in tickets:
            self._ended_bytes += ticket.size
        # Only while a flush waits: otherwise all waiting sends are in one span, which needs no count of its own.
        for ticket in tickets if self._closed else ():
            span = ticket.span
            if span is not None and span is not self.span:
                span.left -= 1
                if not span.left:
                    self._closed.remove(span)
                    span.ended.set()
        freed, self._freed = self._freed, None
        if freed is not None:
            freed.set()

    async def room(self) -> None:
        """Return when there is room for a send."""
        await trio.lowlevel.checkpoint()
        while self.waiting >= self._most_count or self.waiting_bytes >= self._most_bytes:
            if self._freed is None:
                self._freed = trio.Event()
            await self._freed.wait()

    async def ended(self) -> None:
        """Return when all sends until now have ended."""
        with self.lock:
            # All waiting sends less the sends of closed spans is the number of sends in the open span. The span is
            # closed under the lock, so that no send is counted in between.
            left = self.waiting - sum([span.left for span in self._closed])
            if left:
                self.span.left = left
                self._closed.append(self.span)
                self.span = Span(self)
        # Wait for earlier spans, too: a flush covers all sends until now.
        for span in list(self._closed):
            await span.ended.wait()

    def take_unseen(self) -> SendsFailed | None:
        """The unseen errors; from now on they count as seen."""
        unseen, self._unseen = self._unseen, {}
        more, self._not_kept = self._not_kept, 0
        errors = [ticket.error for ticket in unseen if ticket.error is not None]
        if not errors:
            return None
        rest = f", the first {len(errors)} of them" if more else ""
        return SendsFailed(f"{len(errors) + more} messages were not stored, and nobody has seen why{rest}", errors)

    def take_lost(self) -> SendsFailed | None:
        """At the producer's end: the unseen errors, with sends without an outcome as lost. None in a child process."""
        if not self.home.is_here:
            return None
        failed, left = self.take_unseen(), self.waiting
        if not left:
            return failed
        error = SendFailed(f"{left} messages had no answer when the producer was closed; they may be stored")
        return SendsFailed(
            error.args[0] if failed is None else f"{failed.message}; {error}",
            [error] if failed is None else [*failed.exceptions, error],
        )
