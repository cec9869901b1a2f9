"""An asyncio loop for programs that serve many calls at once: work for another thread leaves the loop in batches.

Two threads that wake each other for each message spend more time on that, and on waiting for the interpreter's lock,
than on the messages. So work for the other thread gathers while this loop has something to do. A loop that has nothing
to do hands its work over at once: a lone message does not wait.
"""

import asyncio
import selectors
from collections.abc import Callable
from time import monotonic
from typing import Any

# Work is handed over after this time, however busy the loop is.
MOST_S = 0.01
# While functions are ready to run, sockets are polled no more often than this: a poll lets other threads take the
# interpreter's lock, and one poll finds everything that has arrived meanwhile.
POLL_S = 0.002


class GatheringLoop(asyncio.SelectorEventLoop):
    """A loop with `when_idle`."""

    def __init__(self) -> None:
        self._idle = _IdleSelector()
        super().__init__(self._idle)

    def when_idle(self, work: Callable[..., object], *args: Any) -> None:
        """Call ``work``, which must not raise, once the loop has nothing else to do, or after `MOST_S`.

        Only the loop's own thread may call this method.
        """
        self._idle.add(lambda: work(*args))


class _IdleSelector(selectors.DefaultSelector):
    """The loop's selector. The timeout with which the loop polls it for sockets says whether the loop is idle."""

    def __init__(self) -> None:
        super().__init__()
        self._works: list[Callable[[], object]] = []
        self._latest_s = self._polled_s = 0.0

    def add(self, work: Callable[[], object]) -> None:
        if not self._works:
            self._latest_s = monotonic() + MOST_S
        self._works.append(work)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        now_s = monotonic()
        if timeout is not None and timeout <= 0:
            # Functions are ready to run.
            if self._works and now_s >= self._latest_s:
                self._hand_over()
            if now_s - self._polled_s < POLL_S:
                return []
        elif self._works:
            # The loop would sleep now, unless a socket is ready. After the work is handed over the loop decides again
            # whether to sleep: the work may have scheduled functions.
            self._polled_s = now_s
            if not (ready := super().select(0)):
                self._hand_over()
            return ready
        self._polled_s = now_s
        return super().select(timeout)

    def _hand_over(self) -> None:
        works, self._works = self._works, []
        for work in works:
            work()
