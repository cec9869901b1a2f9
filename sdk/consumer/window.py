"""The messages of one queue between pulling and committing. Pure.

Messages stay in the batches in which they were pulled, since a message keeps the bytes of its whole batch in memory.
The offset to commit is the offset of the first message that is not consumed: later messages that were consumed are
delivered again if the process ends, but no message is skipped.
"""

from collections import deque
from collections.abc import Callable, Sequence

from skylark.mqcommon.message.message import MessageExt, packed_in
from skylark.mqcommon.message.queue import MessageQueue
from skylark.sdk.consumer.rates import Totals

# Only pulls with more bytes per message than this are checked for compressed bodies: for smaller messages the check
# would cost too much, and decompressing small bodies on access costs little.
LARGE_MEAN_BYTES = 2048


class Batch:
    """The messages of one pull: ``taken`` of them were given to handlers, in order; ``left`` are not consumed yet.

    ``has_packed``: some bodies are compressed, see decompression.py.
    """

    __slots__ = ("done", "has_packed", "left", "messages", "next_offset", "size_bytes", "taken", "window")

    #: Whether the broker hides these messages from others as long as this member renews their leases.
    is_leased = False

    def __init__(self, window: "Window", messages: Sequence[MessageExt], next_offset: int, size_bytes: int) -> None:
        self.window = window
        self.messages = messages
        self.next_offset = next_offset
        self.size_bytes = size_bytes
        self.taken = 0
        self.left = len(messages)
        self.done = bytearray(len(messages))
        self.has_packed = size_bytes >= LARGE_MEAN_BYTES * len(messages) and bool(packed_in(messages))

    def finish(self, start: int, end: int) -> None:
        """Count the messages from number ``start`` up to, not including, ``end`` as consumed. Calls may overlap."""
        done = self.done
        # Most calls are for one message. Only ranges, which may overlap consumed messages, are counted in the bytes.
        if end == start + 1:
            if done[start]:
                return
            done[start] = 1
            self.left -= 1
        else:
            self.left -= done.count(0, start, end)
            done[start:end] = b"\x01" * (end - start)
        if not self.left:
            self.window.emptied(self)

    def leave(self, start: int, end: int) -> None:
        """Do nothing: messages that this member does not handle stay in the window, for the queue's next owner."""

    @property
    def first_left(self) -> int:
        """The number of the first message that is not consumed."""
        return self.done.find(0)


class Window:
    """The messages of one queue between the offset to commit and the offset to pull at.

    ``messages`` and ``size_bytes`` count batches in which a message is not consumed; ``emptied`` is called when a batch
    no longer counts. ``totals`` are the totals of the queue's topic. ``is_closed``: the queue is another member's now,
    or is read again from another offset. Later results of handlers for these messages are ignored.
    """

    __slots__ = ("_batches", "_emptied", "is_closed", "messages", "mq", "next_offset", "size_bytes", "totals")

    def __init__(
        self,
        mq: MessageQueue,
        offset: int,
        emptied: Callable[[Batch], None] | None = None,
        totals: Totals | None = None,
    ) -> None:
        self._batches: deque[Batch] = deque()
        self._emptied = emptied
        self.mq = mq
        self.totals = totals or Totals()
        self.is_closed = False
        self.next_offset = offset
        self.messages = 0
        self.size_bytes = 0

    def add(self, messages: Sequence[MessageExt], next_offset: int, size_bytes: int) -> Batch:
        """A pull has found ``messages``; the next pull is at ``next_offset``."""
        batch = Batch(self, messages, next_offset, size_bytes)
        self.put(batch)
        return batch

    def put(self, batch: Batch) -> None:
        """Add a batch that was made for this window."""
        self._batches.append(batch)
        self.next_offset = batch.next_offset
        self.messages += len(batch.done)
        self.size_bytes += batch.size_bytes

    def emptied(self, batch: Batch) -> None:
        """Stop counting ``batch``, whose messages are all consumed."""
        self.messages -= len(batch.done)
        self.size_bytes -= batch.size_bytes
        batch.messages = ()
        batches = self._batches
        # Batches are emptied in any order, but the offset to commit moves only when the first batch is empty.
        while batches and not batches[0].left:
            batches.popleft()
        if self._emptied is not None:
            self._emptied(batch)

    @property
    def offset(self) -> int:
        """The offset to commit: the offset of the first message that is not consumed."""
        if not self._batches:
            return self.next_offset
        first = self._batches[0]
        return first.messages[first.first_left].queue_offset

    @property
    def finished(self) -> int:
        """How many messages are consumed, of batches that still have messages that are not."""
        return sum(len(batch.done) - batch.left for batch in self._batches)


class Again:
    """One message of a batch that a handler takes again, with the interface of a batch; never a popped message."""

    __slots__ = ("_batch", "_number", "done", "has_packed", "messages", "taken", "window")

    is_leased = False

    def __init__(self, batch: "Batch | Again", number: int) -> None:
        # A message may be taken again any number of times while no broker can be reached: do not nest `Again`.
        self._batch: Batch = batch._batch if isinstance(batch, Again) else batch
        self._number: int = batch._number if isinstance(batch, Again) else number
        self.window: Window = batch.window
        self.messages: Sequence[MessageExt] = (batch.messages[number],)
        self.done = bytearray(1)
        self.has_packed: bool = batch.has_packed
        self.taken = 0

    def finish(self, start: int, end: int) -> None:
        """Count the message as consumed."""
        self._batch.finish(self._number, self._number + 1)

    def leave(self, start: int, end: int) -> None:
        """As `Batch.leave`."""
