"""The scans of a server: every second all connections are checked for what takes too long."""

from collections.abc import Awaitable, Callable
from typing import Final

import trio

SCAN_INTERVAL_S: Final = 1.0


async def scan_regularly(scan: Callable[[float], Awaitable[None]]) -> None:
    """Call ``scan`` with trio's time in seconds, every second until cancelled; a scan that would be late is left out.

    Late means that this process was stopped: what peers sent meanwhile still waits in the sockets.
    """
    last_s = trio.current_time()
    while True:
        await trio.sleep(SCAN_INTERVAL_S)
        now_s = trio.current_time()
        is_late, last_s = now_s - last_s > 3 * SCAN_INTERVAL_S, now_s
        if not is_late:
            await scan(now_s)
