"""Wait for a condition by polling it: for rare waits, where an event would have to be set all the time."""

from collections.abc import Callable

import trio

POLL_S = 0.005


async def poll_until(reached: Callable[[], bool], timeout_s: float, interval_s: float = POLL_S) -> bool:
    """Return True once ``reached()`` is true, False after ``timeout_s``."""
    with trio.move_on_after(timeout_s):
        while not reached():  # noqa: ASYNC110  polling is what this function is for
            await trio.sleep(interval_s)
        return True
    return False
