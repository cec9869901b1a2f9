"""`LoopBlocks`: tells users about an event loop that something blocks. `watch_trio` looks at a loop of trio."""

import logging
from math import inf
from threading import Lock

import trio
from trio.lowlevel import enable_ki_protection

logger = logging.getLogger(__name__)

# How often a watched loop is looked at.
WATCH_S = 1.0
# A loop that runs nothing for this long is logged: heartbeats and commits of the loop are late, too.
BLOCKED_S = 5.0
# Each loop is logged at most this often.
LOG_S = 600.0


class LoopBlocks:
    """The log lines about one event loop. ``to_thread``: the function with which its code calls what blocks."""

    def __init__(self, to_thread: str) -> None:
        self._to_thread = to_thread
        self._quiet_until = -inf
        self._deciding = Lock()

    def late(self, due: float, now: float) -> None:
        """Log, if that is late, that at ``now`` the loop has not run yet, or only just runs, what was ``due``.

        Both are in seconds of one clock. Any thread may call this.
        """
        if now - due < BLOCKED_S:
            return
        with self._deciding:
            if now < self._quiet_until:
                return
            self._quiet_until = now + LOG_S
        logger.warning(
            "the event loop of handlers ran nothing for %.0f s: a handler, or other code in that loop, blocks it. Call "
            "what blocks by %s, or use the PushConsumer of skylark.blocking",
            now - due,
            self._to_thread,
        )


@enable_ki_protection
async def watch_trio() -> None:
    """Log when something blocks the present loop of trio."""
    blocks = LoopBlocks("trio.to_thread.run_sync")
    while True:
        due = trio.current_time() + WATCH_S
        await trio.sleep_until(due)
        blocks.late(due, trio.current_time())
