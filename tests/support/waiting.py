"""Waiting for what happens outside of the test's own event loop, or without one: in other processes and threads."""

import threading
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

T = TypeVar("T")

# The first pause, and the longest: what takes long is asked for less often, as each question costs processor time.
POLL_S, MAX_POLL_S = 0.01, 0.1
GROWTH = 1.1
# How long a test waits for what happens in threads or other processes: far longer than a machine under load takes.
DEADLINE_S = 60.0


async def until(reached: Callable[[], bool | Awaitable[bool]], what: str = "it", timeout_s: float = DEADLINE_S) -> None:
    """Ask again and again; AssertionError that names ``what`` when it does not come in time."""
    pause_s = POLL_S
    with trio.move_on_after(timeout_s):
        while True:
            answer = reached()
            if answer if isinstance(answer, bool) else await answer:
                return
            await trio.sleep(pause_s)
            pause_s = min(pause_s * GROWTH, MAX_POLL_S)
    raise AssertionError(f"not within {timeout_s} s: {what}")


def until_true(reached: Callable[[], T], what: str = "it", timeout_s: float = DEADLINE_S) -> T:
    """As `until`, in a thread without an event loop; returns the first result that is true."""
    deadline = time.monotonic() + timeout_s
    pause = threading.Event()
    while not (found := reached()):
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        pause.wait(POLL_S)
    return found
