"""Work that would hold up the event loop, in a few threads.

All producers and consumers of one event loop share them: more threads than processors would only compete.
"""

import os
from collections.abc import Callable
from typing import TypeVar

import trio

T = TypeVar("T")

_limiters: trio.lowlevel.RunVar[trio.CapacityLimiter] = trio.lowlevel.RunVar("skylark_off_loop")


async def off_loop(work: Callable[[], T]) -> T:
    """The result of ``work``. When the caller is cancelled, its thread finishes by itself, and counts until then."""
    try:
        limiter = _limiters.get()
    except LookupError:
        limiter = trio.CapacityLimiter(os.cpu_count() or 1)
        _limiters.set(limiter)
    return await trio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=limiter)
