"""Batches of one queue, pulled one ahead of the caller; `assigned.py` merges the batches of several queues.

The next pull runs in a task of the client's nursery, so that the caller needs no nursery of its own. At most one batch
is ready while the caller works on another. No iterator here is a generator: a generator ends with its first error or
cancellation, while these iterators go on with the next call.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from typing import Generic, Protocol, Self, TypeVar, cast

import trio
from trio.lowlevel import enable_ki_protection

from skylark.mqcommon.backoff import Backoff
from skylark.mqcommon.errors import SkylarkError
from skylark.mqcommon.message.message import MessageExt
from skylark.sdk.consumer.read_retry import PullOutcome, gives_up_when_refused, pull_with_retry, read_with_retry
from skylark.sdk.consumer.trail import Trail
from skylark.sdk.position import Position

FindStart = Callable[[], Awaitable[Position]]
B = TypeVar("B")
B_co = TypeVar("B_co", covariant=True)


class PulledBatch(PullOutcome, Protocol[B_co]):
    """A pull whose messages are a batch of this type; a batch without messages is false."""

    @property
    def messages(self) -> B_co: ...


class _Ahead(Generic[B]):
    """The next batch or its error, set by a task. ``created_ms``: the stamp that ``next_offset`` belongs to."""

    __slots__ = ("created_ms", "done", "error", "messages", "next_offset")

    def __init__(self, next_offset: int, created_ms: int | None) -> None:
        self.done = trio.Event()
        self.messages: B | None = None
        self.next_offset = next_offset
        self.created_ms = created_ms
        self.error: Exception | None = SkylarkError("the consumer was closed")


class QueueStream(Generic[B]):
    """A stream of one queue's batches, whatever their type; `MessageStream` documents its behaviour."""

    def __init__(
        self,
        pull: Callable[[Trail, int], Awaitable[PulledBatch[B]]],
        nursery: trio.Nursery,
        start: Position | FindStart,
        end: int | None,
        backoff: Backoff,
        on_ready: Callable[[], object] = lambda: None,
        on_taken: Callable[[int | None], object] = lambda created_ms: None,
    ) -> None:
        """``start`` may be a function that finds the position; ``on_ready`` is called for each batch or error.

        ``on_taken`` is called with the creation stamp of the topic of each batch that is returned.
        """
        self._trail = Trail(start.created_ms if isinstance(start, Position) else None)
        self._pull = partial(pull, self._trail)
        self._nursery = nursery
        self._find_start = None if isinstance(start, Position) else start
        self._end = end
        self._backoff = backoff
        self._on_ready = on_ready
        self._on_taken = on_taken
        self._closed = False
        self._scope = trio.CancelScope()
        self._ahead: _Ahead[B] | None = None
        self.next_offset = start.offset if isinstance(start, Position) else 0
        # The creation stamp that ``next_offset`` belongs to. The next pull may have found another topic already.
        self._created_ms = self._trail.created_ms

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> B:
        # The wait may be cancelled: no batch is taken before the end of the wait, and nothing is awaited afterwards.
        while not self._closed and not self._at_end(self.next_offset):
            ahead = self.prefetch()
            await ahead.done.wait()
            # Otherwise another task has taken the batch.
            if ahead is self._ahead:
                if batch := self._pop_ahead(ahead):
                    return batch
                break
        raise StopAsyncIteration

    @property
    def position(self) -> Position | None:
        """The position of the next message, past messages that do not match; None until ``start`` has been found."""
        if self._find_start is not None:
            return None
        # A batch that is ready and has not been returned does not count; a pull without a match has moved past the
        # messages that do not match.
        ahead = self._ahead
        if ahead is None or ahead.messages:
            return Position(self.next_offset, self._created_ms)
        return Position(ahead.next_offset, ahead.created_ms)

    def _pop_ahead(self, ahead: _Ahead[B]) -> B:
        """Return the batch or raise its error, and start the next pull."""
        # Reset first: an error is raised once, and the next call tries again at the same offset.
        self._ahead = None
        if ahead.error is not None:
            raise ahead.error
        self.next_offset, self._created_ms = ahead.next_offset, ahead.created_ms
        self._on_taken(ahead.created_ms)
        if not self._at_end(self.next_offset):
            self.prefetch()
        return cast(B, ahead.messages)

    def close(self) -> None:
        """Cancel the pull in progress; iteration ends."""
        self._closed = True
        self._scope.cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        self.close()

    def _at_end(self, offset: int) -> bool:
        return self._end is not None and offset >= self._end

    def prefetch(self) -> _Ahead[B]:
        """Start to fetch the next batch, unless a fetch was started already."""
        ahead = self._ahead
        if ahead is None:
            ahead = self._ahead = _Ahead(self.next_offset, self._created_ms)
            self._nursery.start_soon(self._fill, ahead)
        return ahead

    @enable_ki_protection
    async def _fill(self, ahead: _Ahead[B]) -> None:
        """Pull until there is a batch or the end is reached."""
        try:
            with trio.CancelScope() as self._scope:
                if self._closed:
                    return
                if self._find_start is not None:
                    found = await self._patiently(self._find_start)
                    ahead.next_offset, ahead.created_ms = self.next_offset, self._created_ms = found
                    self._trail.created_ms, self._trail.has_been_there = found.created_ms, True
                    self._find_start = None
                await self._pull_batch(ahead)
                ahead.error = None
        except Exception as error:  # raised in the reader; the error must not end the client
            ahead.error = error
        finally:
            ahead.done.set()
            self._on_ready()

    async def _pull_batch(self, ahead: _Ahead[B]) -> None:
        while not ahead.messages and not self._at_end(ahead.next_offset):
            result = await pull_with_retry(self._pull, ahead.next_offset, self._backoff, "the stream", self._gives_up)
            ahead.next_offset, ahead.created_ms = result.next_offset, self._trail.created_ms
            ahead.messages = result.messages
            # A pull may return more messages than were asked for, as brokers return whole batches.
            if self._end is not None and result.next_offset > self._end:
                ahead.messages = self._before(result.messages, self._end)
                ahead.next_offset = self._end

    def _before(self, messages: B, end: int) -> B:
        """The messages before offset ``end``, of a pull that may return later messages."""
        return messages

    async def _patiently(self, find_start: FindStart) -> Position:
        return await read_with_retry(find_start, self._backoff, "the stream", "its first offset", self._gives_up)

    def _gives_up(self, error: SkylarkError) -> bool:
        """Without an ``end`` transient errors are retried until a server answers."""
        return self._end is not None or gives_up_when_refused(error)


class MessageStream(QueueStream[list[MessageExt]]):
    """``async for batch in stream``: lists of messages from ``start`` up to, not including, ``end``.

    Without ``end`` the stream waits forever, for new messages and for brokers and NameServers that are down. It ends
    with cancellation, `close`, or a permanent error: the topic or the queue was deleted, or reading is not permitted.
    With ``end``, servers that stay down longer than a pull's timeout also cause an error. An error is raised once;
    iterating again resumes at the same offset. An offset that the queue does not have is no error: the stream goes on
    at the nearest offset that exists. A topic that was deleted and made again is read from its beginning.

    ``next_offset`` follows the last batch that was returned: it is the offset to commit, and to start again from.
    """

    def poll(self) -> list[MessageExt]:
        """The next batch if it is ready, else an empty list while the pull goes on. Raises the pull's error, once."""
        ahead = self.prefetch()
        return self._pop_ahead(ahead) if ahead.done.is_set() else []

    def _before(self, messages: list[MessageExt], end: int) -> list[MessageExt]:
        return [message for message in messages if message.queue_offset < end]


class Messages(AsyncIterator[MessageExt]):
    """The messages of ``batches``, one by one. Iteration can go on after an error and after a cancelled call.

    ``check`` raises in the child of a fork, which must not return the messages that its parent returns. ``close`` ends
    the batches and may be called in any thread; it is called when the iterator is closed or garbage-collected.
    """

    def __init__(
        self, batches: AsyncIterator[list[MessageExt]], check: Callable[[], object], close: Callable[[], object]
    ) -> None:
        self._batches = batches
        self._check = check
        self._close = close
        self._rest: Iterator[MessageExt] = iter(())

    async def __anext__(self) -> MessageExt:
        while (message := next(self._rest, None)) is None:
            self._rest = iter(await anext(self._batches))
        self._check()
        return message

    async def aclose(self) -> None:
        """Cancel the pull in progress; iteration ends."""
        self._rest = iter(())
        self._close()

    def __del__(self) -> None:
        # Without this, the pulls of an abandoned iterator would go on forever.
        self._close()
