"""Work that crosses between an asyncio loop and a trio loop in another thread, in batches.

Waking a loop costs several system calls and a change of threads. So a side is woken for the first piece of work, and
what is added until it wakes goes with it. That needs no lock: `append` and `popleft` of a deque are atomic, and a side
that wakes first clears its flag and then empties its queue, so work added later wakes it again.

The queues hold at most what the tasks of the application wait for.
"""

import asyncio
from collections import deque
from collections.abc import Callable

import trio

Work = Callable[[], object]


class Crossing:
    """The two loops. Work must not raise. ``lost`` is called in trio when the asyncio loop was closed."""

    def __init__(self, loop: asyncio.AbstractEventLoop, lost: Work) -> None:
        self.loop = loop
        self._lost = lost
        self._for_trio: deque[Work] = deque()
        self._for_asyncio: deque[Work] = deque()
        self._trio_wakes = False
        self._asyncio_wakes = False

    def to_trio(self, token: trio.lowlevel.TrioToken, work: Work) -> None:
        """Run ``work`` in trio. Raises RunFinishedError when that loop has ended."""
        self._for_trio.append(work)
        if not self._trio_wakes:
            self._trio_wakes = True
            token.run_sync_soon(self._run_in_trio)

    def to_asyncio(self, work: Work) -> None:
        """Run ``work`` in asyncio."""
        self._for_asyncio.append(work)
        if not self._asyncio_wakes:
            self._asyncio_wakes = True
            try:
                self.loop.call_soon_threadsafe(self._run_in_asyncio)
            except RuntimeError:  # the loop was closed before the client
                self._lost()

    def _run_in_trio(self) -> None:
        self._trio_wakes = False
        works = self._for_trio
        while works:
            works.popleft()()

    def _run_in_asyncio(self) -> None:
        self._asyncio_wakes = False
        works = self._for_asyncio
        while works:
            works.popleft()()
