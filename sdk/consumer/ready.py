"""`Ready`: messages that were pulled and wait for a handler. Handlers take them from the first batch, in order."""

from collections import deque
from heapq import heappop, heappush
from itertools import count
from math import inf

import trio
from trio.lowlevel import enable_ki_protection

from mqcommon.signal import Signal
from sdk.consumer.window import Again, Batch, Window

Takable = Batch | Again


class Ready:
    """``batches`` are those with messages that no handler has taken. Their number is bounded by the flow control."""

    def __init__(self) -> None:
        self.batches: deque[Takable] = deque()
        # (time, number, message): to be put into ``batches`` at that time.
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
        """Wait until there may be something to take, or `wake_all`."""
        await self._idle.park()

    def wake(self) -> None:
        """Let another handler look."""
        self._idle.unpark()

    def wake_all(self) -> None:
        """Let all handlers look."""
        self._idle.unpark_all()

    def drop(self, window: Window) -> None:
        """Nobody takes the messages of ``window`` any more."""
        self.batches = deque([batch for batch in self.batches if batch.window is not window])

    def clear(self) -> None:
        """Nobody takes any of these messages."""
        self.batches = deque()
        self._later.clear()

    @enable_ki_protection
    async def run(self) -> None:
        """Put messages whose pause is over."""
        while True:
            due = self._later[0][0] if self._later else inf
            with trio.move_on_at(due):
                await self._later_changed.wait()
            while self._later and self._later[0][0] <= trio.current_time():
                again = heappop(self._later)[2]
                if not again.window.is_closed:
                    self.put(again)
