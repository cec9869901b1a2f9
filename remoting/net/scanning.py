"""The scans of a server: every second all connections are checked for what takes too long, or too much memory."""

from collections.abc import Callable, Collection
from typing import Final, TypeVar

import trio

from skylark.remoting.net.limits import BufferBudget

C = TypeVar("C")

SCAN_INTERVAL_S: Final = 1.0
# How many connections a scan checks in one turn of the loop.
_SLICE: Final = 1_000


async def scan_connections(
    connections: Collection[C], check: Callable[[C, float], None], buffers: BufferBudget
) -> None:
    """Call ``check`` with each of ``connections`` and trio's time in seconds, every second until cancelled.

    After each scan ``buffers`` closes the largest connections if memory is short. ``connections`` may change meanwhile.
    A scan that would be late is left out: this process was stopped, and what peers sent meanwhile still waits in the
    sockets.
    """
    last_s = trio.current_time()
    while True:
        await trio.sleep(SCAN_INTERVAL_S)
        now_s = trio.current_time()
        is_late, last_s = now_s - last_s > 3 * SCAN_INTERVAL_S, now_s
        if not is_late:
            await _scan(connections, check, now_s)
            if buffers.used > buffers.most:
                buffers.relieve()


async def _scan(connections: Collection[C], check: Callable[[C, float], None], now_s: float) -> None:
    # A function of its own: its variables would keep the last connection alive until the next scan.
    for number, connection in enumerate(list(connections), 1):
        if number % _SLICE == 0:
            await trio.lowlevel.checkpoint()
        check(connection, now_s)
