import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from skylark.mqcommon.signal import Signal


class Worker:
    """Counts how often it was woken."""

    def __init__(self) -> None:
        self.signal = Signal()
        self.rounds = 0

    async def run(self) -> None:
        while True:
            await self.signal.wait()
            self.rounds += 1


async def test_a_signal_wakes_its_task_and_is_clear_again(nursery: trio.Nursery) -> None:
    worker = Worker()
    nursery.start_soon(worker.run)
    await wait_all_tasks_blocked()
    assert worker.rounds == 0
    for rounds in range(1, 4):
        worker.signal.set()
        assert worker.signal.is_set(), "the task has not gone on yet"
        await wait_all_tasks_blocked()
        assert worker.rounds == rounds and not worker.signal.is_set()


async def test_a_signal_set_before_the_wait_counts_once() -> None:
    signal = Signal()
    signal.set()
    signal.set()
    await signal.wait()
    with trio.move_on_after(0) as scope:
        await signal.wait()
    assert scope.cancelled_caught


async def test_a_signal_that_was_cleared_waits() -> None:
    signal = Signal()
    signal.set()
    signal.clear()
    with trio.move_on_after(0) as scope:
        await signal.wait()
    assert scope.cancelled_caught and not signal.is_set()


async def test_a_wait_that_is_cancelled_loses_nothing(autojump_clock: MockClock) -> None:
    signal = Signal()
    for _ in range(2):
        with trio.move_on_after(1) as scope:
            await signal.wait()
        assert scope.cancelled_caught
    signal.set()
    with trio.CancelScope() as cancelled:
        cancelled.cancel()
        await signal.wait()
    assert cancelled.cancelled_caught and signal.is_set()
    await signal.wait()


async def test_a_second_task_is_refused(nursery: trio.Nursery) -> None:
    signal = Signal()
    nursery.start_soon(signal.wait)
    await wait_all_tasks_blocked()
    with pytest.raises(RuntimeError, match="another task"):
        await signal.wait()
    signal.set()


@given(st.lists(st.sampled_from(["set", "set", "turn", "work"]), max_size=30))
def test_a_worker_never_sleeps_while_there_is_work(steps: list[str]) -> None:
    async def main() -> None:
        worker, asked, done = Signal(), 0, 0

        async def run() -> None:
            nonlocal done
            while True:
                await worker.wait()
                done = asked

        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            for step in steps:
                if step == "set":
                    asked += 1
                    worker.set()
                elif step == "turn":
                    await trio.lowlevel.checkpoint()
                else:
                    await wait_all_tasks_blocked()
                    assert done == asked
            await wait_all_tasks_blocked()
            assert done == asked
            nursery.cancel_scope.cancel()

    trio.run(main)
