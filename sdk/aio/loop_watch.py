"""`LoopWatch`: looks whether something blocks an asyncio loop in which handlers run."""

import asyncio

from skylark.sdk.loop_blocks import WATCH_S, LoopBlocks


class LoopWatch:
    """Looks at ``loop`` as long as it has users: handlers of consumers, added and removed in that loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        #: How many users the watch has.
        self.users = 0
        self._loop = loop
        self._blocks = LoopBlocks("asyncio.to_thread")
        self._is_ticking = False
        self._due = 0.0

    def add_user(self) -> None:
        """Look at the loop from now on, once in WATCH_S."""
        self.users += 1
        if not self._is_ticking:
            self._is_ticking = True
            self._tick_later()

    def remove_user(self) -> None:
        """Forget a user; after the last one the loop is looked at no more."""
        self.users -= 1

    def look(self) -> None:
        """Log the loop if it is blocked now: it may never run again. Any thread may call this."""
        if self._is_ticking and self._loop.is_running():
            self._blocks.late(self._due, self._loop.time())

    def _tick_later(self) -> None:
        self._due = self._loop.time() + WATCH_S
        self._loop.call_at(self._due, self._tick)

    def _tick(self) -> None:
        self._is_ticking = self.users > 0
        if self._is_ticking:
            self._blocks.late(self._due, self._loop.time())
            self._tick_later()


class LoopWatches:
    """The watches of all loops of this process."""

    def __init__(self) -> None:
        self._of_loops: dict[asyncio.AbstractEventLoop, LoopWatch] = {}

    def of(self, loop: asyncio.AbstractEventLoop) -> LoopWatch:
        """The watch of ``loop``, which all consumers in it share."""
        for closed in [known for known in list(self._of_loops) if known.is_closed()]:
            self._of_loops.pop(closed, None)
        return self._of_loops.setdefault(loop, LoopWatch(loop))


WATCHES = LoopWatches()
