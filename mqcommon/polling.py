"""Wait for a condition by looking at it: for waits that are rare, where an event would have to be set all the time."""

from collections.abc import Callable

import trio

POLL_S = 0.005


async def poll_until(reached: Callable[[], bool], timeout_s: float, interval_s: float = POLL_S) -> bool:
    """Return True when ``reached`` is, False after ``timeout_s``."""
    with trio.move_on_after(timeout_s):
        while not reached():  # noqa: ASYNC110  see the module
            await trio.sleep(interval_s)
        return True
    return False
