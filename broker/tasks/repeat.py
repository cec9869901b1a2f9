"""Repeats a sync action at intervals, for jobs that need no loop of their own: counters, expiry of clients."""

import logging
from collections.abc import Callable

import trio

logger = logging.getLogger(__name__)


async def repeat(interval_ms: float, action: Callable[[], object]) -> None:
    """Call ``action`` every ``interval_ms``, until cancelled. An error is logged, and the calls go on."""
    while True:
        await trio.sleep(interval_ms / 1000)
        try:
            action()
        except Exception:
            logger.exception("%s failed; it is called again in %.0f ms", action, interval_ms)
