"""Clocks of tests: a clock that a test moves, and a clock that jumps when all tasks wait."""

import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from math import inf
from typing import Any, TypeVar

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.waiting import DEADLINE_S

T = TypeVar("T")


class ManualClock:
    """A clock that stands still until a test moves it."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._monotonic_ms = 0

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic_ms(self) -> int:
        return self._monotonic_ms

    def advance(self, ms: int) -> None:
        """Let this much time pass."""
        self._now_ms += ms
        self._monotonic_ms += ms

    def set_by(self, ms: int) -> None:
        """Set the wall clock forward, or back if ``ms`` is negative; no time passes."""
        self._now_ms += ms


@contextmanager
def jumping_clock() -> Iterator[MockClock]:
    """A clock that jumps to the next deadline when all tasks wait, but not while one of them waits for a thread.

    Trio's own ``autojump_threshold=0`` takes a task that waits for a thread for an idle one: the time of a test then
    depends on how soon the machine gives the thread a turn.
    """
    clock = MockClock(autojump_threshold=0)
    run_sync = trio.to_thread.run_sync
    in_threads = 0

    async def run_sync_and_hold(function: Callable[..., T], *args: Any, **options: Any) -> T:
        nonlocal in_threads
        # Daemons in threads of this process, which other tests share, have loops and clocks of their own.
        if trio.lowlevel.current_clock() is not clock:
            return await run_sync(function, *args, **options)
        in_threads += 1
        clock.autojump_threshold = inf
        try:
            return await run_sync(function, *args, **options)
        finally:
            in_threads -= 1
            if not in_threads:
                clock.autojump_threshold = 0

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trio.to_thread, "run_sync", run_sync_and_hold)
        yield clock


async def pass_until(clock: MockClock, reached: Callable[[], bool], step_s: float = 0.1) -> None:
    """Let time pass in steps until ``reached``; for tests in which a thread hangs on purpose."""
    ends = time.monotonic() + DEADLINE_S
    while not reached():
        assert time.monotonic() < ends, f"not within {DEADLINE_S} s"
        clock.jump(step_s)
        await wait_all_tasks_blocked()


@asynccontextmanager
async def passing_time(clock: MockClock) -> AsyncIterator[None]:
    """Let time pass in steps during the block; for tests in which a thread hangs on purpose."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pass_until, clock, lambda: False)
        yield
        nursery.cancel_scope.cancel()
