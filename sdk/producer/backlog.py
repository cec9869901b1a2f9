"""What `Producer.send_nowait` has accepted: how much has no outcome yet, and which errors nobody has seen.

Sends are counted in by their senders, who may be in other threads and then hold ``lock``, and counted out by the loop.
Each side has counters of its own, so the loop needs no lock for that. `flush` waits for the sends before it only:
it ends their span, and later sends belong to the next one. The tickets of a span are counted out one by one only
after that; before, their number is what remains when those of earlier spans are taken off.

An error has been seen when somebody waited for the ticket, asked it for its result, or gave it an ``on_delivery``.
Others are kept for the next `flush`, MOST_KEPT of them; the rest is only counted.
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
    """The sends between two flushes. ``left`` of them have not ended, which is known while a flush waits for them."""

    __slots__ = ("backlog", "ended", "left")

    def __init__(self, backlog: "Backlog") -> None:
        self.backlog = backlog
        self.left = 0
        self.ended = trio.Event()


class Backlog:
    """Of one producer: at most ``most_count`` sends of ``most_bytes``; the last one may exceed the bytes."""

    def __init__(self, most_count: int, most_bytes: int) -> None:
        check_int("buffer_count", most_count, 1, INT_MAX)
        check_int("buffer_bytes", most_bytes, 1, LONG_MAX)
        self._most_count = most_count
        self._most_bytes = most_bytes
        self.lock = Lock()
        #: That of new sends.
        self.span = Span(self)
        #: What callers are told to wait with, when there is no room.
        self.wait_with = "await producer.room()"
        #: The process in which the sends end.
        self.home = Home()
        # Only senders change these.
        self._taken = self._taken_bytes = 0
        # Only the loop changes these.
        self._ended = self._ended_bytes = 0
        # Spans that flushes wait for, oldest first.
        self._closed: list[Span] = []
        # Set at the next end, if somebody waits for room.
        self._freed: trio.Event | None = None
        self._unseen: dict[Counted, None] = {}
        self._not_kept = 0

    @property
    def waiting(self) -> int:
        """How many sends have no outcome."""
        return self._taken - self._ended

    @property
    def waiting_bytes(self) -> int:
        """How many bytes their bodies have."""
        return self._taken_bytes - self._ended_bytes

    # --- of senders

    def take(self, size: int) -> None:
        """Count in a send of ``size`` bytes, which belongs to ``span``. BufferFull when there is no room."""
        if self._taken - self._ended >= self._most_count or self._taken_bytes - self._ended_bytes >= self._most_bytes:
            raise BufferFull(
                f"{self.waiting} messages with {self.waiting_bytes} bytes wait to be stored, and the buffer is for "
                f"{self._most_count} and {self._most_bytes}: call `{self.wait_with}`, then send again"
            )
        self._taken += 1
        self._taken_bytes += size

    def seen(self, ticket: Counted) -> None:
        """Somebody has got the ticket's error."""
        self._unseen.pop(ticket, None)

    def keep(self, ticket: Counted) -> None:
        """Nobody has got the ticket's error."""
        if len(self._unseen) < MOST_KEPT:
            self._unseen[ticket] = None
        else:
            self._not_kept += 1

    # --- in the loop

    def end(self, tickets: Sequence[Counted]) -> None:
        """Count out sends that have ended."""
        self._ended += len(tickets)
        self._ended_bytes += sum([ticket.size for ticket in tickets])
        # Only while a flush waits: until then a span needs no count of its own, since all that waits is in it.
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
        """Return when a send can be counted in."""
        await trio.lowlevel.checkpoint()
        while self.waiting >= self._most_count or self.waiting_bytes >= self._most_bytes:
            if self._freed is None:
                self._freed = trio.Event()
            await self._freed.wait()

    async def ended(self) -> None:
        """Return when all sends until now have ended."""
        with self.lock:
            # What waits now less what earlier flushes wait for is the number of sends in the open span. It is closed
            # under the lock, so that no sender counts itself in between.
            left = self.waiting - sum([span.left for span in self._closed])
            if left:
                self.span.left = left
                self._closed.append(self.span)
                self.span = Span(self)
        # Earlier spans, too: a flush promises all sends until now.
        for span in list(self._closed):
            await span.ended.wait()

    def take_unseen(self) -> SendsFailed | None:
        """The errors that nobody has seen; from now on they have been seen."""
        unseen, self._unseen = self._unseen, {}
        more, self._not_kept = self._not_kept, 0
        errors = [ticket.error for ticket in unseen if ticket.error is not None]
        if not errors:
            return None
        rest = f", the first {len(errors)} of them" if more else ""
        return SendsFailed(f"{len(errors) + more} messages were not stored, and nobody has seen why{rest}", errors)

    def take_lost(self) -> SendsFailed | None:
        """At the end of the producer: sends without an outcome are lost, too. None in a child process."""
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
