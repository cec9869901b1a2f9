"""Waiting for what happens outside of the test's own event loop: in other processes."""

from collections.abc import Awaitable, Callable

import trio

POLL_S = 0.01


async def until(reached: Callable[[], bool | Awaitable[bool]], what: str = "it", timeout_s: float = 60) -> None:
    """Ask again and again; AssertionError that names ``what`` when it does not come in time."""
    with trio.move_on_after(timeout_s):
        while True:
            answer = reached()
            if answer if isinstance(answer, bool) else await answer:
                return
            await trio.sleep(POLL_S)
    raise AssertionError(f"not within {timeout_s} s: {what}")
