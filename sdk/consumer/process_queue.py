"""`ProcessQueue`: a queue that this member consumes, and its messages. `FlowControl`: the limits of all queues.

`Ready`: messages that were pulled and wait for a handler. Handlers take them from the first batch, in order.
"""

from collections import deque
from heapq import heappop, heappush
from itertools import count
from math import inf
from typing import Final

import trio
from trio.lowlevel import enable_ki_protection

from skylark.mqcommon.clock import Clock
from skylark.mqcommon.message.queue import MessageQueue
from skylark.mqcommon.signal import Signal
from skylark.sdk.consumer.expression import Sql
from skylark.sdk.consumer.rates import Rates
from skylark.sdk.consumer.settings import PushSettings
from skylark.sdk.consumer.trail import Trail
from skylark.sdk.consumer.window import Again, Batch, Window
from skylark.sdk.position import Position

# A queue is pulled at most this many times ``max_queue_messages`` past its oldest message that is not consumed. Without
# a limit, one stuck message and a crash would deliver everything after that message again.
MAX_SPAN = 10


class ProcessQueue:
    """A queue, its messages in memory, and the task that pulls; ``now_ms`` is when this member got it.

    ``scope`` cancels that task, ``wake`` makes it check again whether it may pull. ``trail`` says to which topic the
    offsets belong. ``committed`` is the position that was committed last. ``pulled_ms`` is when the last pull ended,
    ``consumed_ms`` when a sample last found newly consumed messages; ``finished`` is the window's count in that sample.
    The rest is for orderly consumption: ``locked_until`` is the time until which the broker's lock is certain,
    ``is_lost`` says that the lock is another member's now, ``reset_to`` is the offset to commit instead of the window's
    when the group's offset was reset, ``batches`` have messages that were not handled, ``work`` fires when there are
    such messages or the queue was given up, ``working`` is held while the handler runs.
    """

    __slots__ = (
        *("committed", "consumed_ms", "expression", "finished", "is_paused", "mq", "pulled_ms", "scope", "wake"),
        *("batches", "is_given_up", "is_lost", "locked_until", "reset_to", "trail", "window", "work", "working"),
    )

    def __init__(self, mq: MessageQueue, expression: str | Sql, window: Window, trail: Trail, now_ms: int) -> None:
        self.mq = mq
        self.trail = trail
        self.expression = expression
        self.window = window
        self.scope = trio.CancelScope()
        self.wake = Signal()
        self.is_paused = False
        self.committed: Position | None = None
        self.locked_until = -inf
        self.batches: deque[Batch] = deque()
        self.work = Signal()
        self.working = trio.Lock()
        self.is_given_up = False
        self.is_lost = False
        self.reset_to: int | None = None
        self.pulled_ms = now_ms
        self.consumed_ms = now_ms
        self.finished = 0

    @property
    def position(self) -> Position:
        """The position to commit: of the first message that is not consumed yet, or the offset of a reset."""
        return Position(self.window.offset if self.reset_to is None else self.reset_to, self.trail.created_ms)


class FlowControl:
    """Counts the messages in memory of all queues, and says which queue may be pulled."""

    def __init__(self, settings: PushSettings, clock: Clock, rates: Rates) -> None:
        self._settings = settings
        self._clock = clock
        self._rates = rates
        self._queues: dict[MessageQueue, ProcessQueue] = {}
        self.messages = 0
        self.size_bytes = 0

    def own(self, mq: MessageQueue, expression: str | Sql, start: Position) -> ProcessQueue:
        """Start to track the queue, which is read from ``start``."""
        window = Window(mq, start.offset, self._emptied, self._rates.of(mq.topic, trio.current_time()))
        trail = Trail(start.created_ms, has_been_there=True)
        queue = self._queues[mq] = ProcessQueue(mq, expression, window, trail, self._clock.now_ms())
        return queue

    def drop(self, queue: ProcessQueue) -> None:
        """Forget the queue and its messages."""
        window = queue.window
        window.is_closed = True
        self.messages -= window.messages
        self.size_bytes -= window.size_bytes
        # This member may own the queue again already, with another window.
        if self._queues.get(queue.mq) is queue:
            del self._queues[queue.mq]
        self._wake_all()

    def queue_of(self, window: Window) -> ProcessQueue:
        """The queue of a window that is not closed."""
        return self._queues[window.mq]

    def sample_progress(self) -> None:
        """Sample which queues have consumed messages since the last sample: a large batch may take long."""
        for queue in self._queues.values():
            finished = queue.window.finished
            if finished != queue.finished:
                queue.finished = finished
                queue.consumed_ms = self._clock.now_ms()

    def added(self, batch: Batch) -> None:
        """Count the messages of ``batch``, which a pull has found, as messages in memory."""
        self.messages += len(batch.done)
        self.size_bytes += batch.size_bytes

    async def wait(self, queue: ProcessQueue) -> int:
        """Wait until the queue may be pulled. Returns how many messages at most."""
        while (count := self._count(queue)) <= 0:
            await queue.wake.wait()
        return count

    def _count(self, queue: ProcessQueue) -> int:
        settings, window = self._settings, queue.window
        if (
            queue.is_paused
            or self._is_full()
            or window.size_bytes >= settings.max_queue_bytes
            or (window.messages and window.next_offset - window.offset >= MAX_SPAN * settings.max_queue_messages)
        ):
            return 0
        return min(settings.max_queue_messages - window.messages, settings.pull_count)

    def _is_full(self) -> bool:
        settings = self._settings
        return self.messages >= settings.max_cached_messages or self.size_bytes >= settings.max_cached_bytes

    def _emptied(self, batch: Batch) -> None:
        if batch.window.is_closed:
            return
        queue = self._queues[batch.window.mq]
        queue.consumed_ms = self._clock.now_ms()
        was_full = self._is_full()
        self.messages -= len(batch.done)
        self.size_bytes -= batch.size_bytes
        # If the common limit was reached, all queues were stopped; otherwise only this queue can have been waiting.
        if was_full:
            self._wake_all()
        else:
            queue.wake.set()

    def _wake_all(self) -> None:
        for queue in self._queues.values():
            queue.wake.set()


Takable = Batch | Again


class Ready:
    """The ``batches`` with messages that no handler has taken. The flow control bounds their number."""

    def __init__(self) -> None:
        # Never replaced: tasks that take from the deque keep a reference to it while they wait.
        self.batches: Final[deque[Takable]] = deque()
        # (time, number, message): the message is put into ``batches`` at that time.
        self._later: list[tuple[float, int, Again]] = []
        self._numbers = count()
        self._later_changed = Signal()
        self._idle = trio.lowlevel.ParkingLot()

    def put(self, batch: Takable) -> None:
        """Let a handler take the messages of ``batch``."""
        self.batches.append(batch)
        self._idle.unpark()

    def put_later(self, again: Again, pause_s: float) -> None:
        """Let a handler take the message after a pause."""
        heappush(self._later, (trio.current_time() + pause_s, next(self._numbers), again))
        self._later_changed.set()

    async def wait(self) -> None:
        """Wait until there may be a message to take, or until `wake_all`."""
        await self._idle.park()

    def wake(self) -> None:
        """Wake one handler, which rechecks ``batches``."""
        self._idle.unpark()

    def wake_all(self) -> None:
        """Wake all handlers; each rechecks ``batches``."""
        self._idle.unpark_all()

    def drop(self, window: Window) -> None:
        """Remove the messages of ``window``: no handler takes them any more."""
        kept = [batch for batch in self.batches if batch.window is not window]
        self.batches.clear()
        self.batches.extend(kept)

    def clear(self) -> None:
        """Remove all messages: no handler takes them any more."""
        self.batches.clear()
        self._later.clear()

    @enable_ki_protection
    async def run(self) -> None:
        """Put messages whose pause is over."""
        while True:
            due = self._later[0][0] if self._later else inf
            with trio.move_on_at(due):
                await self._later_changed.wait()
            # A window that was closed during the pause belongs to another member now: drop its messages.
            while self._later and self._later[0][0] <= trio.current_time():
                again = heappop(self._later)[2]
                if not again.window.is_closed:
                    self.put(again)
