"""Threads for work that would hold up the event loop."""

import os
import threading

import pytest
import trio

from sdk.runtime import off_loop


async def test_it_runs_in_a_thread_and_raises_what_the_work_raises() -> None:
    assert await off_loop(threading.get_ident) != threading.get_ident()
    with pytest.raises(ZeroDivisionError):
        await off_loop(lambda: 1 // 0)


async def test_threads_are_as_many_as_processors_and_count_until_they_end() -> None:
    most = os.cpu_count() or 1
    running, goes_on = threading.Semaphore(0), threading.Event()
    counted: list[int] = []

    def work() -> None:
        counted.append(len(counted))
        running.release()
        goes_on.wait(20)

    try:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                for _ in range(most):
                    nursery.start_soon(off_loop, work)
                for _ in range(most):
                    await trio.to_thread.run_sync(running.acquire)
                scope.cancel()
        # The callers were cancelled, but their threads go on: another one waits.
        with trio.move_on_after(0.01) as waiting:
            await off_loop(work)
        assert waiting.cancelled_caught
        assert len(counted) == most
    finally:
        goes_on.set()
    assert await off_loop(lambda: 5) == 5
